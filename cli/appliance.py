"""`vedette appliance`: list appliances, make the token that lets one join, take one out of work."""

import click

from cli.appliance_names import appliance_id
from cli.job import portal


@click.group()
def appliance() -> None:
    """List appliances, let them join, drain and retire them."""


@appliance.command("list")
@click.option("--state", help="Only those in this state, such as online, lost, drained, retired.")
@click.option("--label", help="Only those with this label: rack or rack=b12.")
@click.option("--search", help="Only those with this text in name, site, region or GPU model.")
def list_appliances(state: str | None, label: str | None, search: str | None) -> None:
    """List the appliances of your tenant; without a state, those in service."""
    with portal() as client:
        page = client.get(
            "/appliances", life=state, label=label, search=search, is_brief=True, page_size=500
        )
    if not page["items"] and not (state or label or search):
        click.echo("No appliances yet. Make a token with: vedette appliance token")
    for item in page["items"]:
        gpus = item["gpu_count"]
        click.echo(f"{item['id']}  {item['life']:<11}  {gpus:>2} GPUs  {item['name']}")
    if page["total"] > len(page["items"]):
        click.echo(f"... and {page['total'] - len(page['items'])} more; narrow the list.")


@appliance.command()
@click.argument("name")
def events(name: str) -> None:
    """Tell what happened to the appliance NAME (or its id), the newest first."""
    with portal() as client:
        page = client.get(f"/appliances/{appliance_id(client, name)}/events")
    for item in page["items"]:
        click.echo(f"{item['at'][:19]}  {item['kind']:<12}  {item['message']}")


@appliance.command()
@click.option("--site", default="", help="Where the appliance stands.")
@click.option("--region", default="")
@click.option("--uses", default=1, show_default=True, help="How many appliances may use it.")
def token(site: str, region: str, uses: int) -> None:
    """Make an enrolment token and print the command to paste on the appliance."""
    with portal() as client:
        made = client.post("/enrolment-tokens", {"site": site, "region": region, "uses": uses})
    click.echo(made["command"])


def _act(verb: str, text: str, *, told: str) -> click.Command:
    """Return the command that does one thing to an appliance, and tells it in a line."""

    @click.argument("name")
    def act(name: str) -> None:
        with portal() as client:
            done = client.post(f"/appliances/{appliance_id(client, name)}/{verb}")
        click.echo(f"{done['name']} {told}")

    return click.command(verb, help=text)(act)


for _command in (
    _act("drain", "Give the appliance NAME no more jobs; those that run go on.",
         told="takes no new jobs."),
    _act("undrain", "Give the appliance NAME jobs again.", told="takes jobs again."),
    _act("retire", "Take the appliance NAME out of service, its history kept; not while jobs "
         "run on it.", told="is retired."),
    _act("reinstate", "Take the retired appliance NAME back into service.",
         told="is back in service."),
):  # fmt: skip
    appliance.add_command(_command)
