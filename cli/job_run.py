"""`vedette job run` and `update`: their options are the fields of a job."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import click
import msgspec
from click.core import ParameterSource

from cli.client import appliance_id
from cli.job_common import DURATION, SIZE, Notation, print_pending, secret
from cli.job_output import follow_job
from core.errors import InvalidInputError
from protocol.attempts import HealthCheck
from protocol.notation import parse_health_check, parse_mount, parse_port
from vedette.client import Client
from vedette.jobs import Job, JobFields

# Options whose fields have another name, or more than one.
_OPTION_OF = {
    "kind": "service",
    "appliance_id": "appliance",
    "health_check": "health",
} | dict.fromkeys(("idle_gpu_percent", "idle_gpu_seconds"), "idle_limit")
# Options of a health check: option to field.
_HEALTH_OPTIONS = {
    "health_interval": "interval_seconds",
    "health_timeout": "timeout_seconds",
    "health_start_period": "grace_seconds",
    "health_retries": "max_failures",
}
POLL_SECONDS = 1.0


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE.")
    return key, value


PAIR = Notation("pair", _pair)
MOUNT = Notation("mount", parse_mount)
PORT = Notation("port", parse_port)
HEALTH_CHECK = Notation("check", parse_health_check)
Command = Callable[..., None]
_OPTIONS = (
    click.option("--image", help="Container image."),
    click.option("--gpus", default=0, show_default=True, help="Number of GPUs."),
    click.option(
        "--gpu-memory",
        "gpu_memory_bytes",
        type=SIZE,
        default="0",
        show_default=True,
        help="Minimum per GPU.",
    ),
    click.option("--cpus", default=1.0, show_default=True, help="Number of CPU cores."),
    click.option(
        "--memory",
        "memory_bytes",
        type=SIZE,
        default="1GiB",
        show_default=True,
        help="RAM, such as 8GiB.",
    ),
    click.option(
        "--env",
        "-e",
        type=PAIR,
        multiple=True,
        metavar="KEY=VALUE",
        help="Environment variable; repeatable.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Secret variable, by default with the value that it has in this shell; repeatable.",
    ),
    click.option("--gpu-model", "gpu_models", multiple=True, help="Such as H100; repeatable."),
    click.option(
        "--shm-size",
        "shared_memory_bytes",
        type=SIZE,
        default="0",
        help="Size of /dev/shm. Half of the memory.",
    ),
    click.option("--workdir", "-w", "working_dir", default="", help="Working directory."),
    click.option(
        "--mount",
        "-v",
        "mounts",
        type=MOUNT,
        multiple=True,
        metavar="SOURCE:TARGET[:rw]",
        help="Data path; repeatable.",
    ),
    click.option(
        "--port", "ports", type=PORT, multiple=True, metavar="[NAME=]PORT", help="Port; repeatable."
    ),
    click.option(
        "--label",
        "labels",
        type=PAIR,
        multiple=True,
        metavar="KEY=VALUE",
        help="Label; repeatable.",
    ),
    click.option(
        "--require",
        "required_labels",
        type=PAIR,
        multiple=True,
        metavar="KEY=VALUE",
        help="Label that the appliance must have; repeatable.",
    ),
    click.option(
        "--preemptible",
        "is_preemptible",
        is_flag=True,
        help="May stop for another job; is queued again.",
    ),
    click.option(
        "--retries", "max_retries", default=0, show_default=True, help="Attempts after a failure."
    ),
    click.option(
        "--retry-on",
        multiple=True,
        type=click.Choice(["exit", "out_of_memory", "start", "appliance"]),
        help="Failures to retry; repeatable. Defaults to all.",
    ),
    click.option(
        "--idle-limit",
        type=(int, DURATION),
        metavar="PERCENT DURATION",
        help="Stop when all its GPUs stay below this utilization for so long, such as 5 30m.",
    ),
    click.option(
        "--health",
        type=HEALTH_CHECK,
        metavar="CHECK",
        help="Of a service: http:PORT/PATH, tcp:PORT or command:SHELL COMMAND.",
    ),
    click.option("--health-interval", type=DURATION, default="10s", show_default=True),
    click.option("--health-timeout", type=DURATION, default="5s", show_default=True),
    click.option("--health-start-period", type=DURATION, default="1m", show_default=True),
    click.option("--health-retries", default=3, show_default=True, help="Failures before restart."),
    click.option("--policy", "container_policy", help="Container policy: restricted or standard."),
    click.option("--appliance", help="Run on this appliance (name or ID). Defaults to any."),
)


def _with_options(command: Command) -> Command:
    """Add the options of `run` and `update`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="Job name. Defaults to the image name.")
