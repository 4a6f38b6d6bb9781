"""`vedette market`: rent appliances of providers, and agree on contracts.

The commands of providers and operators are in `cli.market_offers`.
"""

from typing import Any, TextIO

import click

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    one_named,
    output_option,
    print_object,
    print_rows,
)
from cli.local_time import local_minutes
from cli.market_checks import check
from cli.market_offers import accounts, admit, load_texts, offer
from cli.market_reputation import reputation
from cli.market_standing import standing
from core.quantities import format_duration, format_size
from vedette.client import Client

_SIDES = click.Choice(["provider", "customer"])
_TEXTS = (
    *("public-name", "description", "legal-name", "address", "country", "tax-number"),
    "billing-email",
)


@click.group()
def market() -> None:
    """Rent appliances of other tenants, and offer your own."""


market.add_command(offer)
market.add_command(accounts)
market.add_command(admit)
market.add_command(reputation)
market.add_command(standing)
market.add_command(check)


@market.command()
@click.option("--gpu-model", help="A word of the model, such as H100.")
@click.option("--max-price", help="Of a GPU for an hour, such as 2.50.")
@click.option("--min-free-gpus", type=int, help="Free now on one appliance.")
@click.option("--region", help="The exact region.")
@click.option("--fact", "facts", multiple=True, help="A compliance fact, such as iso27001.")
@click.option("--min-availability", type=float, help="The promised percentage.")
@click.option("--text", help="A part of the offer's name or description, or the provider's name.")
@click.option("--open", "is_open", is_flag=True, help="Only where jobs may start now.")
@click.option("--sort", default="price", show_default=True, help="Such as -free_gpus,price.")
@output_option
def catalogue(
    *,
    facts: tuple[str, ...],
    min_availability: float | None,
    is_open: bool,
    output: str,
    **filters: Any,  # noqa: ANN401 - those of the options
) -> None:
    """List what can be rented, the cheapest first."""
    entries = fetch_items(
        "/market/catalogue",
        **filters,
        facts=",".join(facts) or None,
        min_availability_percent=min_availability,
        is_open="true" if is_open else None,
    )
    columns: Columns = {
        "OFFER": "offer_name",
        "PROVIDER": "provider_name",
        "GPU": "gpu_model",
        "MEMORY": lambda entry: format_size(entry["gpu_memory_bytes"]),
        "REGION": lambda entry: entry["region"] or "-",
        "FREE": lambda entry: f"{entry['free_gpus']} of {entry['gpus']}",
        "PRICE": lambda entry: f"{entry['price']} {entry['currency']}/h",
        "OPEN": lambda entry: "yes" if entry["is_open"] else "no",
        "ID": "offer_id",
    }
    empty = "Nothing on offer matches. Try fewer filters."
    print_rows(entries, output, columns, empty=empty, name="offer_name")


@market.command()
@output_option
def capacity(output: str) -> None:
    """List what can be rented now, by GPU model and region."""
    with Client() as client:
        items = client.get("/market/capacity")["items"]
    columns: Columns = {
        "GPU": "gpu_model",
        "REGION": lambda item: item["region"] or "-",
        "FREE": lambda item: f"{item['free_gpus']} of {item['gpus']}",
        "FROM": "lowest_price",
    }
    print_rows(items, output, columns, empty="Nothing can be rented now.", name="gpu_model")


@market.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def show(name: str, output: str) -> None:
    """Show offer NAME (or ID) of the catalogue with its terms."""
    with Client() as client:
        shown = _published(client, name)
    if output == "text":
        _show_offer(shown)
    else:
        print_object(shown, output)


@market.command()
@click.option("--request", "side", type=_SIDES, help="Ask the operator to admit your tenant.")
def account(side: str | None, **texts: str | None) -> None:
    """Show your tenant's account; change its texts, or ask for admission."""
    changes = {name: value for name, value in texts.items() if value is not None}
    with Client() as client:
        if changes:
            client.patch("/market/account", changes)
        if side:
            client.post("/market/account/request", {"side": side})
        shown = client.get("/market/account")
    for key, value in shown.items():
        click.echo(f"{key.replace('_', ' ')}: {'-' if value in {None, ''} else value}")


