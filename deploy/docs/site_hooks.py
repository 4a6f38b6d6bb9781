"""MkDocs hooks: pages from code and the README files of the repository, and links between them.

Source: https://www.mkdocs.org/dev-guide/plugins/#events.
"""

import base64
import json
import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import click
from flask import Flask
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from alerting.rules.pack import rule_pack
from cli.main import COMMANDS, vedette
from portal.api.registry import PREFIX, install_api

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FAVICON = ROOT / "portal" / "static" / "favicon.svg"
# Where pages and files that are not below docs/ are on the site.
REPOSITORY = PurePosixPath("repository")
# Text, path and anchor of a link within the repository.
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the names of lists in the navigation by their pages."""
    lists = {
        "PLUGINS": [_on_site(path) for path in sorted(ROOT.glob("plugins/*/README.md"))],
        "STATES": [_on_site(path) for path in sorted(DOCS.glob("states/*.md"))],
        "PACKAGES": [_on_site(path) for path in _package_pages()],
        "DECISIONS": [_on_site(path) for path in sorted(DOCS.glob("decisions/*.md"), reverse=True)],
    }
    config.nav = _filled(config.nav, lists)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, those of the repository, and the files that pages link to."""
    files.append(File.generated(config, "reference/commands.md", content=_commands_page()))
    files.append(File.generated(config, "reference/rest.md", content=_rest_page()))
    files.append(File.generated(config, "reference/rules.md", content=_rules_page()))
    pages = [*_package_pages(), *ROOT.glob("plugins/*/README.md"), ROOT / "CONTRIBUTING.md"]
    files.append(File.generated(config, config.theme["favicon"], content=FAVICON.read_bytes()))
    for path in pages:
        files.append(File.generated(config, _on_site(path), content=path.read_text("utf-8")))
    for source in [*DOCS.rglob("*.md"), *pages]:
        for target in _targets(source):
            name = _on_site(target)
            if target.is_file() and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=target.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_parameters: Any) -> str:  # noqa: ANN401 - MkDocs'
    """Lead links between files of the repository to their places on the site."""
    source = _in_repository(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        text, link, anchor = match.groups(default="")
        target = _target(source, link)
        if target is None:
            return match[0]
        there = os.path.relpath(_on_site(target), PurePosixPath(page.file.src_uri).parent)
        return f"[{_text(text, target)}]({there}{anchor})"

    parts = _FENCE.split(markdown)
    fences = [*_FENCE.findall(markdown), ""]
    pairs = zip(parts, fences, strict=True)
    return "".join(_LINK.sub(rewritten, text) + fence for text, fence in pairs)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the hashes of inline scripts, which the portal allows, and delete what nobody reads."""
    site = Path(config.site_dir)
    scripts = {
        script for path in site.rglob("*.html") for script in _SCRIPT.findall(path.read_bytes())
    }
    digests = [base64.b64encode(sha256(script).digest()).decode() for script in scripts]
    hashes = sorted(f"'sha256-{digest}'" for digest in digests)
    (site / "inline-scripts.json").write_text(json.dumps(hashes), encoding="utf-8")
    for path in [*site.rglob("*.map"), *site.glob("assets/javascripts/lunr/**/*.js")]:
        path.unlink()


def _filled(nav: Any, lists: dict[str, list[str]]) -> Any:  # noqa: ANN401 - as the file has it
    if isinstance(nav, list):
        return [_filled(entry, lists) for entry in nav]
    if isinstance(nav, dict):
        return {title: _filled(entry, lists) for title, entry in nav.items()}
    return lists.get(nav, nav)


def _package_pages() -> list[Path]:
    """Return the README files of packages and of their parts, and that of the repository."""
    tops = [path for path in ROOT.glob("*/README.md") if path.parent != DOCS]
    roles = (ROOT / "ansible" / "ansible_collections").rglob("README.md")
    return sorted([ROOT / "README.md", *tops, *roles])


def _on_site(path: Path) -> str:
    """Return the place of a file of the repository on the site."""
    if path.is_dir():
        path /= "README.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return (REPOSITORY / path.relative_to(ROOT).as_posix()).as_posix()


def _in_repository(src_uri: str) -> Path:
    """Return the file of the repository that a page is made from."""
    uri = PurePosixPath(src_uri)
    if uri.is_relative_to(REPOSITORY):
        return ROOT / uri.relative_to(REPOSITORY)
    return DOCS / uri


def _target(source: Path, link: str) -> Path | None:
    """Return the file of the repository that a link leads to."""
    target = Path(os.path.normpath(source.parent / link))
    return target if target.exists() and target.is_relative_to(ROOT) else None


def _text(text: str, target: Path) -> str:
    """Return the text of a link: the title of the page, where the link shows only its file."""
    page = target / "README.md" if target.is_dir() else target
    if not text.endswith((".md", "/")) or not page.is_file():
        return text
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def _targets(source: Path) -> Iterator[Path]:
    for match in _LINK.finditer(_FENCE.sub("", source.read_text("utf-8"))):
        target = _target(source, match[2])
        if target is not None and target.suffix != ".md":
            yield target


def _commands_page() -> str:
    """Return the reference of all commands, from their help texts."""
    context = click.Context(vedette, info_name="vedette")
    sections = [
        section
        for name in COMMANDS
        if (command := vedette.get_command(context, name)) is not None and not command.hidden
        for section in _command_sections(command, click.Context(command, context, name))
    ]
    head = "# Commands\n\nThe help of every command, as `vedette COMMAND --help` prints it.\n"
    return "\n".join([head, *sections])


def _command_sections(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _command_sections(child, click.Context(child, context, name))


def _rest_page() -> str:
    """Return the reference of the REST API, from its OpenAPI document."""
    app = Flask(__name__)
    install_api(app)
    document = app.test_client().get(f"{PREFIX}/openapi.json").get_json()
    rows: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "responses" in operation:
                row = f"| `{method.upper()} {path}` | {operation.get('summary', '')} |"
                rows.setdefault(operation.get("tags", ["Other"])[0], []).append(row)
    tables = [
        f"## {tag}\n\n| request | does |\n| --- | --- |\n" + "\n".join(rows[tag]) + "\n"
        for tag in sorted(rows)
    ]
    return "\n".join([_REST_HEAD, *tables])


def _rules_page() -> str:
    """Return the rules of the rule pack, with their runbooks."""
    sections = []
    for rule in rule_pack().values():
        steps = "\n".join(f"1. {step}" for step in rule.steps)
        sections.append(
            f"## {rule.name}\n\n```\n{rule.expression}\n```\n\n{rule.meaning}\n\n{steps}\n\n"
            f"Source: {rule.source}\n"
        )
    head = "# Rule pack\n\nThe rules that each tenant has from the start, and what to do.\n"
    return "\n".join([head, *sections])


_REST_HEAD = """# REST API

Conventions are in [api.md](../api.md). The portal has the complete document at
`/api/v1/openapi.json`, and a page to try it out at `/api/v1/docs`.
"""
