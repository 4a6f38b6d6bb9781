"""`vedette usage`: GPU time by user, job, GPU model and more, through the REST API."""

import click

from cli.client import output_option, print_items
from vedette.client import Client

GROUPS = ("user", "project", "budget_label", "job", "gpu_model", "appliance", "day", "tenant")


@click.command()
@click.option("--by", type=click.Choice(GROUPS), default="user", show_default=True)
@click.option("--since", help="RFC 3339, such as 2026-03-01T00:00:00Z. Defaults to 30 days ago.")
@click.option("--until", help="The same; exclusive. Defaults to now.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@output_option
def usage(by: str, since: str | None, until: str | None, limit: int, output: str) -> None:
    """Print the GPU time that jobs were allocated, used and left idle, the largest first."""
    with Client() as client:
        items = client.get("/gpu-usage", by=by, since=since, until=until, page_size=limit)["items"]

    def hours(name: str) -> list[str]:
        return [f"{item[f'{name}_gpu_seconds'] / 3600:z.1f}" for item in items]

    ratios = [item["used_ratio"] for item in items]
    print_items(
        items,
        output,
        columns={
            by.upper().replace("_", " "): [item["name"] or item["key"] for item in items],
            "ALLOCATED H": hours("allocated"),
            "USED H": hours("used"),
            "IDLE H": hours("idle"),
            "USED": ["-" if ratio is None else f"{ratio:.0%}" for ratio in ratios],
            "KWH": [f"{item['energy_kilowatt_hours']:z.2f}" for item in items],
        },
    )
