"""`vedette silence`: silence alerts for some time, list silences, and end them early."""

from datetime import UTC, datetime, timedelta

import click

from cli.client import output_option, print_items
from core.clock import utc_now
from core.errors import InvalidInputError
from core.quantities import parse_duration
from vedette.client import Client


@click.group()
def silence() -> None:
    """Silence alerts for some time."""


@silence.command()
@click.argument("matchers", nargs=-1, required=True)
@click.option("--duration", default="2h", show_default=True, help="Such as 30m, 2h or 3d.")
@click.option("--start", help="RFC 3339, such as 2026-03-01T22:00:00Z. Defaults to now.")
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
    with Client() as client:
        found = client.get("/silences", state=state, page_size=100)["items"]
    if output == "table" and not found:
        click.echo(f"No {state} silences.", err=True)
        return
    columns = {
        "ID": [one["id"] for one in found],
        "ENDS": [one["ends_at"][:16] for one in found],
        "CREATOR": [one["creator_email"] or "-" for one in found],
        "MATCHERS": [", ".join(one["matchers"]) for one in found],
        "COMMENT": [one["comment"] for one in found],
    }
    named = [one | {"name": one["id"]} for one in found] if output == "name" else found
    print_items(named, output, columns=columns)


@silence.command()
@click.argument("silence_ids", metavar="ID...", nargs=-1, required=True)
def expire(silence_ids: tuple[str, ...]) -> None:
    """End silences now; alerts that still fire are notified."""
    with Client() as client:
        for silence_id in silence_ids:
            expired = client.post(f"/silences/{silence_id}/expire")
            click.echo(f"{expired['id']} {expired['state']}")


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            f"--start {text!r} is not a time. Write it like 2026-03-01T22:00:00Z."
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
