"""`vedette job`: submit container jobs, list and watch them, follow their logs and stop them.

A JOB is its name, its ID, or the beginning or end of an ID.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from cli.client import output_option, print_object, print_rows, print_table
from cli.job_common import DURATION, print_pending, secret
from cli.job_copy import copy
from cli.job_files import apply, export, schema
from cli.job_output import attach, logs
from cli.job_results import artifacts, download
from cli.job_run import AUTOSCALING, clone, run, update
from cli.job_schedules import schedule
from cli.job_shell import exec_command, shell
from cli.job_templates import template
from cli.local_time import local_seconds
from core.clock import utc_now
from core.quantities import format_duration, format_value
from protocol.autoscaling import Autoscaling, format_autoscaling
from protocol.gangs import Framework
from vedette.client import Client
from vedette.jobs import Job

COPY_HELP = "Secret variable, by default with its value in the job or in this shell; repeatable."
TOP_SECONDS = 2.0
FIRST_FIELDS = ("id", "name", "kind", "image", "command", "state", "reason", "message")
# Usage of the container and of its GPUs, as shown by `top`: title to field.
TOP_COLUMNS = {
    "CPU": "cpu_percent",
    "MEMORY": "memory_bytes",
    "GPU": "utilization_percent",
    "GPU MEM": "memory_used_bytes",
    "POWER": "power_watts",
}


@click.group()
def job() -> None:
    """Run, list, follow and stop jobs."""


@job.command()
@click.argument("name", metavar="JOB")
@click.option("--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help=COPY_HELP)
def retry(name: str, secrets: tuple[str, ...]) -> None:
    """Submit a JOB of yours again, with its secrets."""
    with Client() as client:
        source = client.job(name)
        values = dict(secret(text, {**os.environ, **source.env}) for text in secrets)
        submitted = client.retry(source.id, secrets=values)
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
@click.argument("name", metavar="SERVICE")
@click.argument("instances", type=int)
def scale(name: str, instances: int) -> None:
    """Change the number of INSTANCES of a SERVICE."""
    with Client() as client:
        scaled = client.scale(name, instances)
    click.echo(f"{scaled.id} instances {scaled.instances}")


@job.command()
@click.argument("name", metavar="SERVICE")
@click.argument("policy", required=False, type=AUTOSCALING)
@click.option("--off", is_flag=True, help="Let it scale by itself no longer.")
@output_option
def autoscale(name: str, policy: Autoscaling | None, off: bool, output: str) -> None:  # noqa: FBT001 - click's
    """Let a SERVICE change its number of instances by itself; without a POLICY, show how it does.

    A POLICY is such as "0-4; concurrent_requests=8; zero=10m": the bounds, the metric with its
    target for an instance, and what else differs from the defaults.
    """
    with Client() as client:
        if off or policy is not None:
            changed = client.autoscale(name, None if off else msgspec.to_builtins(policy))
            click.echo(f"{changed.id} {'scales by itself' if changed.autoscaling else 'is fixed'}")
            return
        status = client.autoscaling(name)
    if output == "table":
        rule = format_autoscaling(msgspec.convert(status.pop("policy"), Autoscaling))
        status = {"policy": rule, **status}
    print_object(status, output)


@job.command()
@click.argument("name", metavar="JOB")
@output_option
def why(name: str, output: str) -> None:
    """Show why a JOB waits, what must free up, and when it is expected to start."""
    with Client() as client:
        explanation = client.pending(name)
    if output == "table":
        print_pending(explanation)
    else:
        print_object(explanation, output)


@job.command("make-secret")
@click.argument("name", metavar="JOB")
@click.argument("variables", nargs=-1, required=True)
def hide_variables(name: str, variables: tuple[str, ...]) -> None:
    """Turn environment VARIABLES of a JOB into secrets."""
    with Client() as client:
        job = client.job(name)
        changed = client.post(f"/jobs/{job.id}/make-secret", {"names": list(variables)})
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
        jobs = list(client.jobs(limit=limit, state=state, search=search, is_collapsed=collapsed))
    if output != "table":
        print_rows(list(map(_fields, jobs)), output, {})
    elif jobs:
        print_table([list(_COLUMNS), *([cell(job) for cell in _COLUMNS.values()] for job in jobs)])
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
        job = client.job(name)
        events = client.get(f"/jobs/{job.id}/events")["items"]
        members = list(client.jobs(array_id=job.array_id)) if job.nodes > 1 else []
        has_framework = job.nodes > 1 or job.framework != Framework.NONE
        variables = client.framework(job.id)["variables"] if has_framework else []
    if output == "name":
        click.echo(job.name)
    elif output != "table":
        listed = [_fields(member) for member in _by_rank(members)]
        shown = {"events": events, "members": listed, "variables": variables}
        print_object(_fields(job) | shown, output)
    else:
        for key, value in (_fields(job) | {"attempt": None} | _slice_lines(job)).items():
            if value not in (None, "", [], {}):
                click.echo(f"{key.replace('_', ' '):<22} {_text(value)}")
        for member in _by_rank(members):
            place = member.appliance_name or "-"
            click.echo(f"member {member.array_index:<15} {member.id}  {member.state:<9}  {place}")
        for variable in variables:
            click.echo(f"{'variable':<22} {variable['name']}={variable['value']}")
        for event in events:
            click.echo(f"{local_seconds(event['at'])}  {event['state']:<9}  {event['message']}")


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--array", is_flag=True, help="Stop all tasks or instances of each.")
def stop(names: tuple[str, ...], *, array: bool) -> None:
    """Stop running JOBS, or remove waiting ones from the queue."""
    with Client() as client:
        for name in names:
            stopped = client.stop_array(name) if array else client.stop(name)
            click.echo(f"{stopped.id} {stopped.state}: stop requested.")


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
def delete(names: tuple[str, ...]) -> None:
    """Delete ended JOBS with their logs; with the first task of an array, all of its tasks."""
    with Client() as client:
        for name in names:
            deleted = client.delete_job(name)
            click.echo(f"{deleted.id} {deleted.name} deleted.")


job.add_command(stop, "cancel")
for _command in (
    *(run, clone, update, logs, attach, exec_command, shell, copy),
    *(apply, schema, template, schedule, export, artifacts, download),
):
    job.add_command(_command)


@job.command()
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", type=DURATION, help="Give up after this time, such as 2h.")
def wait(names: tuple[str, ...], timeout: int | None) -> None:
    """Wait until all JOBS have ended; exit as the first that did not succeed."""
    until = None if timeout is None else time.monotonic() + timeout
    status = 0
    with Client() as client:
        for name in names:
            remaining_seconds = None if until is None else max(0.0, until - time.monotonic())
            ended = client.wait(name, timeout_seconds=remaining_seconds)
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
            jobs = list(client.jobs(limit=limit, state="running"))
            usage = [client.get(f"/jobs/{job.id}/usage")["series"] for job in jobs]
            if not once:
                click.clear()
            if jobs:
                titles = ("ID", "NAME", "GPUS")
                rows = [
                    [*(_COLUMNS[title](job) for title in titles), *_usage(series)]
                    for job, series in zip(jobs, usage, strict=True)
                ]
                print_table([[*titles, *TOP_COLUMNS], *rows])
            else:
                click.echo("No jobs are running.", err=True)
            if once:
                return
            time.sleep(TOP_SECONDS)


def _slice_lines(job: Job) -> dict[str, str]:
    """Return what a job has of its GPU, and what separates it from others there."""
    held = (job.attempt or {}).get("gpu_slice")
    if not held:
        return {}
    uuid = f" ({held['uuid']})" if held["uuid"] else ""
    parts = ("memory", "faults", "bandwidth", "metrics")
    isolation = {f"{part}_isolation": held["isolation"][part] for part in parts}
    return {"gpu": held["gpu_uuid"], "slice": f"{held['text']}{uuid}", **isolation}


def _by_rank(members: Sequence[Job]) -> list[Job]:
    return sorted(members, key=lambda member: member.array_index or 0)


def _fields(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(job)
    return {name: fields[name] for name in FIRST_FIELDS} | fields


def _usage(series: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_latest(series, field) for field in TOP_COLUMNS.values()]


def _state(job: Job) -> str:
    return " ".join(f"{count} {state}" for state, count in job.array_states.items()) or job.state


def _duration(job: Job) -> str:
    if job.started_at is None:
        return "-"
    ended_at = job.finished_at or utc_now()
    return format_duration(max(0.0, round((ended_at - job.started_at).total_seconds())))


def _latest(series: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return the newest value of a field, over several GPUs their mean or sum."""
    values = [line["values"][-1] for line in series if line["field"] == field and line["values"]]
    if not values:
        return "-"
    total = sum(values)
    return format_value(field, total / len(values) if field.endswith("_percent") else total)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items() if item not in (None, ""))
    return " ".join(map(_text, value)) if isinstance(value, list) else str(value)


_COLUMNS: Mapping[str, Callable[[Job], str]] = {
    "ID": lambda job: job.short_id,
    "NAME": lambda job: job.title,
    "STATE": _state,
    "APPLIANCE": lambda job: job.appliance_name or "-",
    "GPUS": lambda job: job.requested_gpus or str(job.gpus),
    "USER": lambda job: job.user_email or "-",
    "SUBMITTED": lambda job: local_seconds(job.submitted_at),
    "DURATION": _duration,
}
