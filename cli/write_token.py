"""`vedette write-token`: tokens with which programs other than the agent send samples."""

import click

from cli.client import Columns, output_option, print_rows
from cli.local_time import local_seconds
from vedette.client import Client

_PROGRAMS = ("telegraf", "collectd", "prometheus", "otel_collector", "vmagent")


@click.group("write-token")
def write_token() -> None:
    """Create, list and revoke tokens of hosts without the agent."""


@write_token.command()
@click.argument("appliances", default="*")
@click.option("--name", default="", help="Identifies the token in the list.")
@click.option("--days", default=365.0, show_default=True, help="How long it is valid.")
@click.option(
    "--for",
    "program",
    type=click.Choice(_PROGRAMS),
    help="Print the configuration of this program in place of the token.",
)
def create(appliances: str, *, name: str, days: float, program: str | None) -> None:
    """Create a token that writes metrics of APPLIANCES: a name, a pattern, or * for all."""
    body = {"appliance_pattern": appliances, "name": name, "lifetime_days": days}
    with Client() as client:
        made = client.post("/write-tokens", body)
    texts = {item["name"]: item["text"] for item in made["configurations"]}
    click.echo(texts[program] if program else made["token"])


@write_token.command("list")
@output_option
def list_tokens(output: str) -> None:
    """List the write tokens that can be used, newest first."""
    with Client() as client:
        items = client.get("/write-tokens", is_usable=True, page_size=500)["items"]
    if not items and output == "table":
        click.echo("No write tokens yet. Create one with: vedette write-token create")
        return
    columns: Columns = {
        "ID": "id",
        "APPLIANCES": "appliance_pattern",
        "LAST USED": lambda row: (
            local_seconds(row["last_used_at"]) if row["last_used_at"] else "never"
        ),
        "EXPIRES": lambda row: local_seconds(row["expires_at"]),
        "NAME": "name",
    }
    print_rows(items, output, columns)


@write_token.command()
@click.argument("token_id")
def revoke(token_id: str) -> None:
    """Revoke the token with this ID: what is sent with it is refused at once."""
    with Client() as client:
        client.post(f"/write-tokens/{token_id}/revoke")
    click.echo("Revoked.")
