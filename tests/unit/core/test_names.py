"""Names of variables, arguments and functions say what they hold: pronouns do not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, nodes

ROOT = Path(__file__).parents[3]
PRONOUNS = frozenset({"one", "some", "found", "known", "further", "more", "most", "kept", "again"})
FOLDERS = (
    *(
        "access",
        "alerting",
        "backup",
        "cli",
        "collector",
        "core",
        "dash_app",
        "datasets",
        "jobqueue",
        "marketplace",
        "plugins",
    ),
    *("portal", "protocol", "relay", "scheduler", "serving", "tenants", "timeseries", "vedette"),
    *("benchmarks", "tests"),
)

# A pronoun before what may follow a name that is given; text has others, which cost only time.
_MAY_BE_NAME = re.compile(
    rf"\b(?:{'|'.join(sorted(PRONOUNS))})\b(?:\s*(?:[,:;=()\]+\-*/%@&|^<>#\\]|$)|\s+in\b)",
    re.IGNORECASE | re.MULTILINE,
)
# `const one`, `(one) =>`, `(one, other) =>` and `function show(one)`.
DECLARED = re.compile(r"\b(?:const|let|function) (\w+)|\((\w+)\) =>|\((\w+), |function \w+\((\w+)")
# Of the REST API, whose names stay.
EXCEPTIONS = {("portal/api/tenants.py", "most")}


def assigned_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module gives, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_no_name_is_a_pronoun() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    pronouns = [
        f"{path}:{line}: {name}"
        for file in files
        for path, text in [(str(file.relative_to(ROOT)), file.read_text("utf-8"))]
        if _MAY_BE_NAME.search(text)
        for name, line in assigned_names(ast.parse(text))
        if name.lower() in PRONOUNS and (path, name) not in EXCEPTIONS
    ]
    assert files
    assert pronouns == []


def test_no_name_of_a_template_is_a_pronoun() -> None:
    templates = list((ROOT / "portal" / "templates").rglob("*.html"))
    pronouns = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for file in templates
        for node in Environment().parse(file.read_text("utf-8")).find_all(nodes.Name)  # noqa: S701 - renders nothing
        if node.ctx != "load" and node.name in PRONOUNS
    ]
    assert templates
    assert pronouns == []


def test_no_name_of_a_script_is_a_pronoun() -> None:
    scripts = [*(ROOT / "portal/static").glob("*.js"), *(ROOT / "dash_app/assets").glob("*.js")]
    pronouns = [
        f"{file.name}: {name}"
        for file in scripts
        if ".min." not in file.name
        for match in DECLARED.finditer(file.read_text("utf-8"))
        for name in match.groups()
        if name and name.lower() in PRONOUNS
    ]
    assert scripts
    assert pronouns == []
