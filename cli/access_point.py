"""`vedette access-point`: the addresses at which agents reach the portal, for operators."""

from collections.abc import Mapping
from typing import Any

import click

from cli.client import Columns, all_items, one_named, output_option, print_rows
from core.errors import InvalidInputError
from core.quantities import format_size
from vedette.client import Client

_PATH = "/access-points"
_TENANTS = "/tenants"
_LIST = "vedette access-point list"


@click.group("access-point")
def access_point() -> None:
    """Manage the addresses at which agents reach the portal (operators only)."""


@access_point.command("list")
@output_option
def list_access_points(output: str) -> None:
    """List the access points, with the state of relays."""
    with Client() as client:
        items = list(all_items(client, _PATH))
        slugs = {None: "all"} | {row["id"]: row["slug"] for row in all_items(client, _TENANTS)}
    if not items and output == "table":
        click.echo("No access points yet. Add one with: vedette access-point add NAME URL")
        return
    columns: Columns = {
        "NAME": "name",
        "URL": "url",
        "TYPE": "kind",
        "REGION": lambda item: item["region"] or "-",
        "TENANT": lambda item: str(slugs.get(item["tenant_id"], item["tenant_id"])),
        "WEIGHT": "weight",
        "AGENTS": "agents",
        "STATE": lambda item: item["state"].replace("_", " "),
        "SPOOL": _spool,
    }
    print_rows(items, output, columns)


@access_point.command()
@click.argument("name")
@click.argument("url")
@click.option("--relay", is_flag=True, help="It is a relay: print the settings with its token.")
@click.option("--region", default="", help="Such as eu-central; for your lists.")
@click.option("--weight", type=int, default=100, show_default=True, help="0 to 1000.")
@click.option("--tenant", help="The only tenant whose appliances use it (slug or ID).")
def add(*, relay: bool, tenant: str | None, **fields: Any) -> None:  # noqa: ANN401 - those of the options
    """Add an access point at URL, which agents learn of with their next heartbeats.

    \b
    vedette access-point add frankfurt https://fra.example.com --relay > relay.env
    """
    body = {**fields, "kind": "relay" if relay else "direct"}
    with Client() as client:
        if tenant is not None:
            body["tenant_id"] = _tenant_id(client, tenant)
        made = client.post(_PATH, body)
    click.echo(made["settings"] if relay else made["id"], nl=not relay)


@access_point.command("set")
@click.argument("name")
@click.option("--name", "new_name", help="Its new name.")
@click.option("--url", help="Its new address.")
@click.option("--region")
@click.option("--weight", type=int, help="0 to 1000; with 0 its agents leave it.")
@click.option("--tenant", help="The only tenant whose appliances use it (slug or ID); 'all'.")
def change(name: str, new_name: str | None, tenant: str | None, **changed: object) -> None:
    """Change access point NAME (or ID); what you leave out stays."""
    body: dict[str, object] = {
        key: value for key, value in {"name": new_name, **changed}.items() if value is not None
    }
    if not body and tenant is None:
        raise click.UsageError("Give at least one option, such as --weight 0.")
    with Client() as client:
        if tenant is not None:
            body["tenant_id"] = _tenant_id(client, tenant)
        done = client.patch(f"{_PATH}/{_named(client, name)['id']}", body)
    click.echo(f"{done['name']} changed")


@access_point.command()
@click.argument("name")
def token(name: str) -> None:
    """Create a new token of relay NAME (or ID), and print its settings.

    The old token is refused at once.
    """
    with Client() as client:
        made = client.post(f"{_PATH}/{_named(client, name)['id']}/token")
    click.echo(made["settings"], nl=False)


@access_point.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove access point NAME (or ID): agents leave it, and a relay's token is refused at once.

    What a relay has in its spool is lost: set its weight to 0 first, and wait until it is empty.
    """
    with Client() as client:
        item = _named(client, name)
        client.delete(f"{_PATH}/{item['id']}")
    click.echo(f"{item['name']} removed")


def _named(client: Client, name_or_id: str) -> dict[str, Any]:
    items = all_items(client, _PATH)
    return one_named(items, name_or_id, noun="access point", command=_LIST)


def _tenant_id(client: Client, slug_or_id: str) -> str | None:
    """Return the ID of a tenant; None for `all`."""
    if slug_or_id == "all":
        return None
    for row in all_items(client, _TENANTS):
        if slug_or_id in {row["slug"], row["id"]}:
            return str(row["id"])
    raise InvalidInputError(
        f"There is no tenant {slug_or_id!r}. On the portal's host, see: vedette tenant list"
    )


def _spool(item: Mapping[str, Any]) -> str:
    if not item["max_spool_bytes"]:
        return "-"
    return f"{format_size(item['spool_bytes'])} of {format_size(item['max_spool_bytes'])}"
