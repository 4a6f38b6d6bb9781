"""`vedette queue reservation`: keep appliances or GPUs for a project at certain times."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import click

from cli.client import Columns, fetch_items, output_option, print_rows
from cli.job_common import DURATION, PAIR
from cli.local_time import local_minutes
from core.quantities import format_duration
from vedette.client import Client


@click.group()
def reservation() -> None:
    """Keep appliances or GPUs for a project at certain times."""


@reservation.command("add")
@click.argument("name")
@click.argument("appliance_ids", metavar="[APPLIANCE]...", nargs=-1)
@click.option(
    "--project",
    "project_id",
    help="Whose jobs may start there. Without: nobody's, for maintenance.",
)
@click.option("--gpus", type=click.IntRange(1), help="Of each appliance. Defaults to all of it.")
@click.option(
    "--begin",
    "schedule",
    required=True,
    help="A time such as 2026-12-01T22:00, or cron, such as '0 22 * * 1-5'.",
)
@click.option("--duration", "duration_seconds", type=DURATION, default="8h", show_default=True)
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Oslo.")
@click.option(
    "--rent",
    "appliance_count",
    type=click.IntRange(1),
    default=0,
    help="How many rented appliances, instead of own ones.",
)
@click.option(
    "--max-gpu-hour-price", type=float, default=0.0, help="Highest price of rented GPUs an hour."
)
@click.option("--gpu-model", default="", help="A word in the model of rented GPUs, such as H100.")
@click.option(
    "--rental",
    multiple=True,
    type=PAIR,
    metavar="KEY=VALUE",
    help="What rented appliances must meet, such as region=eu-north; repeatable.",
)
def add(rental: tuple[tuple[str, str], ...], **fields: Any) -> None:  # noqa: ANN401 - those of the options
    """Reserve appliances, and print the ID.

    \b
    vedette queue reservation add Nightly dgx-01 dgx-02 --project vision --begin '0 22 * * *'
    vedette queue reservation add Peak --project vision --begin 2026-12-01T22:00 --rent 2 \\
        --gpu-model H100 --max-gpu-hour-price 3.50
    """
    with Client() as client:
        click.echo(client.post("/reservations", {**fields, "rental": dict(rental)})["id"])


@reservation.command("ls")
@output_option
def list_reservations(output: str) -> None:
    """List reservations."""
    columns: Columns = {
        "ID": "id",
        "NAME": "name",
        "APPLIANCES": _appliances,
        "GPUS": lambda row: str(row["gpus"] or "all"),
        "NEXT": lambda row: (
            local_minutes(row["periods"][0]["begins_at"]) if row["periods"] else "over"
        ),
        "DURATION": lambda row: format_duration(row["duration_seconds"]),
    }
    print_rows(fetch_items("/reservations"), output, columns, empty="No reservations.")


def _appliances(row: Mapping[str, Any]) -> str:
    rented = row["appliance_count"]
    return f"{rented} rented" if rented else str(len(row["appliance_ids"]))


@reservation.command("rm")
@click.argument("reservation_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Don't ask where the cancellation is charged.")
def remove(reservation_ids: tuple[str, ...], *, yes: bool) -> None:
    """Delete reservations."""
    with Client() as client:
        for reservation_id in reservation_ids:
            row = client.get(f"/reservations/{reservation_id}")
            cost = row.get("cancellation") or {}
            if cost.get("gpu_hours") and not yes:
                click.confirm(
                    f"{row['name']}: {cost['gpu_hours']:.2f} GPU-hours within the next "
                    f"{cost['hours']} hours are charged, {Decimal(cost['amount']):.2f}. Delete it?",
                    abort=True,
                )
            client.delete(f"/reservations/{reservation_id}")
            click.echo(f"{reservation_id} deleted")
