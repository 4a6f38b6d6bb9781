"""`vedette data-settings`: where a tenant's results go, and who serves its datasets."""

from typing import Any

import click

from cli.client import all_items, one_named, print_object
from vedette.client import Client

CONNECTIONS = "/data-connections"


@click.command("data-settings")
@click.option(
    "--allow-peers/--no-peers",
    "allows_peers",
    default=None,
    help="Whether appliances of one site fetch datasets from each other first.",
)
@click.option(
    "--results-connection",
    metavar="NAME",
    help="Data connection of the bucket for results; '' is the portal's store.",
)
@click.option(
    "--results-retention-days",
    type=click.IntRange(min=0),
    help="Results are deleted after so many days; 0 is as long as their jobs.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def data_settings(
    *,
    allows_peers: bool | None,
    results_connection: str | None,
    results_retention_days: int | None,
    output: str,
) -> None:
    """Print where results go, and who serves datasets; with options, change it.

    \b
    vedette data-settings --allow-peers --results-retention-days 90
    """
    changes: dict[str, Any] = {}
    if allows_peers is not None:
        changes["allows_peers"] = allows_peers
    if results_retention_days is not None:
        changes["results_retention_days"] = results_retention_days or None
    with Client() as client:
        if results_connection is not None:
            changes["results_connection_id"] = _connection_id(client, results_connection)
        path = f"/tenants/{client.get('/me')['tenant_id']}/data-settings"
        settings = client.patch(path, changes) if changes else client.get(path)
    print_object(settings, output)


def _connection_id(client: Client, name: str) -> str | None:
    if not name:
        return None
    rows = all_items(client, CONNECTIONS)
    row = one_named(rows, name, noun="data connection", command="vedette data-connection ls")
    return str(row["id"])
