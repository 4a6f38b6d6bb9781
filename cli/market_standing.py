"""`vedette market standing`: how providers stand, appeals, and the operator's policy."""

import sys
from typing import Any, TextIO

import click

from cli.client import Columns, fetch_items, output_option, print_object, print_rows
from cli.local_time import local_minutes
from cli.market_offers import load_texts
from vedette.client import Client

_FORMAT = click.Choice(["text", "json", "yaml"])
_STATES = click.Choice(["good", "noticed", "suspended", "probation"])


@click.group()
def standing() -> None:
    """Show what follows for providers from their scores and from breaches."""


@standing.command()
@click.option("--tenant", "tenant_id", help="Another provider, by tenant ID, as the operator.")
@click.option("-o", "--output", type=_FORMAT, default="text")
def show(tenant_id: str | None, output: str) -> None:
    """Show how your tenant stands as a provider."""
    path = f"/market/standings/{tenant_id}" if tenant_id else "/market/standing"
    with Client() as client:
        _show(client.get(path), output)


@standing.command()
@click.option("--tenant", "tenant_id", help="Another provider, by tenant ID, as the operator.")
@output_option
def events(tenant_id: str | None, output: str) -> None:
    """List what changed and why, the newest first."""
    path = f"/market/standings/{tenant_id}" if tenant_id else "/market/standing"
    columns: Columns = {
        "TIME": lambda item: local_minutes(item["at"]),
        "CHANGE": "kind",
        "BY": lambda item: item["actor"] or "policy",
        "CAUSE": lambda item: " ".join(item["cause"].split()),
    }
    items = fetch_items(f"{path}/events")
    print_rows(items, output, columns, empty="Nothing has changed yet.", name="id")


@standing.command()
@click.argument("text")
def appeal(text: str) -> None:
    """Appeal against your tenant's suspension; TEXT says why, - reads it from stdin."""
    said = sys.stdin.read() if text == "-" else text
    with Client() as client:
        client.post("/market/standing/appeal", {"text": said})
    click.echo("Appeal sent to the operator.")


@standing.command("list")
@click.option("--state", type=_STATES, help="Only providers with this state.")
@output_option
def list_standings(state: str | None, output: str) -> None:
    """List how providers stand, as the operator."""
    columns: Columns = {
        "PROVIDER": "public_name",
        "STATE": "state",
        "SCORE": lambda item: f"{item['score']:.2f}",
        "BREACHES": lambda item: f"{item['breaches']} of {item['breach_limit']}",
        "LISTING": "listing",
        "FEE": "fee_points",
        "TENANT": "tenant_id",
    }
    items = fetch_items("/market/standings", state=state)
    print_rows(items, output, columns, empty="No providers.", name="public_name")


def _add_change(action: str, help_text: str) -> None:
    @standing.command(action, help=help_text)
    @click.argument("tenant_id")
    @click.option("--reason", required=True, help="The provider reads it.")
    def change(tenant_id: str, reason: str) -> None:
        with Client() as client:
            changed = client.post(f"/market/standings/{tenant_id}/{action}", {"reason": reason})
        click.echo(f"{changed['public_name']} is {changed['state']}")


_add_change("suspend", "Suspend provider TENANT_ID at once, as the operator.")
_add_change(
    "reinstate",
    "End the suspension, notice or probation of provider TENANT_ID, as the operator.",
)


@standing.command()
@click.option("--all", "is_all", is_flag=True, help="Also those that are decided.")
@output_option
def appeals(*, is_all: bool, output: str) -> None:
    """List appeals that wait: your tenant's, or all as the operator."""
    columns: Columns = {
        "ID": "id",
        "STATE": "state",
        "SENT": lambda item: local_minutes(item["created_at"]),
        "BY": "created_by",
        "TEXT": lambda item: " ".join(item["text"].split())[:60],
    }
    items = fetch_items("/market/appeals", state=None if is_all else "open")
    print_rows(items, output, columns, empty="No appeals.", name="id")


def _add_decision(action: str, help_text: str) -> None:
    @standing.command(action, help=help_text)
    @click.argument("appeal_id")
    @click.option("--answer", required=True, help="The provider reads it.")
    def decide(appeal_id: str, answer: str) -> None:
        with Client() as client:
            decided = client.post(f"/market/appeals/{appeal_id}/{action}", {"answer": answer})
        click.echo(f"Appeal {decided['state']}")


_add_decision("accept", "Accept an appeal, as the operator: the provider is back without limits.")
_add_decision("reject", "Reject an appeal, as the operator: the suspension goes on.")


@standing.command()
@click.option("-f", "--file", type=click.File(), help="Save the policy of a YAML file; - is stdin.")
@click.option("--note", default="", help="Why it changes, for other operators.")
@click.option("--preview", is_flag=True, help="Show which providers the file would change.")
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="yaml")
def policy(*, file: TextIO | None, note: str, preview: bool, output: str) -> None:
    """Show the policy, or preview or save another one, as the operator."""
    if preview and file is None:
        raise click.UsageError("--preview needs a file: -f policy.yaml")
    with Client() as client:
        if file is None:
            shown = client.get("/market/standing-policies/current")
        elif preview:
            wanted = {"policy": load_texts(file)}
            print_object(client.post("/market/standing-policies/preview", wanted), output)
            return
        else:
            body = {"policy": load_texts(file), "note": note}
            shown = client.post("/market/standing-policies", body)
            click.echo(f"Version {shown['number']} applies within five minutes.", err=True)
    print_object(shown["policy"], output)


def _show(shown: dict[str, Any], output: str) -> None:
    if output != "text":
        print_object(shown, output)
        return
    facts = {
        "provider": shown["public_name"],
        "state": shown["state"],
        "cause": shown["cause"] or "-",
        "time to mend": local_minutes(shown["mend_until"]),
        "returns": local_minutes(shown["returns_at"]),
        "probation until": local_minutes(shown["probation_until"]),
        "breaches": f"{shown['breaches']} of {shown['breach_limit']} that lead to notice",
        "score": f"{shown['score']:.2f}",
        "listing": shown["listing"],
        "prices compared": f"divided by {shown['placement_factor']:.2f}",
        "fee points of next month": shown["fee_points"],
        "appeal": shown["appeal"]["state"] if shown["appeal"] else "-",
    }
    for key, value in facts.items():
        click.echo(f"{key}: {value}")
    for text in shown["missing"]:
        click.echo(f"- {text}")
