"""`vedette appliance`: list appliances and make the token that lets one join."""

import click

from cli.job import portal


@click.group()
def appliance() -> None:
    """List appliances and make enrolment tokens."""


@appliance.command("list")
@click.option("--state", help="Only appliances in this state.")
def list_appliances(state: str | None) -> None:
    """List the appliances of your tenant."""
    with portal() as client:
        page = client.get("/appliances", state=state, page_size=500)
    if not page["items"]:
        click.echo("No appliances yet. Make a token with: vedette appliance token")
    for item in page["items"]:
        gpus = len(item["inventory"].get("gpus", []))
        click.echo(f"{item['id']}  {item['state']:<11}  {gpus:>2} GPUs  {item['name']}")


@appliance.command()
@click.option("--site", default="", help="Where the appliance stands.")
@click.option("--region", default="")
@click.option("--uses", default=1, show_default=True, help="How many appliances may use it.")
def token(site: str, region: str, uses: int) -> None:
    """Make an enrolment token and print the command to paste on the appliance."""
    with portal() as client:
        made = client.post("/enrolment-tokens", {"site": site, "region": region, "uses": uses})
    click.echo(made["command"])