for _name in reversed(_TEXTS):
    account = click.option(f"--{_name}", help=f"Change the {_name.replace('-', ' ')}.")(account)


@market.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Accept the terms without a question.")
def take(name: str, *, yes: bool) -> None:
    """Take offer NAME (or ID) as it is: accept its terms."""
    with Client() as client:
        shown = _published(client, name)
        _show_offer(shown)
        if not yes:
            click.confirm("Do you accept these terms?", abort=True)
        body = {"offer_id": shown["offer_id"], "terms_hash": shown["terms_hash"]}
        made = client.post("/market/contracts", body)
    waits = ": the provider has to accept it" if made["state"] == "proposed" else ""
    click.echo(f"Contract {made['id']} is {made['state']}{waits}.")


@market.command()
@click.option("--side", type=_SIDES, help="Only those in which your tenant has this side.")
@output_option
def contracts(side: str | None, output: str) -> None:
    """List the contracts of your tenant, the newest first."""
    columns: Columns = {
        "OFFER": "offer_name",
        "PROVIDER": "provider_name",
        "CUSTOMER": "customer_name",
        "STATE": "state",
        "PRICE": lambda item: item["versions"][-1]["terms"]["price"],
        "ENDS": lambda item: local_minutes(item["ends_at"]),
        "ID": "id",
    }
    empty = "No contracts yet. See what can be rented: vedette market catalogue"
    print_rows(fetch_items("/market/contracts", side=side), output, columns, empty=empty, name="id")


@market.group()
def contract() -> None:
    """Show and change a contract."""


@contract.command("show")
@click.argument("contract_id")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def show_contract(contract_id: str, output: str) -> None:
    """Show a contract with the versions of its terms."""
    with Client() as client:
        shown = client.get(f"/market/contracts/{contract_id}")
    if output == "text":
        _show_contract(shown)
    else:
        print_object(shown, output)


@contract.command()
@click.argument("contract_id")
@click.option("-f", "--file", type=click.File(), required=True, help="Terms in YAML; - is stdin.")
@click.option("--note", default="", help="What the other side should know.")
def propose(contract_id: str, file: TextIO, note: str) -> None:
    """Propose other terms; give the ID of an offer for a new contract about it."""
    body = {"terms": load_texts(file), "note": note}
    with Client() as client:
        known_ids = {item["id"] for item in all_items(client, "/market/contracts")}
        if contract_id in known_ids:
            made = client.post(f"/market/contracts/{contract_id}/versions", body)
        else:
            made = client.post("/market/contracts/propose", {**body, "offer_id": contract_id})
    _show_contract(made)


@contract.command()
@click.argument("contract_id")
@click.argument("number", type=int)
@click.option("--yes", is_flag=True, help="Accept the terms without a question.")
def accept(contract_id: str, number: int, *, yes: bool) -> None:
    """Accept version NUMBER of a contract, which the other side proposed."""
    path = f"/market/contracts/{contract_id}"
    with Client() as client:
        versions = client.get(path)["versions"]
        version = next((item for item in versions if item["number"] == number), None)
        if version is not None:
            _show_terms(version["terms"])
        if not yes:
            click.confirm("Do you accept these terms?", abort=True)
        body = {"terms_hash": version["terms_hash"] if version else ""}
        _show_contract(client.post(f"{path}/versions/{number}/accept", body))


@contract.command()
@click.argument("contract_id")
@click.argument("number", type=int)
@click.option("--withdraw", is_flag=True, help="It is your own proposal: withdraw it.")
def decline(contract_id: str, number: int, *, withdraw: bool) -> None:
    """Decline version NUMBER of a contract, which the other side proposed."""
    action = "withdraw" if withdraw else "decline"
    with Client() as client:
        path = f"/market/contracts/{contract_id}/versions/{number}/{action}"
        _show_contract(client.post(path))


