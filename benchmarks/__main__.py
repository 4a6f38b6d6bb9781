"""Runs benchmarks: each module of this folder has `FULL` and `QUICK` plans, and `measure`."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pytest

from benchmarks.shared import report
from benchmarks.shared.document import BenchmarkError, document
from core.clock import utc_now

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--quick", is_flag=True, help="A few seconds of each: do they run?")
@click.option("--set", "changes", multiple=True, metavar="SETTING=NUMBER", help="Change a plan.")
@click.option("--folder", type=click.Path(path_type=Path), default=report.FOLDER, show_default=True)
@click.option("--report", "is_report", is_flag=True, help="Only write docs/benchmarks.md.")
def main(
    *, names: tuple[str, ...], quick: bool, changes: tuple[str, ...], folder: Path, is_report: bool
) -> None:
    """Run benchmarks, all by default; store and print their JSON documents."""
    if is_report:
        report.write(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    documents = {}
    for name in names or NAMES:
        click.echo(f"• {name}", err=True)
        try:
            documents[name] = measured(name, quick=quick, changes=dict(_settings(changes)))
        # The servers of the tests skip a test where a program is missing.
        except (BenchmarkError, pytest.skip.Exception) as error:
            raise click.ClickException(f"{name}: {error}") from None
        text = json.dumps(documents[name], indent=2)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    print(json.dumps(documents, indent=2))


def measured(name: str, *, quick: bool, changes: dict[str, float]) -> dict[str, Any]:
    """Run a benchmark in a scratch folder; return its document."""
    module = import_module(f"benchmarks.{name}")
    plan = replace(module.QUICK if quick else module.FULL, **changes)
    started_at = utc_now()
    # The path is short, because sockets lie in it.
    with TemporaryDirectory(prefix="vb-") as folder:
        outcome = module.measure(plan, Path(folder))
    return document(name, outcome, settings=asdict(plan), started_at=started_at)


def _settings(changes: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for change in changes:
        name, _, text = change.partition("=")
        try:
            yield name, int(text) if text.isdigit() else float(text)
        except ValueError:
            raise click.BadParameter(f"{change!r} is not SETTING=NUMBER") from None


if __name__ == "__main__":
    main()
