"""`vedette reports`: list, download and email saved reports, and keep them in a file.

reports:
  - name: Monthly GPU time
    kind: gpu-time
    by: user
    period: last-month
    time_zone: Europe/Oslo
    schedule: 0 7 1 * *
    recipients: [alice@acme.example]
"""

from typing import Any, TextIO

import click
import yaml

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    load_list,
    one_named,
    output_option,
    print_rows,
)
from cli.local_time import local_minutes
from core.errors import InvalidInputError
from vedette.client import Client

_COLORS = {"create": "green", "update": "yellow", "keep": None}
# The keys of a report in a file; empty values are left out.
_KEYS = (
    *("name", "kind", "by", "period", "time_zone", "appliances"),
    *("price_per_kilowatt_hour", "target_percent", "schedule", "file_format", "recipients"),
)


@click.group()
def reports() -> None:
    """List, download and email saved reports, and keep them in a file."""


@reports.command("ls")
@output_option
def list_reports(output: str) -> None:
    """List the saved reports of your tenant."""
    columns: Columns = {
        "NAME": "name",
        "REPORT": lambda report: f"{report['kind']} by {report['by']}",
        "PERIOD": "period",
        "NEXT EMAIL": lambda report: local_minutes(report["next_run_at"]),
        "LAST ERROR": lambda report: report["last_error"] or "-",
        "AUTHOR": "user_email",
    }
    empty = "No saved reports yet. Save some: vedette reports apply -f FILE"
    print_rows(fetch_items("/saved-reports"), output, columns, empty=empty)


@reports.command()
@click.option("-f", "--file", type=click.File(), required=True, help="YAML file; - reads stdin.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
def apply(file: TextIO, *, dry_run: bool) -> None:
    """Create and update the saved reports of a file, by name. On any error nothing changes."""
    body = {"reports": load_list(file, "reports"), "is_dry_run": dry_run}
    with Client() as client:
        changes = client.post("/saved-reports/apply", body)["items"]
    for change in changes:
        click.secho(f"{change['action']:<7} {change['name']}", fg=_COLORS[change["action"]])


@reports.command()
@click.argument("names", nargs=-1)
@click.option("-f", "--file", type=click.File("w"), default="-", help="Defaults to stdout.")
def export(names: tuple[str, ...], file: TextIO) -> None:
    """Write the saved reports with these NAMES, or all, as a file for `apply`."""
    with Client() as client:
        reports = {report["name"]: report for report in all_items(client, "/saved-reports")}
    missing = sorted(set(names) - reports.keys())
    if missing:
        message = f"There is no saved report {missing[0]!r}. See: vedette reports ls"
        raise InvalidInputError(message)
    document = {"reports": [_entry(reports[name]) for name in names or reports]}
    file.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


@reports.command()
@click.argument("name")
@click.option("-f", "--file", type=click.File("wb"), default="-", help="Defaults to stdout.")
def download(name: str, file: Any) -> None:  # noqa: ANN401 - click's binary file
    """Write a saved report as it is now, in its format: CSV, XLSX or PDF."""
    with Client() as client:
        file.write(client.download(f"/saved-reports/{_ident(client, name)}/export"))


@reports.command()
@click.argument("name")
def send(name: str) -> None:
    """Email a saved report to its recipients now."""
    with Client() as client:
        count = client.post(f"/saved-reports/{_ident(client, name)}/send")["emails"]
    click.echo(f"{count} email{'' if count == 1 else 's'} added to the outbox")


def _add_switch(action: str, help_text: str) -> None:
    @reports.command(action, help=help_text)
    @click.argument("name")
    def switch(name: str) -> None:
        with Client() as client:
            client.post(f"/saved-reports/{_ident(client, name)}/{action}")
        click.echo(f"{name} {action}d")


_add_switch("pause", "Pause the emails of a saved report.")
_add_switch("resume", "Resume the emails of a saved report, from its next time on.")


@reports.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Delete a saved report by its name or ID."""
    with Client() as client:
        client.delete(f"/saved-reports/{_ident(client, name)}")
    click.echo(f"{name} deleted")


def _ident(client: Client, name: str) -> str:
    command = "vedette reports ls"
    reports = all_items(client, "/saved-reports")
    report = one_named(reports, name, noun="saved report", command=command)
    return str(report["id"])


def _entry(report: dict[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in report if key in _KEYS and report[key]}
