"""`vedette silence`: silence alerts once or on a schedule; list and end silences."""

from datetime import UTC, datetime, timedelta

import click

from cli.client import Columns, fetch_items, output_option, print_rows
from cli.local_time import local_minutes
from core.clock import utc_now
from core.errors import InvalidInputError
from core.quantities import format_duration, parse_duration
from vedette.client import Client


@click.group()
def silence() -> None:
    """Silence alerts for some time."""


@silence.command()
@click.argument("matchers", nargs=-1, required=True)
@click.option("--duration", default="2h", show_default=True, help="Such as 30m, 2h or 3d.")
@click.option(
    "--start",
    help="RFC 3339, such as 2026-03-01T22:00:00Z; local without an offset. Defaults to now.",
)
@click.option("--comment", default="", help="Why.")
def add(matchers: tuple[str, ...], duration: str, start: str | None, comment: str) -> None:
    """Silence the alerts that match all MATCHERS, and print the ID.

    A matcher is LABEL=VALUE, or has !=, =~ or !~; labels are rule, severity, appliance and the
    alert's tags.

    \b
    vedette silence add 'rule=GPU too hot' 'appliance=~dgx-.*' --duration 3d
    """
    starts_at = utc_now() if start is None else _instant(start)
    try:
        ends_at = starts_at + timedelta(seconds=parse_duration(duration))
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"--duration: {error}") from None
    body = {
        "matchers": list(matchers),
        "starts_at": None if start is None else starts_at.isoformat(),
        "ends_at": ends_at.isoformat(),
        "comment": comment,
    }
    with Client() as client:
        click.echo(client.post("/silences", body)["id"])


@silence.command("ls")
@click.option("--state", type=click.Choice(["active", "pending", "expired"]), default="active")
@output_option
def list_silences(state: str, output: str) -> None:
    """List silences, by default the active ones."""
    columns: Columns = {
        "ID": "id",
        "ENDS": lambda silence: local_minutes(silence["ends_at"]),
        "CREATOR": lambda silence: silence["creator_email"] or "-",
        "MATCHERS": lambda silence: ", ".join(silence["matchers"]),
        "COMMENT": "comment",
    }
    silences = fetch_items("/silences", state=state)
    print_rows(silences, output, columns, empty=f"No {state} silences.", name="id")


@silence.command()
@click.argument("silence_ids", metavar="ID...", nargs=-1, required=True)
def expire(silence_ids: tuple[str, ...]) -> None:
    """End silences now; alerts that still fire are notified."""
    with Client() as client:
        for silence_id in silence_ids:
            expired = client.post(f"/silences/{silence_id}/expire")
            click.echo(f"{expired['id']} {expired['state']}")


@silence.group()
def window() -> None:
    """Silence alerts on a schedule: maintenance windows."""


@window.command("add")
@click.argument("name")
@click.argument("matchers", nargs=-1, required=True)
@click.option("--schedule", required=True, help="When it begins: cron, such as '0 22 * * 0'.")
@click.option("--duration", default="2h", show_default=True, help="Such as 30m, 2h or 3d.")
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Oslo.")
def add_window(
    name: str, matchers: tuple[str, ...], schedule: str, duration: str, time_zone: str
) -> None:
    """Add a maintenance window for the alerts that match all MATCHERS, and print its ID.

    \b
    vedette silence window add Updates 'label.rack=b12' --schedule '0 22 * * 0' --duration 4h
    """
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise InvalidInputError(f"--duration: {error}") from None
    body = {
        "name": name,
        "matchers": list(matchers),
        "schedule": schedule,
        "duration_seconds": seconds,
        "time_zone": time_zone,
    }
    with Client() as client:
        click.echo(client.post("/maintenance-windows", body)["id"])


@window.command("ls")
@output_option
def list_windows(output: str) -> None:
    """List maintenance windows."""
    columns: Columns = {
        "ID": "id",
        "NAME": "name",
        "SCHEDULE": lambda window: f"{window['schedule']} {window['time_zone']}",
        "DURATION": lambda window: format_duration(window["duration_seconds"]),
        "NEXT": lambda window: local_minutes(window["next_at"]),
        "MATCHERS": lambda window: ", ".join(window["matchers"]),
    }
    windows = fetch_items("/maintenance-windows")
    print_rows(windows, output, columns, empty="No maintenance windows.")


@window.command("rm")
@click.argument("window_ids", metavar="ID...", nargs=-1, required=True)
def remove_windows(window_ids: tuple[str, ...]) -> None:
    """Delete maintenance windows; a silence of one that is active ends."""
    with Client() as client:
        for window_id in window_ids:
            client.delete(f"/maintenance-windows/{window_id}")
            click.echo(f"{window_id} deleted")


def _instant(text: str) -> datetime:
    try:
        start = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            f"--start {text!r} is not a time. Write it like 2026-03-01T22:00:00Z."
        ) from None
    # A time without an offset is local, as those that commands print.
    return start.astimezone(UTC)
