"""`vedette appliance rollout`: update agents to the portal's version, in stages."""

from typing import Any

import click

from cli.client import Columns, output_option, print_object, print_rows
from cli.local_time import local_seconds
from core.quantities import parse_duration
from vedette.client import Client

_PAGE_SIZE = 500


@click.group()
def rollout() -> None:
    """Update agents to the portal's version, a share of each site at a time."""


@rollout.command()
@click.option("--site", "sites", multiple=True, help="Only this site. Repeat for several.")
@click.option(
    "--stages",
    default="10,50,100",
    show_default=True,
    help="Percentages of each site that are updated after each stage.",
)
@click.option(
    "--wait",
    default="15m",
    show_default=True,
    help="How long a stage must stay healthy before the next.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Failed updates that don't pause the rollout.",
)
def start(sites: tuple[str, ...], *, stages: str, wait: str, max_failures: int) -> None:
    """Start a rollout of the portal's packages to all agents of another version."""
    try:
        percents = [int(part) for part in stages.split(",")]
        soak_seconds = round(parse_duration(wait))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    body = {
        "sites": list(sites),
        "stage_percents": percents,
        "soak_seconds": soak_seconds,
        "max_failures": max_failures,
    }
    with Client() as client:
        _print_summary(client.post("/agent-rollouts", body))


@rollout.command("list")
@output_option
def list_rollouts(output: str) -> None:
    """List the rollouts, the newest first."""
    with Client() as client:
        items = client.get("/agent-rollouts", page_size=_PAGE_SIZE)["items"]
    if not items and output == "table":
        click.echo("No rollouts yet. Start one with: vedette appliance rollout start")
        return
    columns: Columns = {
        "ID": "id",
        "VERSION": "version",
        "STATE": "state",
        "UPDATED": lambda row: f"{row['counts']['updated']}/{sum(row['counts'].values())}",
        "FAILED": lambda row: str(row["counts"]["failed"]),
        "STARTED": lambda row: local_seconds(row["created_at"]),
    }
    print_rows(items, output, columns)


@rollout.command()
@click.argument("rollout_id", metavar="ID")
@output_option
def show(rollout_id: str, output: str) -> None:
    """Show a rollout and its appliances."""
    path = f"/agent-rollouts/{rollout_id}"
    with Client() as client:
        shown = client.get(path)
        updates = client.get(f"{path}/appliances", page_size=_PAGE_SIZE)
    if output != "table":
        print_object({**shown, "appliances": updates["items"]}, output)
        return
    _print_summary(shown)
    for item in updates["items"]:
        suffix = f"  {item['message']}" if item["message"] else ""
        click.echo(
            f"  stage {item['stage'] + 1}  {item['state']:<8}  {item['appliance_name']}{suffix}"
        )
    if updates["total"] > len(updates["items"]):
        click.echo(f"  ... and {updates['total'] - len(updates['items'])} more")


def _add_action(name: str, help_text: str) -> None:
    @rollout.command(name, help=help_text)
    @click.argument("rollout_id", metavar="ID")
    def act(rollout_id: str) -> None:
        with Client() as client:
            _print_summary(client.post(f"/agent-rollouts/{rollout_id}/{name}"))


_add_action("pause", "Start no more updates. Those that have started go on.")
_add_action("resume", "Go on with a paused rollout, and accept the updates that have failed.")
_add_action("cancel", "End a rollout. Appliances that wait stay as they are.")


def _print_summary(shown: dict[str, Any]) -> None:
    counts = ", ".join(f"{count} {state}" for state, count in shown["counts"].items() if count)
    reason = f" ({shown['reason']})" if shown["reason"] else ""
    click.echo(f"{shown['id']}  {shown['version']}  {shown['state']}{reason}: {counts}")
