"""`vedette market check`: whether appliances are what they claim to be."""

from collections.abc import Mapping
from typing import Any

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
from vedette.client import Client

_STATES = click.Choice(["unverified", "pending", "passed", "failed"])


@click.group()
def check() -> None:
    """Show whether appliances are what they claim to be, and verify them."""


@check.command("list")
@click.option("--state", type=_STATES, help="Only those in this state.")
@output_option
def list_checks(state: str | None, output: str) -> None:
    """List the appliances that are verified: those that offers cover."""
    columns: Columns = {
        "APPLIANCE": "name",
        "STATE": "state",
        "SINCE": lambda item: local_minutes(item["since"]),
        "REASON": lambda item: item["reason"] or "-",
    }
    empty = "No appliance is verified. Offer some: vedette market offer apply"
    print_rows(fetch_items("/market/verifications", state=state), output, columns, empty=empty)


@check.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def show(name: str, output: str) -> None:
    """Show what was found of appliance NAME (or ID), and how to mend it."""
    with Client() as client:
        item = _verification(client, name)
    if output != "text":
        print_object(item, output)
        return
    click.echo(f"{item['name']}: {item['state']} since {local_minutes(item['since'])}")
    for finding in item["findings"]:
        click.echo(f"  {finding['severity']}: {finding['text']}")
        if finding["advice"]:
            click.echo(f"    {finding['advice']}")


@check.command()
@click.argument("name")
@output_option
def challenges(name: str, output: str) -> None:
    """List the challenges of appliance NAME (or ID)."""
    with Client() as client:
        path = f"/market/verifications/{_verification(client, name)['appliance_id']}/challenges"
        items = list(all_items(client, path))
    columns: Columns = {
        "NUMBER": "number",
        "OUTCOME": "outcome",
        "ORDERED": lambda item: local_minutes(item["ordered_at"]),
        "FAILED FOR": lambda item: _failures(item) or "-",
    }
    print_rows(items, output, columns, empty="It was not challenged yet.", name="number")


@check.command()
@click.argument("name")
def run(name: str) -> None:
    """Verify appliance NAME (or ID) as soon as it has no jobs."""
    with Client() as client:
        appliance = _appliance(client, name)
        client.post(f"/market/verifications/{appliance['id']}/verify")
    click.echo(f"{appliance['name']} is verified as soon as it has no jobs")


def _failures(item: Mapping[str, Any]) -> str:
    return ", ".join(
        finding["code"] for finding in item["findings"] if finding["severity"] == "failure"
    )


def _verification(client: Client, name: str) -> dict[str, Any]:
    item: dict[str, Any] = client.get(f"/market/verifications/{_appliance(client, name)['id']}")
    return item


def _appliance(client: Client, name: str) -> dict[str, Any]:
    items = all_items(client, "/appliances")
    return one_named(items, name, noun="appliance", command="vedette appliance list")
