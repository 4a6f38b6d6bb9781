"""`vedette gpu-policy`: how GPUs are shared by jobs."""

from collections.abc import Mapping
from typing import Any

import click

from cli.client import (
    Columns,
    all_items,
    fetch_items,
    one_named,
    output_option,
    print_object,
    print_rows,
)
from cli.job_common import PAIR
from vedette.client import Client

PATH = "/gpu-partition-policies"
MODES = ("whole", "mig", "mps", "time_slicing")
_OPTIONS = (
    click.option("--gpu-model", help="A word of the GPU model, such as H100. Without: all."),
    click.option(
        "--label",
        "labels",
        type=PAIR,
        multiple=True,
        metavar="KEY=VALUE",
        help="Only on appliances with this label. Repeatable.",
    ),
    click.option(
        "--layout",
        multiple=True,
        metavar="PROFILE",
        help="MIG instance that each GPU has, such as 1g.10gb. Repeatable. Without: on demand.",
    ),
    click.option(
        "--may-change-layout/--keep-layout",
        default=None,
        help="Whether a waiting job may change the layout of an idle GPU.",
    ),
    click.option("--shares", type=int, help="How many jobs share a GPU by MPS or time slicing."),
    click.option("--position", type=int, help="Place in the order, from 1. Defaults to the last."),
    click.option("--dry-run", is_flag=True, help="Only show which GPUs it would cover."),
)


def _with_options(command: Any) -> Any:  # noqa: ANN401 - click's commands
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group("gpu-policy")
def gpu_policy() -> None:
    """Set how GPUs are shared by jobs: whole, or in slices by MIG, MPS or time slicing."""


@gpu_policy.command()
@click.argument("name")
@click.option("--mode", type=click.Choice(MODES), required=True, help="How GPUs are shared.")
@_with_options
def add(name: str, *, dry_run: bool, **options: Any) -> None:  # noqa: ANN401 - those above
    """Add policy NAME, and print its ID and what it covers.

    \b
    vedette gpu-policy add Notebooks --mode mig --gpu-model H100 --label pool=notebooks
    """
    body = {"name": name, **_entered(options)}
    with Client() as client:
        if dry_run:
            _print_coverage(client.post(f"{PATH}/preview", body))
            return
        created = client.post(PATH, body)
    click.echo(f"{created['id']} {created['name']}")
    _print_coverage(created["coverage"])


@gpu_policy.command("set")
@click.argument("name")
@click.option("--name", "new_name", help="A new name.")
@click.option("--mode", type=click.Choice(MODES), help="How GPUs are shared.")
@_with_options
def change(name: str, *, new_name: str | None, dry_run: bool, **options: Any) -> None:  # noqa: ANN401 - those above
    """Change policy NAME (or ID): only what you enter; an empty --layout "" removes the layout."""
    changes = _entered({"name": new_name, **options})
    with Client() as client:
        present = _named(client, name)
        if dry_run:
            fields = ("name", "mode", "gpu_model", "labels", "layout", "may_change_layout")
            body = {field: present[field] for field in (*fields, "shares", "position")} | changes
            _print_coverage(client.post(f"{PATH}/preview?policy_id={present['id']}", body))
            return
        changed = client.patch(f"{PATH}/{present['id']}", changes)
    click.echo(f"{changed['id']} {changed['name']}: {changed['summary']}")
    _print_coverage(changed["coverage"])


@gpu_policy.command()
@click.argument("name")
@click.argument("position", type=click.IntRange(1))
def move(name: str, position: int) -> None:
    """Move policy NAME (or ID) to a POSITION in the order: the first that fits a GPU counts."""
    with Client() as client:
        path = f"{PATH}/{_named(client, name)['id']}"
        moved = client.patch(path, {"position": position})
    click.echo(f"{moved['id']} {moved['name']}: position {moved['position']}")


@gpu_policy.command("ls")
@output_option
def list_policies(output: str) -> None:
    """List the policies in their order, with what they cover."""
    rows = fetch_items(PATH)
    columns: Columns = {
        "POS": "position",
        "NAME": "name",
        "MODEL": lambda row: row["gpu_model"] or "all",
        "LABELS": lambda row: ",".join(map("=".join, row["labels"].items())) or "-",
        "MODE": "summary",
        "GPUS": lambda row: str(row["coverage"]["gpus"]),
        "APPLIANCES": lambda row: str(len(row["coverage"]["appliances"])),
    }
    print_rows(rows, output, columns, empty="No policies: every GPU goes to one job as a whole.")
    for row in rows if output == "table" else ():
        for warning in row["coverage"]["warnings"]:
            click.echo(f"{row['name']}: {warning}", err=True)


@gpu_policy.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Delete policies: their GPUs follow the next one that fits, or are whole."""
    with Client() as client:
        for policy in [_named(client, name) for name in names]:
            client.delete(f"{PATH}/{policy['id']}")
            click.echo(f"{policy['name']} deleted")


@gpu_policy.command()
@output_option
def modes(output: str) -> None:
    """Show what separates jobs that share a GPU, by mode."""
    with Client() as client:
        rows = client.get(f"{PATH}/modes")["items"]
    if output == "name":
        click.echo("\n".join(row["mode"] for row in rows))
    elif output != "table":
        print_object(rows, output)
    else:
        for row in rows:
            click.echo(row["name"])
            for part in ("memory", "faults", "bandwidth", "metrics"):
                click.echo(f"  {part:<11}{row['isolation'][part]}")


def _entered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose options were entered."""
    body = {name: value for name, value in options.items() if value not in (None, ())}
    if "labels" in body:
        body["labels"] = dict(body["labels"])
    if "layout" in body:
        body["layout"] = [profile for profile in body["layout"] if profile]
    return body


def _named(client: Client, name: str) -> dict[str, Any]:
    return one_named(
        all_items(client, PATH), name, noun="partition policy", command="vedette gpu-policy ls"
    )


def _print_coverage(coverage: Mapping[str, Any]) -> None:
    click.echo(coverage["text"])
    for warning in coverage["warnings"]:
        click.echo(f"Warning: {warning}", err=True)
