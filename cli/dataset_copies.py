"""`vedette dataset prefetch`, `unpin` and `copies`: datasets in the caches of appliances."""

from typing import Any

import click

from cli.client import Columns, all_items, one_named, output_option, print_rows
from cli.job_common import PAIR
from cli.local_time import local_minutes
from core.quantities import format_share
from vedette.client import Client

DATASETS = "/datasets"


@click.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(1), help="Its number. Defaults to the newest.")
@click.option("--appliance", default="", help="Only to this appliance (name or ID).")
@click.option(
    "--label",
    "labels",
    type=PAIR,
    multiple=True,
    metavar="KEY=VALUE",
    help="Only to appliances with this label. Repeatable.",
)
@click.option("--pin", "is_pinned", is_flag=True, help="Never evict it from the cache; for admins.")
@click.option(
    "--schedule",
    default="",
    metavar="CRON",
    help="When a changed source becomes a new version, which is fetched, such as '0 2 * * *'.",
)
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Oslo.")
def prefetch(
    name: str,
    version: int | None,
    labels: tuple[tuple[str, str], ...],
    **fields: Any,  # noqa: ANN401 - those of the options
) -> None:
    """Fetch dataset NAME to appliances ahead of jobs, and print the ID of the order.

    Appliances that come online later follow it, too. See where it is with: vedette dataset copies

    \b
    vedette dataset prefetch imagenet --label pool=train --schedule '0 2 * * *'
    """
    body = {**fields, "version": version or 0, "labels": dict(labels)}
    with Client() as client:
        made = client.post(f"{DATASETS}/{_named(client, name)['id']}/prefetches", body)
    click.echo(made["id"])


@click.command()
@click.argument("name")
@click.option("--appliance", help="Only from this appliance (name or ID).")
@click.option("--all", "is_all", is_flag=True, help="Delete prefetches that are no pins, too.")
def unpin(name: str, *, appliance: str | None, is_all: bool) -> None:
    """Delete the pins of dataset NAME; the copies stay until their place is needed."""
    with Client() as client:
        path = f"{DATASETS}/{_named(client, name)['id']}/prefetches"
        rows = [
            row
            for row in all_items(client, path)
            if (row["is_pinned"] or is_all)
            and appliance in {None, row["appliance_id"], row.get("appliance_name")}
        ]
        for row in rows:
            client.delete(f"{path}/{row['id']}")
            click.echo(f"{row['id']} deleted")
    if not rows:
        click.echo("There is nothing to delete.", err=True)


@click.command()
@click.argument("name")
@output_option
def copies(name: str, output: str) -> None:
    """List in which caches dataset NAME is."""
    with Client() as client:
        rows = list(all_items(client, f"{DATASETS}/{_named(client, name)['id']}/copies"))
    columns: Columns = {
        "APPLIANCE": "appliance_name",
        "VERSION": "version",
        "STATE": "state",
        "CACHED": lambda row: format_share(row["cached_bytes"], row["total_bytes"]),
        "LAST USED": lambda row: local_minutes(row["last_used_at"]),
        "MESSAGE": lambda row: row["message"] or "-",
    }
    print_rows(rows, output, columns, empty="No appliance has it yet.")


def _named(client: Client, name: str) -> dict[str, Any]:
    rows = all_items(client, DATASETS)
    return one_named(rows, name, noun="dataset", command="vedette dataset ls")
