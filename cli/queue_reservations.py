"""`vedette queue reservation`: keep appliances or GPUs for a project at certain times."""

from decimal import Decimal

import click

from cli.client import all_items, output_option, print_items
from cli.job_common import DURATION, PAIR
from cli.local_time import local_minutes
from core.quantities import format_duration
from vedette.client import Client


@click.group()
def reservation() -> None:
    """Keep appliances or GPUs for a project at certain times."""


@reservation.command("add")
@click.argument("name")
@click.argument("appliances", metavar="[APPLIANCE]...", nargs=-1)
@click.option("--project", help="Whose jobs may start there. Without: nobody's, for maintenance.")
@click.option("--gpus", type=click.IntRange(1), help="Of each appliance. Defaults to all of it.")
@click.option(
    "--begin",
    required=True,
    help="A time such as 2026-12-01T22:00, or cron, such as '0 22 * * 1-5'.",
)
@click.option("--duration", type=DURATION, default="8h", show_default=True)
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Oslo.")
@click.option(
    "--rent",
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
def add(
    name: str,
    appliances: tuple[str, ...],
    *,
    project: str | None,
    gpus: int | None,
    begin: str,
    duration: int,
    time_zone: str,
    rent: int,
    max_gpu_hour_price: float,
    gpu_model: str,
    rental: tuple[tuple[str, str], ...],
) -> None:
    """Reserve appliances, and print the ID.

    \b
    vedette queue reservation add Nightly dgx-01 dgx-02 --project vision --begin '0 22 * * *'
    vedette queue reservation add Peak --project vision --begin 2026-12-01T22:00 --rent 2 \\
        --gpu-model H100 --max-gpu-hour-price 3.50
    """
    body = {
        "name": name,
        "project_id": project,
        "appliance_ids": list(appliances),
        "gpus": gpus,
        "schedule": begin,
        "duration_seconds": duration,
        "time_zone": time_zone,
        "appliance_count": rent,
        "max_gpu_hour_price": max_gpu_hour_price,
        "gpu_model": gpu_model,
        "rental": dict(rental),
    }
    with Client() as client:
        click.echo(client.post("/reservations", body)["id"])


@reservation.command("ls")
@output_option
def list_reservations(output: str) -> None:
    """List reservations."""
    with Client() as client:
        rows = list(all_items(client, "/reservations"))
    if output == "table" and not rows:
        click.echo("No reservations.", err=True)
        return
    begins = [row["periods"][0]["begins_at"] if row["periods"] else None for row in rows]
    columns = {
        "ID": [row["id"] for row in rows],
        "NAME": [row["name"] for row in rows],
        "APPLIANCES": [
            f"{row['appliance_count']} rented"
            if row["appliance_count"]
            else str(len(row["appliance_ids"]))
            for row in rows
        ],
        "GPUS": [str(row["gpus"] or "all") for row in rows],
        "NEXT": [local_minutes(begin) if begin else "over" for begin in begins],
        "DURATION": [format_duration(row["duration_seconds"]) for row in rows],
    }
    print_items(rows, output, columns=columns)


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
