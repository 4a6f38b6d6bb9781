"""`vedette job`: submit container jobs, list and watch them, follow their logs and stop them.

A JOB is its name, its ID, or the beginning or end of an ID.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource

from cli.client import appliance_id, output_option, print_items, print_object
from cli.job_common import print_pending, secret
from cli.job_files import apply, schema
from cli.job_schedules import schedule
from cli.job_templates import template
from core.clock import utc_now
from core.errors import InvalidInputError
from core.quantities import format_duration, format_value, parse_duration, parse_size
from protocol.notation import parse_mount, parse_port
from vedette.client import Client
from vedette.jobs import Job, JobFields, LogLine

T = TypeVar("T")
# Options of `run` that are named otherwise than their fields.
_OPTION_OF = {
    "kind": "service",
    "gpu_memory_bytes": "gpu_memory",
    "memory_bytes": "memory",
    "container_policy": "policy",
    "shared_memory_bytes": "shm_size",
    "is_preemptible": "preemptible",
    "max_retries": "retries",
    "time_limit_seconds": "time_limit",
    "idle_gpu_percent": "idle_limit",
    "idle_gpu_seconds": "idle_limit",
    "appliance_id": "appliance",
}
COPY_HELP = "Secret variable, by default with its value in the job or in this shell; repeatable."
TOP_SECONDS = 2.0
# What `attach` shows of the log before.
ATTACH_BYTES = 4096
# Usage of the container and of its GPUs, as shown by `top`: title to field.
TOP_COLUMNS = {
    "CPU": "cpu_percent",
    "MEMORY": "memory_bytes",
    "GPU": "utilization_percent",
    "GPU MEM": "memory_used_bytes",
    "POWER": "power_watts",
}


class _Duration(click.ParamType[float]):
    """An option that takes `2h` or `30m` and gives seconds."""

    name = "duration"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the option, or fail with its name."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()


class _Size(click.ParamType[int]):
    """An option that takes `8GiB` or `512MiB` and gives bytes."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the option, or fail with its name."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Size()


@click.group()
def job() -> None:
    """Run, list, follow and stop jobs."""


