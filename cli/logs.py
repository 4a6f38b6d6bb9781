"""`vedette logs`: lines of jobs and appliances and the portal's events, through the REST API."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from cli.client import appliance_id
from cli.local_time import local_seconds
from core.clock import utc_now
from core.errors import InvalidInputError
from core.quantities import parse_duration
from protocol.lines import LogLevel
from vedette.client import Client

SOURCES = ("job", "appliance", "event", "alert", "audit")
_COLORS = {LogLevel.WARNING: "yellow", LogLevel.ERROR: "red", LogLevel.CRITICAL: "bright_red"}


@click.command()
@click.argument("search", default="")
@click.option("--since", help="RFC 3339, or relative such as -6h. Defaults to an hour ago.")
@click.option("--until", help="The same; exclusive. Defaults to now.")
@click.option("--source", type=click.Choice(SOURCES), multiple=True, help="Repeatable.")
@click.option("--level", type=click.Choice([level.value for level in LogLevel]), help="The least.")
@click.option("--appliance", help="Name or ID.")
@click.option("--job", help="Name or ID.")
@click.option(
    "--rank",
    default="0",
    show_default=True,
    help="With a gang as job, the member of this rank; `all` for all.",
)
@click.option("--unit", help="systemd unit, kernel, stdout or stderr.")
@click.option("--lines", "-n", default=100, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def logs(search: str, lines: int, output: str, *, follow: bool, **options: Any) -> None:  # noqa: ANN401 - of several types
    """Print the last lines that match a SEARCH, oldest first.

    \b
    vedette logs '"out of memory"' --since -1d --level error
    vedette logs xid --source appliance -f
    """
    with Client() as client:
        filters = _filters(client, search, **options)
        try:
            _print(reversed(list(client.search_logs(limit=lines, **filters))), output)
            if follow:
                _print(client.follow_search(**filters), output)
        except KeyboardInterrupt:
            return


def _filters(
    client: Client,
    search: str,
    *,
    appliance: str | None,
    job: str | None,
    **options: Any,  # noqa: ANN401 - of several types
) -> dict[str, Any]:
    own = client.job(job) if job else None
    return {
        "search": search or None,
        "since": _instant("--since", options["since"]),
        "until": _instant("--until", options["until"]),
        "source": ",".join(options["source"]) or None,
        "level": options["level"],
        "unit": options["unit"],
        "appliance_id": appliance_id(client, appliance) if appliance else None,
        "job_id": own and own.id,
        "rank": _rank(options["rank"])
        if own and own.nodes > 1 and own.array_id == own.id
        else None,
    }


def _rank(text: str) -> str | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidInputError(f"--rank: {text!r} is no rank; enter 0 or more, or all.")
    return text


def _instant(option: str, text: str | None) -> str | None:
    if text is None or not text.startswith("-"):
        return text
    try:
        seconds = parse_duration(text[1:])
    except ValueError as error:
        raise InvalidInputError(f"{option}: {error}") from None
    return (utc_now() - timedelta(seconds=seconds)).isoformat()


def _print(lines: Iterable[dict[str, Any]], output: str) -> None:
    for line in lines:
        if output == "json":
            click.echo(json.dumps(line, ensure_ascii=False))
            continue
        level = LogLevel(line["level"])
        at = click.style(local_seconds(line["at"]), dim=True)
        word = click.style(f"{level.value:8}", fg=_COLORS.get(level))
        who = " ".join(filter(None, (line["appliance_name"], line["job_name"] or line["unit"])))
        click.echo(f"{at} {word} {who}: {line['text']}")
