"""`vedette queue`: who has had how much of the fleet, and how the queue is ordered."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from cli.client import Columns, all_items, fetch_items, output_option, print_object, print_rows
from cli.job_common import Notation
from cli.queue_reservations import reservation
from vedette.client import Client


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number.")
    return number


NUMBER = Notation("number", _number)
ISOLATION = ("default", "time_slicing", "mps", "mig", "whole")
POLICIES = ("fifo", "fair_tree", "drf")


@click.group()
def queue() -> None:
    """Show who is next in the queue, change how it is ordered, and reserve appliances."""


queue.add_command(reservation)


@queue.command("ls")
@output_option
def list_queue(output: str) -> None:
    """List the jobs that wait for an appliance, the next one first."""
    rows = fetch_items("/queue/jobs")
    columns: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
        "POS": "position",
        "ID": lambda row: row["job_id"][-8:],
        "NAME": "name",
        "USER": lambda row: row["user_email"] or "-",
        "PROJECT": lambda row: row["project"] or "-",
        "GPUS": lambda row: str(row["gpus"] or row["requested_gpus"]),
        "POINTS": lambda row: f"{row['points']:.1f}" if row["parts"] else "-",
    }
    for place, part in enumerate(rows[0]["parts"] if rows else ()):
        columns[part["name"].upper().replace("_", " ")] = partial(_points, place)
    print_rows(rows, output, columns, empty="No job waits for an appliance.")


def _points(place: int, row: Mapping[str, Any]) -> str:
    return f"{row['parts'][place]['points']:.1f}"


@queue.command()
@output_option
def shares(output: str) -> None:
    """Print the tree of projects and users: their shares, and what they have had.

    USAGE is decayed; LEVEL FS is the part of the shares by the part of the usage, so the highest of
    the siblings is served first. FACTOR is 1 for the first user.
    """
    with Client() as client:
        tree = client.get("/queue/shares", page_size=1)
        rows = list(all_items(client, "/queue/shares"))
    columns: Columns = {
        "NAME": lambda row: f"{'  ' * row['depth']}{row['name'] or 'tenant'}",
        "SHARES": lambda row: f"{row['shares']:g}" if row["depth"] else "-",
        "NORM SHARES": lambda row: f"{row['normalized_shares']:.6f}",
        f"USAGE ({tree['unit']})": lambda row: f"{row['usage']:.1f}",
        "NORM USAGE": lambda row: f"{row['normalized_usage']:.6f}",
        "LEVEL FS": _level,
        "RUNS NOW": lambda row: f"{row['dominant_share']:.1%}",
        "FACTOR": lambda row: "-" if row["factor"] is None else f"{row['factor']:.6f}",
    }
    print_rows(rows, output, columns)
    if output == "table" and tree["policy"] == "fifo":
        click.echo(
            "The queue is ordered by submission and priority: shares have no effect.", err=True
        )


@queue.command()
@click.option("--policy", type=click.Choice(POLICIES), help="By which the next job is chosen.")
@click.option("--half-life-days", type=NUMBER, help="After so many days, usage counts half.")
@click.option("--priority-weight", type=int, help="Points of the highest priority.")
@click.option("--fair-share-weight", type=int, help="Points of the user whose turn it is.")
@click.option("--age-weight", type=int, help="Points of a day of waiting.")
@click.option("--size-weight", type=int, help="Points of a job for the whole fleet.")
@click.option("--gpu-usage-weight", type=NUMBER, help="Of a GPU in usage.")
@click.option("--cpu-usage-weight", type=NUMBER, help="Of a CPU core in usage.")
@click.option("--memory-usage-weight", type=NUMBER, help="Of a GiB of memory in usage.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def order(output: str, **changes: Any) -> None:  # noqa: ANN401 - options by name
    """Print how the queue is ordered; with options, change it.

    \b
    vedette queue order --policy fair_tree --half-life-days 7
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    ordering = _changed_settings({})["ordering"]
    if wanted:
        ordering = _changed_settings({"ordering": ordering | wanted})["ordering"]
    print_object(ordering, output)


@queue.command()
@click.option("--between-users", type=click.Choice(ISOLATION), help="Of different users.")
@click.option("--between-projects", type=click.Choice(ISOLATION), help="Of different projects.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def isolation(output: str, **changes: str | None) -> None:
    """Print the weakest mode in which jobs share a GPU; with options, change it.

    whole is never, default is any mode within a project, else mig. See: vedette gpu-policy modes

    \b
    vedette queue isolation --between-users mig --between-projects whole
    """
    wanted = {
        f"isolation_{name}": None if value == "default" else value
        for name, value in changes.items()
        if value is not None
    }
    settings = _changed_settings(wanted)
    shown = {name: settings[f"isolation_{name}"] or "default" for name in changes}
    print_object(shown, output)


@queue.command()
@click.option(
    "--gang-egress/--no-gang-egress",
    "allows_gang_egress",
    default=None,
    help="Members of gangs also reach the outside.",
)
@click.option(
    "--host/--no-host",
    "allows_host_network",
    default=None,
    help="Jobs may use the appliance's network and RDMA devices.",
)
@click.option(
    "--encrypt/--no-encrypt",
    "encrypts_gang_networks",
    default=None,
    help="Encrypt the packets of gangs within a site, too.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def network(output: str, **changes: bool | None) -> None:
    """Print which networks jobs may have; with options, change it.

    \b
    vedette queue network --encrypt --no-host
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    settings = _changed_settings(wanted)
    print_object({name: settings[name] for name in changes}, output)


@queue.command()
@click.option("--longest-fetch-minutes", type=int, help="What takes longer is fetched before.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
def data(output: str, longest_fetch_minutes: int | None) -> None:
    """Print for how long jobs hold GPUs while their data is fetched; with the option, change it.

    \b
    vedette queue data --longest-fetch-minutes 30
    """
    name = "longest_fetch_minutes"
    changes = {} if longest_fetch_minutes is None else {name: longest_fetch_minutes}
    print_object({name: _changed_settings(changes)[name]}, output)


def _changed_settings(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tenant's queue settings, after they were changed if anything is."""
    with Client() as client:
        path = f"/tenants/{client.get('/me')['tenant_id']}/queue-settings"
        settings: Mapping[str, Any] = client.patch(path, changes) if changes else client.get(path)
    return settings


def _level(row: Mapping[str, Any]) -> str:
    if not row["depth"]:
        return "-"
    level = row["level_fair_share"]
    return "inf" if level is None else f"{level:.6f}"
