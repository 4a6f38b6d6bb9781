"""`vedette rules`: list alert rules, and keep them in a file: apply, diff, export, import.

rules:
  - name: GPU too hot
    expression: avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85
    receivers: [On call]
    is_enabled: true
    annotation: GPU {{ labels.gpu }} has {{ value_text }}.
    actions: [{kind: drain, max_per_hour: 2, is_dry_run: true}]
"""

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import yaml

from alerting.language.text import parse_expression
from alerting.rule_request import RuleEntry, RuleRequest
from cli.client import (
    Columns,
    all_items,
    fetch_items,
    load_documents,
    load_list,
    load_mapping,
    output_option,
    print_rows,
)
from core.errors import InvalidInputError
from core.quantities import parse_duration
from vedette.client import Client

if TYPE_CHECKING:
    from alerting.rules.unit_tests import Failure

_KEYS = tuple(field.name for field in fields(RuleEntry))
_PLATFORM_KEYS = ("name", "expression", "tenant_ids", "receivers", "is_enabled", "annotation")
_OPTIONAL = ("annotation", "actions", "tenant_ids")
_COLORS = {"create": "green", "update": "yellow", "delete": "red", "keep": None}
file_option = click.option(
    "-f", "--file", "file", type=click.File(), required=True, help="YAML file; - reads stdin."
)
platform_option = click.option(
    "--platform", "is_platform", is_flag=True, help="Rules of the platform (operators)."
)
prune_option = click.option("--prune", is_flag=True, help="Delete rules that the file lacks.")


@click.group()
def rules() -> None:
    """List alert rules, and keep them in a file."""


@rules.command("ls")
@platform_option
@output_option
def list_rules(output: str, *, is_platform: bool) -> None:
    """List the alert rules of your tenant."""
    columns: Columns = {
        "NAME": "name",
        "ENABLED": lambda rule: "yes" if rule["is_enabled"] else "no",
        "EXPRESSION": "expression",
    }
    empty = "No rules yet. Create some with: vedette rules apply -f rules.yaml"
    print_rows(fetch_items(_path(is_platform=is_platform)), output, columns, empty=empty)


@rules.command()
@file_option
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@prune_option
@platform_option
def apply(file: TextIO, *, dry_run: bool, prune: bool, is_platform: bool) -> None:
    """Create and update the rules of a file, by name. On any error nothing changes."""
    path = _path(is_platform=is_platform)
    for change in _apply(file, path, is_dry_run=dry_run, deletes_others=prune):
        click.secho(f"{change['action']:<7} {change['name']}", fg=_COLORS[change["action"]])


@rules.command()
@file_option
@prune_option
@platform_option
def diff(file: TextIO, *, prune: bool, is_platform: bool) -> None:
    """Print what `apply` would change; exit with status 1 if that is anything."""
    is_different = False
    path = _path(is_platform=is_platform)
    for change in _apply(file, path, is_dry_run=True, deletes_others=prune):
        is_different = is_different or change["action"] != "keep"
        before, after = (_lines(change[side]) for side in ("before", "after"))
        for line in difflib.unified_diff(before, after, n=10, lineterm=""):
            if line.startswith(("---", "+++", "@@")):
                continue
            click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]))
    sys.exit(1 if is_different else 0)


@rules.command()
@click.option("-f", "--file", "file", type=click.File("w"), default="-", help="Defaults to stdout.")
@platform_option
def export(file: TextIO, *, is_platform: bool) -> None:
    """Write the rules of your tenant as a file for `apply`."""
    with Client() as client:
        if is_platform:
            rules = list(all_items(client, _path(is_platform=True)))
            entries = [
                {key: rule[key] for key in _PLATFORM_KEYS if _is_given(rule, key)} for rule in rules
            ]
            _dump(entries, file)
            return
        names = {receiver["id"]: receiver["name"] for receiver in all_items(client, "/receivers")}
        entries = [
            {
                "name": rule["name"],
                "expression": rule["expression"],
                "receivers": sorted(
                    names[receiver_id]
                    for receiver_id in rule["receiver_ids"]
                    if receiver_id in names
                ),
                "is_enabled": rule["is_enabled"],
            }
            | {key: rule[key] for key in _OPTIONAL if rule.get(key)}
            for rule in all_items(client, "/rules")
            if not rule["is_platform"]
        ]
    _dump(entries, file)


@rules.command("import")
@file_option
def convert(file: TextIO) -> None:
    """Convert the alerting rules of a Prometheus FILE, and print them as a file for `apply`.

    FILE has groups of rules, or is a PrometheusRule of Kubernetes. What could not be converted is
    named on stderr.
    """
    groups = _prometheus_groups(file)
    with Client() as client:
        converted = client.post("/rules/import", {"groups": groups})
    for text in converted["left_out"]:
        click.secho(text, fg="yellow", err=True)
    click.echo(_text({"rules": [_given(entry) for entry in converted["rules"]]}), nl=False)


