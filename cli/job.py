"""`vedette job`: submit container jobs, list them, follow their output and stop them."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from cli.appliance_names import appliance_id
from cli.client import PortalClient, load_credentials
from core.errors import InvalidInputError

FOLLOW_SECONDS = 1.0
FINAL_STATES = {"succeeded", "failed", "stopped", "lost"}
_SIZE = re.compile(r"(?i)\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@contextmanager
def portal() -> Iterator[PortalClient]:
    """Give a client of the signed-in portal."""
    client = PortalClient(load_credentials())
    try:
        yield client
    finally:
        client.close()


@click.group()
def job() -> None:
    """Run, list, follow and stop jobs."""


@job.command(context_settings={"ignore_unknown_options": True})
@click.option("--name", help="What the job is called; the image's name when left out.")
@click.option("--image", required=True, help="Container image.")
@click.option("--gpus", default=0, show_default=True, help="Whole GPUs.")
@click.option("--gpu-memory", default="0", show_default=True, help="At least this on each GPU.")
@click.option("--cpus", default=1.0, show_default=True, help="Cores.")
@click.option("--memory", default="1GiB", show_default=True, help="RAM, such as 512MiB or 8GiB.")
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="May be given several times.")
@click.option("--service", is_flag=True, help="Runs until stopped; restarted when it exits.")
@click.option("--appliance", help="The one appliance to run on, by name or id; any when left out.")
@click.option("--follow/--detach", default=False, help="Follow the output until the job ends.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's options
    """Submit a job that runs COMMAND in a container (the image's own command when left out)."""
    with portal() as client:
        submitted = client.post("/jobs", _request(client, command, options))
        click.echo(f"{submitted['id']} {submitted['state']}")
        if options["follow"]:
            sys.exit(_follow(client, submitted["id"]))


@job.command("list")
@click.option("--state", help="Only jobs in this state.")
@click.option("--limit", default=20, show_default=True)
def list_jobs(state: str | None, limit: int) -> None:
    """List the newest jobs of your tenant."""
    with portal() as client:
        page = client.get("/jobs", state=state, page_size=limit)
    if not page["items"]:
        click.echo("No jobs yet. Submit one with: vedette job run --image IMAGE")
    for item in page["items"]:
        place = item.get("appliance_name") or "-"
        click.echo(f"{item['id']}  {item['state']:<9}  {place:<20}  {item['name']}")


@job.command()
@click.argument("job_id")
def show(job_id: str) -> None:
    """Show a job's state, its place and why it is there."""
    with portal() as client:
        found = client.get(f"/jobs/{job_id}")
        events = client.get(f"/jobs/{job_id}/events")
    for key in ("id", "name", "state", "reason", "message", "appliance_name", "exit_code"):
        if found.get(key) not in (None, ""):
            click.echo(f"{key.replace('_', ' '):<15} {found[key]}")
    for event in events.get("items", []):
        click.echo(f"{event['at']}  {event['state']:<9}  {event['message']}")


@job.command()
@click.argument("job_id")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
def logs(job_id: str, *, follow: bool) -> None:
    """Print a job's output."""
    with portal() as client:
        if follow:
            sys.exit(_follow(client, job_id))
        for text in _log_pages(client, job_id):
            click.echo(text, nl=False)


@job.command()
@click.argument("job_id")
def stop(job_id: str) -> None:
    """Stop a job; one that waits in the queue leaves it."""
    with portal() as client:
        stopped = client.post(f"/jobs/{job_id}/stop")
    click.echo(f"{stopped['id']} {stopped['state']}: it is asked to stop.")


def parse_size(text: str, *, option: str) -> int:
    """Return bytes of `8GiB`, `512 MiB` or a plain number; units count in 1024s.

    Raises:
        InvalidInputError: it is no size; names the option.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{option} {text!r} is no size; write it as 512MiB or 8GiB.")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def _request(
    client: PortalClient, command: tuple[str, ...], options: dict[str, Any]
) -> dict[str, Any]:
    body = {
        "name": options["name"] or options["image"].rsplit("/", 1)[-1].split(":")[0],
        "kind": "service" if options["service"] else "batch",
        "image": options["image"],
        "command": list(command),
        "env": dict(_pair(text) for text in options["env"]),
        "gpus": options["gpus"],
        "gpu_memory_bytes": parse_size(options["gpu_memory"], option="--gpu-memory"),
        "cpus": options["cpus"],
        "memory_bytes": parse_size(options["memory"], option="--memory"),
    }
    if options["appliance"]:
        body["appliance_id"] = appliance_id(client, options["appliance"])
    return body


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInputError(f"--env {text!r} is not KEY=VALUE.")
    return key, value


def _log_pages(client: PortalClient, job_id: str) -> Iterator[str]:
    """Yield what the log has now, page by page."""
    offset = 0
    while True:
        page = client.get(f"/jobs/{job_id}/log", offset=offset)
        yield page["text"]
        if page["next_offset"] == offset:
            return
        offset = page["next_offset"]


def _follow(client: PortalClient, job_id: str) -> int:
    """Print output and state changes until the job ends; return an exit status for the shell."""
    offset, state = 0, ""
    while True:
        found = client.get(f"/jobs/{job_id}")
        if found["state"] != state:
            state = found["state"]
            place = f" on {found['appliance_name']}" if found.get("appliance_name") else ""
            click.secho(f"[{state}{place}] {found['message']}", dim=True, err=True)
        page = client.get(f"/jobs/{job_id}/log", offset=offset)
        click.echo(page["text"], nl=False)
        is_read = page["next_offset"] == offset
        offset = page["next_offset"]
        if state in FINAL_STATES and is_read and page["is_complete"]:
            return 0 if state == "succeeded" else found.get("exit_code") or 1
        if is_read:
            time.sleep(FOLLOW_SECONDS)
