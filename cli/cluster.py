"""`vedette cluster`: name groups of appliances, on which jobs can be required to run.

A cluster is the label `cluster` of its appliances, so an appliance is in one at most, and a job
runs on it with `--require cluster=NAME`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from cli.client import Columns, output_option, print_rows
from cli.job_common import DURATION
from core.errors import ConflictError, NotFoundError
from vedette.client import Client

LABEL = "cluster"
_POLL_SECONDS = 1.0
_PAGE_SIZE = 500

Item = Mapping[str, Any]


@click.group()
def cluster() -> None:
    """Name groups of appliances, for jobs with --require cluster=NAME."""


@cluster.command()
@click.argument("name")
@click.argument("appliances", nargs=-1, required=True)
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long to wait for a heartbeat of each appliance; 0 does not wait.",
)
@click.option("--move", is_flag=True, help="Take appliances out of the clusters that they are in.")
def create(name: str, appliances: tuple[str, ...], wait_seconds: float, *, move: bool) -> None:
    """Make APPLIANCES (names, or patterns such as 'dgx-*') the cluster NAME.

    Exits with 1 if an appliance can't run jobs, or did not report in time.
    """
    with Client() as client:
        chosen = _matching(list(_appliances(client)), appliances)
        if not move:
            _check_free(chosen, name)
        _label(client, chosen, name)
        is_ready = True
        for item, has_reported in _as_they_report(client, chosen, wait_seconds=wait_seconds):
            problem = _problem(item) or _lack(client.get(f"/appliances/{item['id']}"))
            if not problem and wait_seconds and not has_reported:
                problem = "sent no heartbeat meanwhile"
            is_ready = is_ready and not problem
            gpus = f"{item['gpu_count']} GPUs"
            click.echo(f"{item['name']:<24}  {item['status']:<11}  {gpus:<8}  {problem or 'ready'}")
    if not is_ready:
        raise click.ClickException(f"Not all appliances of {name} can run jobs now.")


@cluster.command("list")
@output_option
def list_clusters(output: str) -> None:
    """List the clusters of your tenant."""
    with Client() as client:
        members = [item for item in _appliances(client) if LABEL in item["labels"]]
    sizes = Counter(item["labels"][LABEL] for item in members)
    if not sizes and output == "table":
        click.echo("No clusters yet. Create one with: vedette cluster create NAME APPLIANCE...")
        return
    clusters = [
        {
            "name": name,
            "appliances": sizes[name],
            "online": sum(_is(item, name) and item["status"] == "online" for item in members),
            "gpus": sum(item["gpu_count"] for item in members if _is(item, name)),
        }
        for name in sorted(sizes)
    ]
    columns = {key.upper(): key for key in ("name", "appliances", "online", "gpus")}
    print_rows(clusters, output, columns)


@cluster.command()
@click.argument("name")
@output_option
def show(name: str, output: str) -> None:
    """Show the appliances of the cluster NAME."""
    with Client() as client:
        members = _members(client, name)
    columns: Columns = {
        "NAME": "name",
        "STATUS": "status",
        "GPUS": "gpu_count",
        "SITE": "site",
        "PROBLEM": _problem,
    }
    print_rows(members, output, columns)


@cluster.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the cluster NAME: its appliances stay, and jobs on them run on."""
    with Client() as client:
        members = _members(client, name)
        waiting = [
            job.name
            for job in client.jobs(state="queued")
            if job.required_labels.get(LABEL) == name
        ]
        _label(client, members, None)
    for item in members:
        click.echo(f"{item['name']:<24}  no longer in {name}")
    if waiting:
        click.echo(f"Jobs that still wait for it: {', '.join(waiting[:3])}.", err=True)


def _appliances(client: Client) -> Iterator[Item]:
    """Yield the appliances of the tenant in the order of their names."""
    number = 1
    while True:
        page = client.get("/appliances", sort="name", page=number, page_size=_PAGE_SIZE)
        yield from page["items"]
        if number * _PAGE_SIZE >= page["total"]:
            return
        number += 1


def _matching(items: Sequence[Item], patterns: Sequence[str]) -> list[Item]:
    """Return the appliances that are named, each pattern of which must match at least one."""
    for pattern in patterns:
        if not any(_matches(item, pattern) for item in items):
            raise NotFoundError.of("appliance", pattern)
    return [item for item in items if any(_matches(item, pattern) for pattern in patterns)]


def _matches(item: Item, pattern: str) -> bool:
    return item["id"] == pattern or fnmatchcase(item["name"], pattern)


def _check_free(items: Sequence[Item], name: str) -> None:
    taken = [item for item in items if item["labels"].get(LABEL, name) != name]
    if taken:
        places = ", ".join(f"{item['name']} ({item['labels'][LABEL]})" for item in taken[:3])
        raise ConflictError(
            f"{len(taken)} of the appliances are in other clusters: {places}. Leave them out, or "
            "take them with --move."
        )


def _label(client: Client, items: Sequence[Item], name: str | None) -> None:
    ids = [item["id"] for item in items]
    for start in range(0, len(ids), _PAGE_SIZE):
        body = {"action": "label", "labels": {LABEL: name}}
        client.post("/appliances/bulk", {**body, "appliance_ids": ids[start : start + _PAGE_SIZE]})


def _as_they_report(
    client: Client, chosen: Sequence[Item], *, wait_seconds: float
) -> Iterator[tuple[Item, bool]]:
    """Yield each appliance with True once it sends a heartbeat, the others at the end."""
    last_seen = {item["id"]: item["last_seen_at"] for item in chosen}
    until = time.monotonic() + wait_seconds
    while last_seen:
        is_over = time.monotonic() >= until
        for item in [item for item in _appliances(client) if item["id"] in last_seen]:
            has_reported = item["last_seen_at"] != last_seen[item["id"]]
            if is_over or has_reported:
                del last_seen[item["id"]]
                yield item, has_reported
        if is_over:
            return
        if last_seen:
            time.sleep(_POLL_SECONDS)


def _problem(item: Item) -> str:
    """Return why an appliance can't run jobs now; "" if it can."""
    return "" if item["status"] == "online" else f"{item['status']}: runs no new jobs"


def _lack(detail: Item) -> str:
    """Return what an appliance lacks to run jobs at all."""
    executors = detail["inventory"].get("executors")
    return "" if executors else "its agent has no executor: runs no jobs"


def _members(client: Client, name: str) -> list[Item]:
    members = [item for item in _appliances(client) if _is(item, name)]
    if not members:
        raise NotFoundError.of("cluster", name)
    return members


def _is(item: Item, name: str) -> bool:
    return bool(item["labels"].get(LABEL) == name)
