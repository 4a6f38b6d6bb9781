"""`vedette appliance`: list appliances, make the token that lets one join, take one out of work."""

from typing import Any

import click

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
@click.argument("appliance_id")
def events(appliance_id: str) -> None:
    """Tell what happened to an appliance, the newest first."""
    with portal() as client:
        page = client.get(f"/appliances/{appliance_id}/events")
    for item in page["items"]:
        click.echo(f"{item['at'][:19]}  {item['kind']:<12}  {item['message']}")


@appliance.command()
@click.argument("appliance_id")
def drain(appliance_id: str) -> None:
    """Give an appliance no more jobs; those that run go on."""
    done = _do(appliance_id, "drain")
    click.echo(f"{done['name']} takes no new jobs.")


@appliance.command()
@click.argument("appliance_id")
def undrain(appliance_id: str) -> None:
    """Give an appliance jobs again."""
    done = _do(appliance_id, "undrain")
    click.echo(f"{done['name']} takes jobs again.")


@appliance.command()
@click.argument("appliance_id")
def retire(appliance_id: str) -> None:
    """Take an appliance out of service, its history kept; not while jobs run on it."""
    done = _do(appliance_id, "retire")
    click.echo(f"{done['name']} is retired.")


@appliance.command()
@click.argument("appliance_id")
def reinstate(appliance_id: str) -> None:
    """Take a retired appliance back into service."""
    done = _do(appliance_id, "reinstate")
    click.echo(f"{done['name']} is back in service.")


@appliance.command()
@click.option("--site", default="", help="Where the appliance stands.")
@click.option("--region", default="")
@click.option("--uses", default=1, show_default=True, help="How many appliances may use it.")
def token(site: str, region: str, uses: int) -> None:
    """Make an enrolment token and print the command to paste on the appliance."""
    with portal() as client:
        made = client.post("/enrolment-tokens", {"site": site, "region": region, "uses": uses})
    click.echo(made["command"])


def _do(appliance_id: str, verb: str) -> dict[str, Any]:
    with portal() as client:
        done: dict[str, Any] = client.post(f"/appliances/{appliance_id}/{verb}")
    return done
