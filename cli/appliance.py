"""`vedette appliance`: list appliances, create enrollment tokens, drain and retire."""

from collections.abc import Callable

import click

from cli.client import appliance_id
from vedette.client import Client


@click.group()
def appliance() -> None:
    """List, enroll, drain and retire appliances."""


@appliance.command("list")
@click.option("--state", help="Only this state, such as online, lost, drained or retired.")
@click.option("--label", help="Only this label: rack or rack=b12.")
@click.option("--search", help="Only with this text in the name, site, region or GPU model.")
def list_appliances(state: str | None, label: str | None, search: str | None) -> None:
    """List the appliances of your tenant. Retired ones are listed by --state retired."""
    with Client() as client:
        page = client.get("/appliances", status=state, label=label, search=search, page_size=500)
    if not page["items"] and not (state or label or search):
        click.echo("No appliances yet. Create an enrollment token with: vedette appliance token")
    for item in page["items"]:
        gpus = item["gpu_count"]
        click.echo(f"{item['id']}  {item['status']:<11}  {gpus:>2} GPUs  {item['name']}")
    if page["total"] > len(page["items"]):
        click.echo(
            f"... and {page['total'] - len(page['items'])} more. Use --search to narrow down."
        )


@appliance.command()
@click.argument("name")
def events(name: str) -> None:
    """Show the events of appliance NAME (or ID), newest first."""
    with Client() as client:
        page = client.get(f"/appliances/{appliance_id(client, name)}/events")
    for item in page["items"]:
        click.echo(f"{item['at'][:19]}  {item['kind']:<12}  {item['message']}")


@appliance.command()
@click.option("--site", default="", help="Site of the appliance.")
@click.option("--region", default="", help="Region of the appliance.")
@click.option(
    "--uses", default=1, show_default=True, help="How many appliances can enroll with it."
)
def token(site: str, region: str, uses: int) -> None:
    """Create an enrollment token and print the command to run on the appliance."""
    with Client() as client:
        made = client.post("/enrollment-tokens", {"site": site, "region": region, "uses": uses})
    click.echo(made["command"])


def _action(verb: str, help_text: str, result: str) -> Callable[[str], None]:
    """Add a command that calls one action of an appliance."""

    @appliance.command(verb, help=help_text)
    @click.argument("name")
    def act(name: str) -> None:
        with Client() as client:
            done = client.post(f"/appliances/{appliance_id(client, name)}/{verb}")
        click.echo(f"{done['name']} {result}")

    return act


_action("drain", "Stop placing jobs on NAME. Running jobs continue.", "is drained.")
_action("undrain", "Place jobs on NAME again.", "accepts jobs again.")
_action(
    "retire",
    "Take NAME out of service and keep its history. Fails while jobs run on it.",
    "is retired.",
)
_action("reinstate", "Return the retired appliance NAME to service.", "is back in service.")