def _prometheus_groups(file: TextIO) -> list[Any]:
    """Return the groups of a rule file of Prometheus, or of PrometheusRules of Kubernetes."""
    name = getattr(file, "name", "<stdin>")
    groups: list[Any] = []
    for document in load_documents(file):
        items = document.get("items")
        for item in items if isinstance(items, list) else [document]:
            body = item.get("spec", item) if isinstance(item, Mapping) else {}
            listed = body.get("groups") if isinstance(body, Mapping) else None
            if not isinstance(listed, list) or not all(
                isinstance(group, Mapping) for group in listed
            ):
                raise InvalidInputError(
                    f"{name} has no list of groups. Use a rule file of Prometheus, or "
                    "PrometheusRule resources."
                )
            groups += listed
    return groups


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule of a file without what is empty."""
    return {key: value for key, value in entry.items() if value not in ([], "", True)}


@rules.command("test")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def run_tests(files: Sequence[Path]) -> None:
    """Run the unit tests of rules in FILES, as `promtool test rules` does."""
    failed = False
    for path in files:
        failures = list(_failures(path))
        failed = failed or bool(failures)
        click.echo(f"{path}: {'FAILED' if failures else 'SUCCESS'}")
        for name, failure in failures:
            expected, actual = (_text(list(side)) for side in (failure.expected, failure.actual))
            click.secho(f"  {name}{failure.where}", fg="red")
            for line in difflib.unified_diff(
                expected.splitlines(), actual.splitlines(), "expected", "found", n=10, lineterm=""
            ):
                click.echo(f"    {line}")
    sys.exit(1 if failed else 0)


def _failures(path: Path) -> "Iterator[tuple[str, Failure]]":
    # Only this command needs the server's packages.
    from alerting.rules.unit_tests import naming, run_test  # noqa: PLC0415

    with path.open(encoding="utf-8") as file:
        document = load_mapping(file)
    with naming(str(path)):
        rules: dict[str, RuleRequest] = {}
        for name in document.get("rule_files") or []:
            rule_paths = sorted(path.parent.glob(str(name)))
            if not rule_paths:
                raise InvalidInputError(f"rule_files: no file matches {str(name)!r}.")
            for rule_path in rule_paths:
                with naming(f"rule file {rule_path}"):
                    rules |= _read_rules(rule_path)
        with naming("evaluation_interval"):
            interval = _duration(document.get("evaluation_interval", "1m"))
        for number, test in enumerate(document.get("tests") or []):
            name = test.get("name") if isinstance(test, Mapping) else None
            where = f"tests.{number}" + (f" ({name})" if name else "")
            with naming(where):
                for failure in run_test(test, rules, evaluation_interval=interval):
                    yield f"{where}: ", failure


def _read_rules(path: Path) -> dict[str, RuleRequest]:
    """Return the rules of a file by name."""
    from alerting.rules.unit_tests import naming  # noqa: PLC0415 - as above

    rules = {}
    with path.open(encoding="utf-8") as file:
        entries = load_list(file, "rules")
    for number, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        with naming(f"rules.{number}" + (f" ({name})" if name else "")):
            if not name or "expression" not in entry:
                raise InvalidInputError("A rule needs a name and an expression.")
            rule = parse_expression(str(entry["expression"]))
            rules[name] = replace(rule, name=name, annotation=entry.get("annotation", ""))
    return rules


def _duration(value: object) -> float:
    try:
        return parse_duration(str(value))
    except ValueError as error:
        raise InvalidInputError(str(error)) from error


def _path(*, is_platform: bool) -> str:
    return "/platform/rules" if is_platform else "/rules"


def _apply(file: TextIO, path: str, **options: bool) -> list[dict[str, Any]]:
    entries = load_list(file, "rules")
    with Client() as client:
        answer = client.post(f"{path}/apply", {"rules": entries, **options})
    changes: list[dict[str, Any]] = answer["items"]
    return changes


def _lines(entry: Mapping[str, Any] | None) -> list[str]:
    # The keys of JSON objects are sorted.
    if entry is None:
        return []
    keys = _PLATFORM_KEYS if "tenant_ids" in entry else _KEYS
    shown = {key: entry[key] for key in keys if _is_given(entry, key)}
    return _text([shown]).splitlines()


def _is_given(entry: Mapping[str, Any], key: str) -> bool:
    return bool(entry[key]) or key not in _OPTIONAL


def _dump(entries: list[dict[str, Any]], file: TextIO) -> None:
    file.write(_text({"rules": entries}))


def _text(document: object) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000))