@click.option("--template", help="Start from this template; other options replace its fields.")
@click.option("--priority", default=0, show_default=True, help="-100 to 100.")
@click.option(
    "--time-limit",
    "time_limit_seconds",
    type=DURATION,
    default="0",
    help="Of each attempt, such as 2h.",
)
@click.option("--array", default="", help="One task for each index: 0-99, or 0-99%10 at once.")
@click.option("--after-ok", multiple=True, metavar="JOB", help="Start after its success.")
@click.option("--after-any", multiple=True, metavar="JOB", help="Start after its end; repeatable.")
@click.option("--notify", multiple=True, help="At its end: email, or a receiver; repeatable.")
@click.option("--service", is_flag=True, help="Run until stopped; restart on exit.")
@click.option("--instances", default=1, show_default=True, help="Of a service.")
@click.option(
    "--follow/--detach", "is_followed", default=False, help="Follow the log until the job ends."
)
@click.option("--dry-run", is_flag=True, help="Only show where the job would go, and when.")
@_with_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    image: str | None,
    template: str | None,
    is_followed: bool,
    dry_run: bool,
    service: bool,
    **options: Any,  # noqa: ANN401 - those of `_fields`
) -> None:
    """Submit a job that runs COMMAND in a container. COMMAND defaults to the image's own."""
    with Client() as client:
        fields = _fields(client, kind="service" if service else "batch", **options)
        if template:
            start = client.template(template)["job"]
            image = image or start.pop("image")
            fields = {**start, **_given(fields)}
        if not image:
            raise InvalidInputError("Enter --image, or a --template.")
        if dry_run:
            print_pending(client.dry_run(image, **fields))
            return
        submitted = client.submit(image, **fields)
        click.echo(f"{submitted.id} {submitted.state}")
        if is_followed:
            sys.exit(follow_job(client, submitted.id))


@click.command()
@click.argument("job", metavar="SERVICE")
@_with_options
@click.option("--rollback", is_flag=True, help="Undo the latest update instead.")
@click.option("--wait/--detach", "is_followed", default=False, help="Wait until it is done.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def update(
    *,
    job: str,
    rollback: bool,
    is_followed: bool,
    **options: Any,  # noqa: ANN401 - those of `_fields`
) -> None:
    """Update the instances of a SERVICE one by one: the next follows when one is healthy.

    Only the options that you enter change, and variables and labels are added to those that it
    has. Without options the instances restart one by one.
    """
    with Client() as client:
        if rollback:
            changed = client.roll_back(job)
        else:
            service = client.job(job)
            changes = _merged(service, _given(_fields(client, **options)))
            changed = client.update(service.id, **changes)
        if not is_followed:
            click.echo(f"{changed.id} {changed.state}")
            return
        sys.exit(_wait_for_update(client, changed.id))


@click.command()
@click.argument("job", metavar="JOB")
@click.option("--name", help="Job name. Defaults to that of the JOB.")
@click.option("--priority", default=0, help="-100 to 100. Defaults to that of the JOB.")
@click.option("--time-limit", "time_limit_seconds", type=DURATION, default="0", help="Such as 2h.")
@_with_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def clone(*, job: str, **options: Any) -> None:  # noqa: ANN401 - those of `_fields`
    """Submit a copy of a JOB, with its secrets if it is yours.

    The options that you enter replace its fields; variables and labels are added to those that it
    has. Without a COMMAND it has that of the JOB.
    """
    with Client() as client:
        source = client.job(job)
        changes = _merged(source, _given(_fields(client, **options)))
        submitted = client.clone(source.id, image=changes.pop("image", None), **changes)
    click.echo(f"{submitted.id} {submitted.state}")


def _merged(job: Job, fields: JobFields) -> dict[str, Any]:
    """Return fields whose variables and labels are added to those of a job."""
    merged: dict[str, Any] = {**fields}
    for name in ("env", "labels", "required_labels"):
        merged |= {name: {**getattr(job, name), **merged[name]}} if name in merged else {}
    return merged


def _wait_for_update(client: Client, job_id: str) -> int:
    """Print the progress of an update until its end; return the exit status."""
    shown = ""
    while True:
        progress = client.update_progress(job_id)
        text = (
            f"{progress['state']}: {progress['updated']} of {progress['total']} instances updated"
        )
        if text != shown:
            click.secho(text, err=True)
        shown = text
        if progress["state"] != "rolling":
            click.echo(progress["message"], err=True, nl=bool(progress["message"]))
            return 0 if progress["state"] == "done" else 1
        time.sleep(POLL_SECONDS)


def _fields(
    client: Client,
    *,
    secrets: tuple[str, ...],
    idle_limit: tuple[int, float] | None,
    appliance: str | None,
    health: HealthCheck | None,
    **options: Any,  # noqa: ANN401 - the fields of the same name
) -> JobFields:
    for name in ("env", "labels", "required_labels"):
        options[name] = dict(options[name])
    options["secrets"] = dict(secret(text, os.environ) for text in secrets)
    options["health_check"] = _health_check(
        health, {name: options.pop(name) for name in _HEALTH_OPTIONS}
    )
    if idle_limit:
        options["idle_gpu_percent"], options["idle_gpu_seconds"] = idle_limit
    if appliance:
        options["appliance_id"] = appliance_id(client, appliance)
    # Without a name and classes of failures, the defaults apply.
    entered = {name: value for name, value in options.items() if value not in (None, ())}
    return cast("JobFields", msgspec.to_builtins(entered))


def _health_check(check: HealthCheck | None, options: dict[str, int]) -> HealthCheck | None:
    """Return a check with its intervals.

    Raises:
        InvalidInputError: they are on the command line without a check.
    """
    source = click.get_current_context().get_parameter_source
    entered = [name for name in options if source(name) is ParameterSource.COMMANDLINE]
    if check is None and entered:
        raise InvalidInputError(f"--{entered[0].replace('_', '-')} needs --health.")
    if check is None:
        return None
    renamed = {_HEALTH_OPTIONS[name]: value for name, value in options.items()}
    return msgspec.structs.replace(check, **renamed)


def _given(fields: JobFields) -> JobFields:
    """Return the fields whose options are on the command line."""
    source = click.get_current_context().get_parameter_source
    entered = {
        name: value
        for name, value in fields.items()
        if source(_OPTION_OF.get(name, name)) is ParameterSource.COMMANDLINE
    }
    return cast("JobFields", entered)
