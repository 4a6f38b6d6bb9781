"""`vedette job run` and `update`: their options are the fields of a job."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import click
import msgspec
from click.core import ParameterSource

from cli.client import appliance_id
from cli.job_common import DURATION, PAIR, SIZE, Notation, print_pending, secret
from cli.job_output import follow_job
from core.errors import InvalidInputError
from core.quantities import format_size, unit_of
from core.spec import spec_fields
from protocol.autoscaling import parse_autoscaling
from protocol.job_spec import HealthCheck, JobRequest
from protocol.notation import parse_dataset, parse_health_check, parse_mount, parse_port
from vedette.client import Client
from vedette.job_fields import JobFields
from vedette.jobs import Job

# Options that are not named after their fields.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "env": ("--env", "-e"),
    "secrets": ("--secret",),
    "gpu_models": ("--gpu-model",),
    "shared_memory_bytes": ("--shm-size",),
    "working_dir": ("--workdir", "-w"),
    "mounts": ("--mount", "-v"),
    "datasets": ("--dataset",),
    "outputs": ("--output", "-o"),
    "ports": ("--port",),
    "labels": ("--label",),
    "required_labels": ("--require",),
    "cluster_options": ("--cluster-option",),
    "max_gpu_hour_price": ("--max-price",),
    "rental": ("--rental",),
    "max_retries": ("--retries",),
    "container_policy": ("--policy",),
}
# Fields whose options are declared by hand, with another value or for more than one field.
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


MOUNT = Notation("mount", parse_mount)
PORT = Notation("port", parse_port)
DATASET = Notation("dataset", parse_dataset)
HEALTH_CHECK = Notation("check", parse_health_check)
AUTOSCALING = Notation("policy", parse_autoscaling)
Command = Callable[..., None]
# What a user enters for each entry of a list or mapping, and how it is shown in help texts.
_ENTRIES: Mapping[str, tuple[Any, str]] = {
    "env": (PAIR, "KEY=VALUE"),
    "labels": (PAIR, "KEY=VALUE"),
    "required_labels": (PAIR, "KEY=VALUE"),
    "cluster_options": (PAIR, "NAME=VALUE"),
    "rental": (PAIR, "NAME=VALUE"),
    "secrets": (str, "NAME[=VALUE]"),
    "mounts": (MOUNT, "SOURCE:TARGET[:rw]"),
    "datasets": (DATASET, "NAME[@VERSION]:TARGET"),
    "outputs": (str, "PATH"),
    "ports": (PORT, "[NAME=]PORT"),
    "after_ok": (str, "JOB"),
    "after_any": (str, "JOB"),
}
_HELP = {
    "framework": "How the members of a gang find each other: variables, host file or cluster.",
    "network": "Network of the container: gang is private to the members of a gang.",
    "on_member_loss": "When a member of a gang fails: stop, restart or continue.",
    "secrets": "Secret variable, by default with the value that it has in this shell.",
    "container_policy": "Container policy: restricted or standard.",
}


def _option(name: str, **settings: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - click's
    """Return the option of a field."""
    field = spec_fields(JobRequest)[name]
    words = name.removeprefix("is_").removesuffix(unit_of(name).suffix).replace("_", "-")
    settings = {"help": _HELP.get(name, field.about.help).replace("`", ""), **settings}
    if isinstance(field.default, list | dict):
        entry_type, metavar = _ENTRIES.get(name, (str, "TEXT"))
        choices = list(map(str, field.about.choices))
        settings |= {"multiple": True, "type": click.Choice(choices) if choices else entry_type}
        settings |= {"metavar": None if choices else metavar}
        settings["help"] = f"{settings['help']} Repeatable."
    elif field.type is bool:
        settings["is_flag"] = True
    elif unit := {"_bytes": SIZE, "_seconds": DURATION}.get(unit_of(name).suffix):
        default = format_size(field.default, exact=True) if field.default else "0"
        settings |= {"type": unit, "default": default, "show_default": True}
    elif choices := [str(choice) for choice in field.about.choices if choice]:
        settings |= {"type": click.Choice(choices), "default": field.default or None}
        settings |= {"show_default": bool(field.default)}
    elif field.default is not msgspec.NODEFAULT:
        settings |= {"default": field.default, "show_default": field.type is not str}
    return click.option(*_NAMES.get(name, (f"--{words}",)), name, **settings)


_OWN_OPTIONS = (
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
    click.option("--appliance", help="Run on this appliance (name or ID). Defaults to any."),
)
# Fields that can't be updated, and have no option in `update`.
_FIXED = {"name", "priority", "time_limit_seconds", "project", "nodes", "on_member_loss"}
_FIXED |= {"framework", "network", "uses_rdma", "array", "after_ok", "after_any", "notify"}
_FIXED |= {"cluster_options", "autoscaling"}
# Options with a name and a value.
_PAIRS = ("env", "labels", "required_labels", "cluster_options", "rental")
_COMMON_OPTIONS = tuple(
    name
    for name in spec_fields(JobRequest)
    if name not in {"command", "secrets_from", "instances", *_OPTION_OF, *_FIXED}
)


_AUTOSCALE = click.option(
    "--autoscale",
    "autoscaling",
    type=AUTOSCALING,
    metavar="POLICY",
    help='Of a service: such as "0-4; concurrent_requests=8; zero=10m".',
)


def _with_options(command: Command) -> Command:
    """Add the options of `run`, `update` and `clone`."""
    options: list[Callable[[Command], Command]] = [*map(_option, _COMMON_OPTIONS), *_OWN_OPTIONS]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@_option("name", help="Job name. Defaults to the image name.")
@click.option("--template", help="Start from this template; other options replace its fields.")
@_option("priority")
@_option("time_limit_seconds")
@_option("nodes")
@_option("on_member_loss")
@_option("framework")
@_option("network")
@_option("uses_rdma")
@_option("cluster_options")
@_option("array")
@_option("after_ok")
@_option("after_any")
@_option("notify")
@_option("project")
@click.option("--service", is_flag=True, help="Run until stopped; restart on exit.")
@_option("instances")
@_AUTOSCALE
@click.option(
    "--follow/--detach", "is_followed", default=False, help="Follow the log until the job ends."
)
@click.option("--dry-run", is_flag=True, help="Only show where the job would go, and when.")
@_with_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    image: str,
    template: str | None,
    is_followed: bool,
    dry_run: bool,
    service: bool,
    **options: Any,  # noqa: ANN401 - those of `_fields`
) -> None:
    """Submit a job that runs COMMAND in a container. COMMAND defaults to the image's own.

    Without an image, COMMAND runs in the environment of a cluster's nodes.
    """
    has_image = _is_entered("image")
    with Client() as client:
        fields = _fields(client, kind="service" if service else "batch", **options)
        if template:
            start = client.template(template)["job"]
            image_of_template = start.pop("image")
            image = image if has_image else image_of_template
            fields = {**start, **_given(fields)}
        elif not has_image and not fields.get("cluster_options"):
            raise InvalidInputError("Enter --image, a --template or a --cluster-option.")
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
@_option("name", help="Job name. Defaults to that of the JOB.")
@_option("priority")
@_option("time_limit_seconds")
@_option("cluster_options")
@_AUTOSCALE
@_with_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def clone(*, job: str, **options: Any) -> None:  # noqa: ANN401 - those of `_fields`
    """Submit a copy of a JOB, with its secrets if it is yours.

    The options that you enter replace its fields; variables, labels and options of clusters are
    added to those that it has. Without a COMMAND it has that of the JOB.
    """
    with Client() as client:
        source = client.job(job)
        changes = _merged(source, _given(_fields(client, **options)))
        submitted = client.clone(source.id, image=changes.pop("image", None), **changes)
    click.echo(f"{submitted.id} {submitted.state}")


def _merged(job: Job, fields: JobFields) -> dict[str, Any]:
    """Return fields whose variables, labels and options are added to those of a job."""
    merged: dict[str, Any] = {**fields}
    for name in _PAIRS:
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
    for name in options.keys() & set(_PAIRS):
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
    entered = list(filter(_is_entered, options))
    if check is None and entered:
        raise InvalidInputError(f"--{entered[0].replace('_', '-')} needs --health.")
    if check is None:
        return None
    renamed = {_HEALTH_OPTIONS[name]: value for name, value in options.items()}
    return msgspec.structs.replace(check, **renamed)


def _given(fields: JobFields) -> JobFields:
    """Return the fields whose options are on the command line."""
    entered = {
        name: value for name, value in fields.items() if _is_entered(_OPTION_OF.get(name, name))
    }
    return cast("JobFields", entered)


def _is_entered(option: str) -> bool:
    """Return whether an option is on the command line."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE
