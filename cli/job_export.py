"""`vedette job export`: recorded jobs, for `vedette simulate --jobs`."""

import sys
from urllib.parse import urlencode

import click

from vedette.client import Client


@click.command("export")
@click.option("--since", help="RFC 3339, such as 2026-03-01T00:00:00Z. Defaults to 30 days ago.")
@click.option("--until", help="The same; exclusive. Defaults to now.")
@click.option("--anonymous", is_flag=True, help="Number the appliances instead of naming them.")
def export(since: str | None, until: str | None, *, anonymous: bool) -> None:
    """Print the jobs that were submitted in a period, as a recording of JSON lines.

    It has times, resources and limits, with numbers for users and projects, and no names of jobs,
    images or commands.

    \b
    vedette job export > jobs.jsonl
    """
    asked = {"since": since, "until": until, "anonymous": "true" if anonymous else None}
    query = urlencode({name: value for name, value in asked.items() if value})
    with Client() as client:
        content = client.download(f"/simulations/recording{'?' if query else ''}{query}")
    sys.stdout.buffer.write(content)
