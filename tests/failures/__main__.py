"""`python -m tests.failures`: makes a whole site fail in every way, and writes docs/failures.md."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pytest

from benchmarks.shared.document import Outcome, document
from core.clock import utc_now
from tests.failures import report
from tests.failures.alerts import add_rule, running_inbox
from tests.failures.jobs import Users
from tests.failures.run import Runner
from tests.failures.scenarios import SCENARIOS
from tests.failures.site import running_site
from tests.fixtures.docker_engine import skip_unless_installed
from tests.servers import require_root

FOLDER = Path("var/failures")


@click.command()
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(SCENARIOS)),
    metavar="NAME",
    help="Run this one; repeatable.",
)
@click.option("--list", "is_list", is_flag=True, help="Print the names of the scenarios.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
def main(*, names: tuple[str, ...], is_list: bool, folder: Path) -> None:
    """Run the scenarios, all by default; exit with 1 if a figure is not as promised."""
    if is_list:
        for scenario in SCENARIOS.values():
            click.echo(f"{scenario.name:22}{scenario.text}")
        return
    _require_servers()
    folder.mkdir(parents=True, exist_ok=True)
    is_kept = True
    for measured in _measured(names or tuple(SCENARIOS)):
        path = folder / f"{measured['benchmark']}.json"
        path.write_text(f"{json.dumps(measured, indent=2)}\n", encoding="utf-8")
        is_kept &= _show(measured)
    if missing := report.write(folder):
        click.echo(f"docs/failures.md is as before: never run were {', '.join(missing)}", err=True)
    sys.exit(not is_kept)


def _require_servers() -> None:
    try:
        require_root("mounts file systems and starts a Docker engine")
        skip_unless_installed()
    except pytest.skip.Exception as skip:
        raise click.ClickException(str(skip)) from None


def _measured(names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the document of each scenario, on one site."""
    settings = {"version": version("vedette")}
    # The path is short, because sockets lie in it.
    with TemporaryDirectory(prefix="vf-") as scratch, running_inbox() as inbox:
        click.echo("• starting the site", err=True)
        with running_site(Path(scratch)) as site:
            users = Users(site)
            add_rule(users, inbox)
            runner = Runner(site, users, inbox)
            for name in names:
                started_at = utc_now()
                result = runner.run(SCENARIOS[name])
                outcome = Outcome(asdict(result), result.promises())
                yield document(name, outcome, settings=settings, started_at=started_at)


def _show(measured: dict[str, Any]) -> bool:
    """Print how a scenario went; return whether all figures are as promised."""
    faults = [
        f"{promise['name']} is {promise['measured']:g} {promise['unit']}"
        for promise in measured["promises"]
        if not promise["is_kept"]
    ]
    seconds = max(measured["results"]["recovery_seconds"].values())
    click.echo(
        f"{'✗' if faults else '✓'} {measured['benchmark']:22}recovered in {seconds:4.1f} s"
        f"{'; ' if faults else ''}{', '.join(faults)}"
    )
    return not faults


if __name__ == "__main__":
    main()
