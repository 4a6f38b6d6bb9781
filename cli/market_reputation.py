"""`vedette market reputation`: what is believed of a provider, and on which evidence."""

import click

from cli.client import Columns, fetch_items, output_option, print_object, print_rows
from vedette.client import Client

_DIMENSIONS = click.Choice(["availability", "jobs", "checks", "response", "satisfaction"])
_PROVIDER = click.option(
    "--tenant", "tenant_id", default="", help="As the operator: the ID of a provider."
)


@click.group(invoke_without_command=True)
@_PROVIDER
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
@click.pass_context
def reputation(context: click.Context, tenant_id: str, output: str) -> None:
    """Show your tenant's reputation as a provider, and what would raise it."""
    if context.invoked_subcommand is not None:
        return
    with Client() as client:
        shown = client.get("/market/reputation", tenant_id=tenant_id)
    if output != "text":
        print_object(shown, output)
        return
    overall = shown["overall"]
    click.echo(
        f"Score {_points(shown['score'])} of 100; expected {_points(overall['mean'])}, "
        f"with 90 % probability {_points(overall['low'])} to {_points(overall['high'])}"
    )
    for row in shown["dimensions"]:
        figure = row["figure"]
        limits = f"{_points(figure['low'])} to {_points(figure['high'])}"
        click.echo(
            f"  {row['dimension']:<13} {_points(figure['mean']):>3}  ({limits}), "
            f"{figure['cases']:.1f} cases, {_points(row['share'])} % of the score"
        )
    if shown["causes"]:
        click.echo("What costs most:")
    for cause in shown["causes"]:
        name = cause["kind"].replace("_", " ")
        click.echo(f"  {name}: {100 * cause['cost']:.1f}, entries: {cause['count']}")
    if shown["improvements"]:
        click.echo("What would raise it:")
    for improvement in shown["improvements"]:
        click.echo(f"  {improvement['text']}")


@reputation.command()
@_PROVIDER
@click.option("--dimension", type=_DIMENSIONS, help="Only of this dimension.")
@click.option("--kind", help="Only of this kind, such as appliance_lost.")
@output_option
def evidence(tenant_id: str, dimension: str | None, kind: str | None, output: str) -> None:
    """List the evidence of the reputation, the latest first."""
    path = "/market/reputation/evidence"
    items = fetch_items(path, tenant_id=tenant_id or None, dimension=dimension, kind=kind or None)
    columns: Columns = {
        "DAY": lambda item: item["at"][:10],
        "DIMENSION": "dimension",
        "KIND": "kind",
        "GOOD": lambda item: f"{_points(item['good'])} %",
        "COUNTS": lambda item: f"{item['weight']:.2f}",
        "EVIDENCE": "text",
    }
    print_rows(items, output, columns, empty="No evidence of this kind yet.", name="kind")


def _points(share: float) -> str:
    return f"{100 * share:.0f}"