@job.command(context_settings={"ignore_unknown_options": True})
@click.option("--name", help="Job name. Defaults to the image name.")
@click.option("--image", help="Container image.")
@click.option("--template", help="Start from this template; other options replace its fields.")
@click.option("--gpus", default=0, show_default=True, help="Number of GPUs.")
@click.option("--gpu-memory", type=SIZE, default="0", show_default=True, help="Minimum per GPU.")
@click.option("--cpus", default=1.0, show_default=True, help="Number of CPU cores.")
@click.option("--memory", type=SIZE, default="1GiB", show_default=True, help="RAM, such as 8GiB.")
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="Environment variable; repeatable.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Secret variable, by default with the value that it has in this shell; repeatable.",
)
@click.option("--gpu-model", "gpu_models", multiple=True, help="Such as H100; repeatable.")
@click.option("--shm-size", type=SIZE, default="0", help="Size of /dev/shm. Half of the memory.")
@click.option("--workdir", "working_dir", default="", help="Working directory in the container.")
@click.option(
    "--mount", "mounts", multiple=True, metavar="SOURCE:TARGET[:rw]", help="Data path; repeatable."
)
@click.option("--port", "ports", multiple=True, metavar="[NAME=]PORT", help="Port; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label; repeatable.")
@click.option(
    "--require",
    "required_labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label that the appliance must have; repeatable.",
)
@click.option("--priority", default=0, show_default=True, help="-100 to 100.")
@click.option("--preemptible", is_flag=True, help="May stop for another job; is queued again.")
@click.option("--retries", default=0, show_default=True, help="Attempts after a failure.")
@click.option(
    "--retry-on",
    multiple=True,
    type=click.Choice(["exit", "out_of_memory", "start", "appliance"]),
    help="Failures to retry; repeatable. Defaults to all.",
)
@click.option("--time-limit", type=DURATION, default="0", help="Of each attempt, such as 2h.")
@click.option(
    "--idle-limit",
    type=(int, DURATION),
    metavar="PERCENT DURATION",
    help="Stop when all its GPUs stay below this utilization for so long, such as 5 30m.",
)
@click.option("--array", default="", help="One task for each index: 0-99, or 0-99%10 at once.")
@click.option("--after-ok", multiple=True, metavar="JOB", help="Start after its success.")
@click.option("--after-any", multiple=True, metavar="JOB", help="Start after its end; repeatable.")
@click.option("--notify", multiple=True, help="At its end: email, or a receiver; repeatable.")
@click.option("--service", is_flag=True, help="Run until stopped; restart on exit.")
@click.option("--policy", help="Container policy: restricted or standard.")
@click.option("--appliance", help="Run on this appliance (name or ID). Defaults to any.")
@click.option("--follow/--detach", default=False, help="Follow the log until the job ends.")
@click.option("--dry-run", is_flag=True, help="Only show where the job would go, and when.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's options
    """Submit a job that runs COMMAND in a container. COMMAND defaults to the image's own."""
    with Client() as client:
        fields = _request(client, command, options)
        image = options["image"]
        if options["template"]:
            start = client.template(options["template"])["job"]
            image = image or start.pop("image")
            fields = {**start, **_given(fields)}
        if not image:
            raise InvalidInputError("Enter --image, or a --template.")
        if options["dry_run"]:
            print_pending(client.dry_run(image, **fields))
            return
        submitted = client.submit(image, **fields)
        click.echo(f"{submitted.id} {submitted.state}")
        if options["follow"]:
            sys.exit(_follow(client, submitted.id))


@job.command()
@click.argument("name", metavar="JOB")
@click.option("--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help=COPY_HELP)
def retry(name: str, secrets: tuple[str, ...]) -> None:
    """Submit a JOB of yours again, with its secrets."""
    with Client() as client:
        source = client.job(name)
        given = dict(secret(text, {**os.environ, **source.env}) for text in secrets)
        submitted = client.retry(source.id, secrets=given)
    click.echo(f"{submitted.id} {submitted.state}")


@job.command()
@click.argument("name", metavar="JOB")
@click.argument("priority", type=int)
def priority(name: str, priority: int) -> None:
    """Change the PRIORITY (-100 to 100) of a JOB that waits; above 0 is for admins."""
    with Client() as client:
        changed = client.set_priority(name, priority)
    click.echo(f"{changed.id} priority {changed.priority}")


@job.command()
@click.argument("name", metavar="JOB")
@output_option
def why(name: str, output: str) -> None:
    """Show why a JOB waits, what must free up, and when it is expected to start."""
    with Client() as client:
        found = client.pending(name)
    if output == "table":
        print_pending(found)
    else:
        print_object(found, output)


@job.command("make-secret")
@click.argument("name", metavar="JOB")
@click.argument("variables", nargs=-1, required=True)
def hide_variables(name: str, variables: tuple[str, ...]) -> None:
    """Turn environment VARIABLES of a JOB into secrets."""
    with Client() as client:
        found = client.job(name)
        changed = client.post(f"/jobs/{found.id}/make-secret", {"names": list(variables)})
    click.echo(f"{changed['id']} secrets: {', '.join(changed['secret_names'])}")


@job.command("ls")
@click.option("--state", help="Only jobs in this state.")
@click.option("--search", help="Only with this text in the name, image or ID.")
@click.option("--limit", default=20, show_default=True, help="Maximum number of jobs.")
@click.option("--tasks", is_flag=True, help="List each task of an array.")
@output_option
def list_jobs(
    *, state: str | None, search: str | None, limit: int, tasks: bool, output: str
) -> None:
    """List the newest jobs of your tenant; an array is one line."""
    collapsed = "false" if tasks or state else "true"
    with Client() as client:
        found = list(client.jobs(limit=limit, state=state, search=search, is_collapsed=collapsed))
    if output != "table" or found:
        print_items(list(map(_fields, found)), output, columns=_columns(found))
    elif state or search:
        click.echo("No jobs match.", err=True)
    else:
        click.echo("No jobs yet. Submit one with: vedette job run --image IMAGE", err=True)


# The words of other commands, and of Slurm.
job.add_command(list_jobs, "list")


@job.command()
@click.argument("name", metavar="JOB")
@output_option
def show(name: str, output: str) -> None:
    """Show the state, resources and events of a JOB: a name, an ID, or the end of one."""
    with Client() as client:
        found = client.job(name)
        events = client.get(f"/jobs/{found.id}/events")["items"]
    if output == "name":
        click.echo(found.name)
    elif output != "table":
        print_object(_fields(found) | {"events": events}, output)
    else:
        for key, value in _fields(found).items():
            if value not in (None, "", [], {}):
                click.echo(f"{key.replace('_', ' '):<22} {_text(value)}")
        for event in events:
            click.echo(f"{event['at'][:19]}  {event['state']:<9}  {event['message']}")


@job.command()
@click.argument("name", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the job ends.")
@click.option("--tail", type=SIZE, help="Begin this long before the end, such as 64KiB.")
@click.option("--timestamps", "-t", is_flag=True, help="Print the time of each line.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Print only one stream.")
def logs(
    name: str, *, follow: bool, tail: int | None, timestamps: bool, stream: str | None
) -> None:
    """Print the log of a JOB; with --follow, exit as the job does."""
    with Client() as client:
        if follow:
            sys.exit(_follow(client, name, tail, with_times=timestamps, stream=stream))
        for line in client.log_lines(name, tail_bytes=tail):
            _print_line(line, with_times=timestamps, stream=stream)


@job.command()
@click.argument("name", metavar="JOB")
def attach(name: str) -> None:
    """Follow a JOB from now on; Ctrl-C detaches, and the job continues."""
    with Client() as client:
        try:
            sys.exit(_follow(client, name, ATTACH_BYTES))
        except KeyboardInterrupt:
            click.secho(f"\nDetached. Stop the job with: vedette job stop {name}", err=True)


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--array", is_flag=True, help="Stop all tasks of the jobs' arrays.")
def stop(names: tuple[str, ...], *, array: bool) -> None:
    """Stop running JOBS, or remove waiting ones from the queue."""
    with Client() as client:
        for name in names:
            stopped = client.stop_array(name) if array else client.stop(name)
            click.echo(f"{stopped.id} {stopped.state}: stop requested.")


job.add_command(stop, "cancel")
job.add_command(apply)
job.add_command(schema)
job.add_command(template)
job.add_command(schedule)


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", metavar="DURATION", help="Give up after this time, such as 2h.")
def wait(names: tuple[str, ...], timeout: str | None) -> None:
    """Wait until all JOBS have ended; exit as the first that did not succeed."""
    seconds = None if timeout is None else _seconds(timeout)
    until = None if seconds is None else time.monotonic() + seconds
    status = 0
    with Client() as client:
        for name in names:
            left = None if until is None else max(0.0, until - time.monotonic())
            ended = client.wait(name, timeout_seconds=left)
            click.echo(f"{ended.id} {ended.state}")
            status = status or ended.exit_status
    sys.exit(status)


@job.command()
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--limit", default=20, show_default=True, help="Maximum number of jobs.")
def top(*, once: bool, limit: int) -> None:
    """Show what running jobs use of their CPUs, memory and GPUs, until Ctrl-C."""
    with Client() as client:
        while True:
            found = list(client.jobs(limit=limit, state="running"))
            usage = [client.get(f"/jobs/{one.id}/usage")["series"] for one in found]
            if not once:
                click.clear()
            if found:
                columns = _columns(found) | {
                    title: [_latest(series, field) for series in usage]
                    for title, field in TOP_COLUMNS.items()
                }
                shown = {title: columns[title] for title in ("ID", "NAME", "GPUS", *TOP_COLUMNS)}
                print_items(list(map(_fields, found)), "table", columns=shown)
            else:
                click.echo("No jobs are running.", err=True)
            if once:
                return
            time.sleep(TOP_SECONDS)


def _request(client: Client, command: tuple[str, ...], options: dict[str, Any]) -> JobFields:
    fields: JobFields = {
        "name": options["name"] or "",
        "kind": "service" if options["service"] else "batch",
        "command": list(command),
        "env": dict(_pair(text) for text in options["env"]),
        "secrets": dict(secret(text, os.environ) for text in options["secrets"]),
        "gpus": options["gpus"],
        "gpu_memory_bytes": options["gpu_memory"],
        "cpus": options["cpus"],
        "memory_bytes": options["memory"],
        "container_policy": options["policy"],
        "labels": dict(_pair(text, "--label") for text in options["labels"]),
        "gpu_models": list(options["gpu_models"]),
        "required_labels": dict(_pair(text, "--require") for text in options["required_labels"]),
        "working_dir": options["working_dir"],
        "shared_memory_bytes": options["shm_size"],
        "mounts": [msgspec.to_builtins(_parsed(parse_mount, text)) for text in options["mounts"]],
        "ports": [msgspec.to_builtins(_parsed(parse_port, text)) for text in options["ports"]],
        "priority": options["priority"],
        "is_preemptible": options["preemptible"],
        "max_retries": options["retries"],
        "time_limit_seconds": int(options["time_limit"]),
        "notify": list(options["notify"]),
        "array": options["array"],
        "after_ok": list(options["after_ok"]),
        "after_any": list(options["after_any"]),
    }
    if options["idle_limit"]:
        percent, seconds = options["idle_limit"]
        fields["idle_gpu_percent"], fields["idle_gpu_seconds"] = percent, int(seconds)
    if options["retry_on"]:
        fields["retry_on"] = list(options["retry_on"])
    if options["appliance"]:
        fields["appliance_id"] = appliance_id(client, options["appliance"])
    return fields


def _given(fields: JobFields) -> JobFields:
    """Return the fields whose options are on the command line."""
    source = click.get_current_context().get_parameter_source
    given = {name: source(_OPTION_OF.get(name, name)) for name in fields}
    return cast(
        "JobFields",
        {name: fields[name] for name in fields if given[name] is ParameterSource.COMMANDLINE},  # type: ignore[literal-required] # its own keys
    )


def _pair(text: str, option: str = "--env") -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInputError(f"{option} {text!r} is not KEY=VALUE.")
    return key, value


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidInputError(str(error)) from None


def _follow(
    client: Client,
    name: str,
    tail_bytes: int | None = None,
    *,
    with_times: bool = False,
    stream: str | None = None,
) -> int:
    """Print the log and state changes until the job ends; return the exit status."""
    ended = client.job(name)

    def report(changed: Job) -> None:
        nonlocal ended
        ended = changed
        where = f" on {changed.appliance_name}" if changed.appliance_name else ""
        click.secho(f"[{changed.state}{where}] {changed.message}", dim=True, err=True)

    lines = client.log_lines(ended.id, follow=True, tail_bytes=tail_bytes, on_change=report)
    for line in lines:
        _print_line(line, with_times=with_times, stream=stream)
    return ended.exit_status


def _print_line(line: LogLine, *, with_times: bool, stream: str | None) -> None:
    """Print a line where the job wrote it: to stdout or stderr."""
    if stream in {None, line.stream} or line.stream == "output":
        at = f"{line.at} " if with_times and line.at else ""
        click.echo(f"{at}{line.text}", nl=not line.is_open, err=line.stream == "stderr")


def _fields(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(job)
    return found


def _columns(jobs: Sequence[Job]) -> dict[str, list[str]]:
    return {
        "ID": [job.short_id for job in jobs],
        "NAME": [job.title for job in jobs],
        "STATE": [_state(job) for job in jobs],
        "APPLIANCE": [job.appliance_name or "-" for job in jobs],
        "GPUS": [str(job.gpus) for job in jobs],
        "USER": [job.user_email or "-" for job in jobs],
        "SUBMITTED": [f"{job.submitted_at:%Y-%m-%d %H:%M:%S}" for job in jobs],
        "DURATION": [_duration(job) for job in jobs],
    }


def _state(job: Job) -> str:
    return " ".join(f"{count} {state}" for state, count in job.array_states.items()) or job.state


def _duration(job: Job) -> str:
    if job.started_at is None:
        return "-"
    ended_at = job.finished_at or utc_now()
    return format_duration(max(0.0, round((ended_at - job.started_at).total_seconds())))


def _latest(series: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return the newest value of a field, over several GPUs their mean or sum."""
    values = [one["values"][-1] for one in series if one["field"] == field and one["values"]]
    if not values:
        return "-"
    total = sum(values)
    return format_value(field, total / len(values) if field.endswith("_percent") else total)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidInputError(f"--timeout: {error}") from error


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