@contract.command()
@click.argument("contract_id")
def notice(contract_id: str) -> None:
    """Give notice: the contract ends after the notice period."""
    with Client() as client:
        _show_contract(client.post(f"/market/contracts/{contract_id}/notice"))


@contract.command()
@click.argument("contract_id")
@click.option("--reason", help="As the operator, end it at once; both sides see the reason.")
def end(contract_id: str, reason: str | None) -> None:
    """End a contract whose notice period has passed."""
    with Client() as client:
        path = f"/market/contracts/{contract_id}"
        if reason is None:
            ended = client.post(f"{path}/end")
        else:
            ended = client.post(f"{path}/terminate", {"reason": reason})
        _show_contract(ended)


@contract.command()
@click.argument("contract_id")
@click.argument("stars", type=click.IntRange(1, 5))
@click.option("--comment", default="", help="The provider reads it without your name.")
@click.option("--month", default="", help="Such as 2026-11; the latest that can be rated.")
def rate(contract_id: str, stars: int, comment: str, month: str) -> None:
    """Rate a contract of your tenant as its customer with 1 to 5 STARS, or change the rating."""
    body = {"stars": stars, "comment": comment, "month": month}
    with Client() as client:
        path = f"/market/reputation/contracts/{contract_id}/ratings"
        saved = client.post(path, body)
    click.echo(f"Rated {saved['month']} with {saved['stars']} of 5 stars.")


def _published(client: Client, name: str) -> dict[str, Any]:
    """Return an offer of the catalogue by name or ID."""
    entries = all_items(client, "/market/catalogue")
    offers = {item["offer_id"]: item["offer_name"] for item in entries}
    items = [{"id": ident, "name": offer_name} for ident, offer_name in offers.items()]
    command = "vedette market catalogue"
    ident = one_named(items, name, noun="offer", command=command)["id"]
    shown: dict[str, Any] = client.get(f"/market/catalogue/{ident}")
    return shown


def _show_offer(shown: dict[str, Any]) -> None:
    click.echo(f"{shown['name']} of {shown['provider_name']}")
    if shown["description"]:
        click.echo(shown["description"])
    for entry in shown["entries"]:
        free = f"{entry['free_gpus']} of {entry['gpus']} free"
        click.echo(f"{entry['gpu_model']}: {free}")
    _show_terms(shown["terms"])


def _show_terms(terms: dict[str, Any]) -> None:
    """Print the terms that are set, a line for each."""
    for key, value in terms.items():
        if value in ("", [], {}, 0, "0", False):
            continue
        if key == "service_level":
            _show_terms(value)
            continue
        text = format_duration(value) if key.endswith("_seconds") else value
        if isinstance(value, list):
            text = "; ".join(
                ", ".join(
                    f"{name.replace('_', ' ')} {part}" for name, part in item.items() if part != ""
                )
                for item in value
            )
        click.echo(f"  {key.replace('_', ' ')}: {text}")


def _show_contract(shown: dict[str, Any]) -> None:
    facts = {
        "contract": shown["id"],
        "offer": shown["offer_name"],
        "provider": shown["provider_name"],
        "customer": shown["customer_name"],
        "state": shown["state"],
        "starts": local_minutes(shown["starts_at"]),
        "ends": local_minutes(shown["ends_at"]),
    }
    for label, value in facts.items():
        click.echo(f"{label}: {value}")
    for version in shown["versions"]:
        by = version["proposed_by"] or "the published offer"
        line = f"version {version['number']}: {version['state']}, proposed by {by}"
        if version["accepted_by"]:
            line += f", accepted by {version['accepted_by']}"
        click.echo(line)
        if version["note"]:
            click.echo(f"  note: {version['note']}")
    _show_terms(shown["versions"][-1]["terms"])
