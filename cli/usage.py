"""`vedette usage`: GPU time by user, job, GPU model and more, through the REST API."""

import click

from cli.client import Columns, output_option, print_rows
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
    columns: Columns = {
        by.upper().replace("_", " "): lambda item: item["name"] or item["key"],
        "ALLOCATED H": lambda item: _hours(item["allocated_gpu_seconds"]),
        "USED H": lambda item: _hours(item["used_gpu_seconds"]),
        "IDLE H": lambda item: _hours(item["idle_gpu_seconds"]),
        "USED": lambda item: "-" if item["used_ratio"] is None else f"{item['used_ratio']:.0%}",
        "KWH": lambda item: f"{item['energy_kilowatt_hours']:z.2f}",
    }
    print_rows(items, output, columns)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:z.1f}"
