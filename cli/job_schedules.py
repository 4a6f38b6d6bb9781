"""`vedette job schedule`: jobs that are submitted on a schedule."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, TextIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    output_option,
    print_object,
    print_rows,
    save_named,
)
from cli.job_common import secret
from cli.job_files import file_option, load_jobs
from core.errors import InvalidInputError
from vedette.client import Client

PAGE_SIZE = 100
_PATH = "/job-schedules"


@click.group()
def schedule() -> None:
    """Submit jobs on a schedule, and list their runs."""


@schedule.command("ls")
@output_option
def list_schedules(output: str) -> None:
    """List the schedules of your tenant."""
    columns: Columns = {
        "NAME": "name",
        "SCHEDULE": "schedule",
        "TIME ZONE": "time_zone",
        "NEXT RUN": lambda row: _local(row["next_run_at"], row["time_zone"]),
        "ENABLED": lambda row: "yes" if row["is_enabled"] else "no",
    }
    print_rows(fetch_items(_PATH), output, columns)


@schedule.command()
@click.argument("name")
@file_option
@click.option("--at", "times", required=True, help="Cron, @daily, or R/2026-01-01T02:00/P1D.")
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Oslo.")
@click.option(
    "--overlap",
    type=click.Choice(["skip", "allow", "replace"]),
    default="skip",
    show_default=True,
    help="If the previous run is still active; replace stops it.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "run_once"]),
    default="skip",
    show_default=True,
    help="After times at which the portal was down.",
)
@click.option("--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help="Repeatable.")
def save(name: str, file: TextIO, times: str, secrets: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's options
    """Create the schedule NAME for the job of a file, or replace yours."""
    job = {**_only_job(file)}
    if secrets:
        job["secrets"] = dict(secret(text, os.environ) for text in secrets)
    body = {"name": name, "schedule": times, "job": job, **options}
    with Client() as client:
        _print_saved(save_named(client, _PATH, body, all_items(client, _PATH)))


@schedule.command()
@click.argument("name")
@click.option("-f", "--file", "file", type=click.File(), help="YAML file with another job.")
@click.option("--at", "schedule", help="Cron, @daily, or R/2026-01-01T02:00/P1D.")
@click.option("--time-zone", help="Such as Europe/Oslo.")
@click.option("--overlap", type=click.Choice(["skip", "allow", "replace"]))
@click.option("--missed", type=click.Choice(["skip", "run_once"]))
@click.option("--rename", "new_name", help="New name.")
def edit(name: str, file: TextIO | None, new_name: str | None, **options: str | None) -> None:
    """Change the schedule NAME: only what you enter changes."""
    body: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    body |= {"name": new_name} if new_name else {}
    body |= {"job": _only_job(file)} if file else {}
    if not body:
        raise InvalidInputError("Nothing to change. Enter an option, such as --at.")
    with Client() as client:
        saved = client.patch(f"{_PATH}/{_id(client, name)}", body)
    _print_saved(saved)


@schedule.command()
@click.argument("name")
@output_option
def show(name: str, output: str) -> None:
    """Show a schedule with its next runs."""
    with Client() as client:
        schedule = client.get(f"{_PATH}/{_id(client, name)}")
    if output in {"json", "yaml"}:
        print_object(schedule, output)
    elif output == "name":
        click.echo(schedule["name"])
    else:
        for key in ("name", "schedule", "time_zone", "overlap", "missed", "user_email"):
            click.echo(f"{key.replace('_', ' '):<12} {schedule[key] or '-'}")
        for at in schedule["next_runs_at"]:
            click.echo(f"{'next run':<12} {_local(at, schedule['time_zone'])}")


@schedule.command()
@click.argument("name")
@output_option
def runs(name: str, output: str) -> None:
    """List the latest runs of a schedule with their outcomes."""
    with Client() as client:
        saved = _named(client, name)
        runs = client.get(f"{_PATH}/{saved['id']}/runs", page_size=PAGE_SIZE)["items"]
    columns: Columns = {
        "DUE": lambda run: _local(run["due_at"], saved["time_zone"]),
        "OUTCOME": "outcome",
        "JOB": lambda run: (run["job_id"] or "-")[-8:],
        "STATE": lambda run: run.get("job_state") or "-",
        "MESSAGE": "message",
    }
    print_rows(runs, "table" if output == "name" else output, columns)


@schedule.command()
@click.argument("name")
def run(name: str) -> None:
    """Submit a job of a schedule now."""
    with Client() as client:
        made = client.post(f"{_PATH}/{_id(client, name)}/run")
    click.echo(f"{made['outcome']} {made['job_id'] or made['message']}")


def _add_switch(action: str, help_text: str) -> None:
    @schedule.command(action, help=help_text)
    @click.argument("name")
    def switch(name: str) -> None:
        with Client() as client:
            client.post(f"{_PATH}/{_id(client, name)}/{action}")
        click.echo(f"{name} {action}d")


_add_switch("enable", "Enable a schedule.")
_add_switch("disable", "Disable a schedule.")


@schedule.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Delete a schedule; its jobs stay."""
    with Client() as client:
        client.delete(f"{_PATH}/{_id(client, name)}")
    click.echo(f"{name} deleted")


def _only_job(file: TextIO) -> Mapping[str, Any]:
    jobs = load_jobs(file)
    if len(jobs) != 1:
        raise InvalidInputError(f"The file has {len(jobs)} jobs; a schedule has one.")
    return jobs[0]


def _print_saved(saved: Mapping[str, Any]) -> None:
    time_zone = saved["time_zone"]
    following = _local(saved["next_run_at"], time_zone)
    click.echo(f"{saved['name']} saved, next run {following} ({time_zone})")


def _local(at: str | None, time_zone: str) -> str:
    """Return an instant on the clock of a schedule, such as `2026-03-27 02:00 CET`, or a dash."""
    if at is None:
        return "-"
    try:
        zone: tzinfo = ZoneInfo(time_zone)
    except ZoneInfoNotFoundError:  # this host lacks the database of time zones
        zone = UTC
    return f"{datetime.fromisoformat(at).astimezone(zone):%Y-%m-%d %H:%M %Z}"


def _id(client: Client, name: str) -> str:
    return str(_named(client, name)["id"])


def _named(client: Client, name: str) -> dict[str, Any]:
    for schedule in all_items(client, _PATH):
        if name in {schedule["name"], schedule["id"]}:
            return schedule
    raise InvalidInputError(f"No schedule named {name!r}. See: vedette job schedule ls")
