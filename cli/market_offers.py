"""`vedette market offer`, `accounts` and `admit`: what providers and operators do.

An offer is kept in a file:

name: H100s in Oslo
labels: {pool: rent}
terms:
  currency: EUR
  price: "2.45"
  region: eu-north
"""

from collections.abc import Mapping
from datetime import date
from typing import Any, TextIO

import click

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    load_mapping,
    one_named,
    output_option,
    print_object,
    print_rows,
)
from core.errors import InvalidInputError
from vedette.client import Client

_COMMAND = "vedette market offer list"


@click.group()
def offer() -> None:
    """Offer appliances of your tenant to others."""


@offer.command("list")
@output_option
def list_offers(output: str) -> None:
    """List the offers of your tenant."""
    columns: Columns = {
        "NAME": "name",
        "STATE": "state",
        "PRICE": lambda item: f"{item['terms']['price']} {item['terms']['currency']}/h",
        "REGION": lambda item: item["terms"]["region"] or "-",
        "APPLIANCES": _covered,
    }
    empty = "No offers yet. Write one: vedette market offer apply -f FILE"
    print_rows(fetch_items("/market/offers"), output, columns, empty=empty)


@offer.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="yaml")
def show(name: str, output: str) -> None:
    """Show offer NAME (or ID) as `apply` reads it, with its state."""
    with Client() as client:
        print_object(_offer(client, name), output)


@offer.command()
@click.argument("name")
@output_option
def appliances(name: str, output: str) -> None:
    """List the appliances that offer NAME covers now."""
    with Client() as client:
        path = f"/market/offers/{_offer(client, name)['id']}/appliances"
        items = list(all_items(client, path))
    columns: Columns = {
        "NAME": "name",
        "GPU": "gpu_model",
        "FREE": lambda item: f"{item['free_gpus']} of {item['gpu_count']}",
        "PRICE": "price",
        "OPEN": lambda item: "yes" if item["is_open"] else "no",
    }
    empty = "It covers no appliances now: publish it, or check its labels."
    print_rows(items, output, columns, empty=empty)


@offer.command()
@click.option("-f", "--file", type=click.File(), required=True, help="YAML file; - reads stdin.")
@click.option("--publish", is_flag=True, help="Publish it, too.")
def apply(file: TextIO, *, publish: bool) -> None:
    """Create the offer of a file, or replace the one with its name."""
    body = load_texts(file)
    if not body.get("name"):
        raise InvalidInputError("The file has no name of an offer. Expected: name, terms, labels.")
    with Client() as client:
        own = all_items(client, "/market/offers")
        present = next((item for item in own if item["name"] == body["name"]), None)
        if present is None:
            saved = client.post("/market/offers", body)
        else:
            saved = client.patch(f"/market/offers/{present['id']}", body)
        if publish and saved["state"] != "published":
            saved = client.post(f"/market/offers/{saved['id']}/publish")
    click.echo(f"{saved['name']} is {saved['state']}")


def _add_action(action: str, help_text: str) -> None:
    @offer.command(action, help=help_text)
    @click.argument("name")
    def act(name: str) -> None:
        with Client() as client:
            changed = client.post(f"/market/offers/{_offer(client, name)['id']}/{action}")
        click.echo(f"{changed['name']} is {changed['state']}")


_add_action("publish", "Publish offer NAME: it is in the catalogue at once.")
_add_action("pause", "Pause offer NAME: it takes no new contracts, those that exist go on.")
_add_action("withdraw", "Withdraw offer NAME for good; contracts that exist go on.")


@click.command()
@output_option
def accounts(output: str) -> None:
    """List the tenants on the marketplace, as the operator."""
    columns: Columns = {
        "NAME": "public_name",
        "PROVIDER": "provider_state",
        "CUSTOMER": "customer_state",
        "TENANT": "tenant_id",
    }
    empty = "No tenant has asked to be on the marketplace yet."
    print_rows(fetch_items("/market/accounts"), output, columns, empty=empty, name="public_name")


@click.command()
@click.argument("tenant_id")
@click.argument("side", type=click.Choice(["provider", "customer"]))
@click.option("--suspend", "state", flag_value="suspended", help="Suspend it.")
@click.option("--decline", "state", flag_value="none", help="Decline its request.")
def admit(tenant_id: str, side: str, state: str | None) -> None:
    """Admit tenant TENANT_ID as a provider or customer, as the operator."""
    body = {"side": side, "state": state or "active"}
    with Client() as client:
        changed = client.post(f"/market/accounts/{tenant_id}/admission", body)
    click.echo(f"{changed['public_name']} as a {side}: {changed[f'{side}_state']}")


def load_texts(file: TextIO) -> dict[str, Any]:
    """Return the mapping of a YAML file, with dates as the texts that they were written as."""
    loaded: dict[str, Any] = _texts(load_mapping(file))
    return loaded


def _texts(value: Any) -> Any:  # noqa: ANN401 - any part of a document
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _texts(part) for key, part in value.items()}
    return [_texts(part) for part in value] if isinstance(value, list) else value


def _offer(client: Client, name: str) -> dict[str, Any]:
    offers = all_items(client, "/market/offers")
    return one_named(offers, name, noun="offer", command=_COMMAND)


def _covered(item: Mapping[str, Any]) -> str:
    """Return what an offer names: labels, or a number of appliances."""
    labels = ",".join(f"{key}={value}" for key, value in item["labels"].items())
    named = f"{len(item['appliance_ids'])} named" if item["appliance_ids"] else ""
    return " and ".join(filter(None, (labels, named)))
