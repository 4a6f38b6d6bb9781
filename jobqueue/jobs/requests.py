"""Job requests: the fields that a user submits, and their validation."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from core.errors import InvalidInputError
from core.quantities import format_size, format_value
from core.spec import limit_errors
from jobqueue.executors.abilities import Need
from jobqueue.executors.gpu_environment import CAPABILITIES, DEVICE_VARIABLES
from jobqueue.images.names import MAX_IMAGE_LENGTH, is_image_name
from jobqueue.jobs.arrays import parse_array
from jobqueue.jobs.autoscaling_requests import autoscaling_errors
from jobqueue.jobs.cluster_requests import option_errors
from jobqueue.jobs.framework_requests import framework_errors
from jobqueue.jobs.health_checks import health_check_errors
from jobqueue.jobs.network_requests import network_errors
from jobqueue.jobs.rental_requests import rental_errors
from jobqueue.jobs.slice_requests import is_slice_request, slice_errors, slice_problem
from jobqueue.placement.filters import TOTALS, apply_filters
from jobqueue.placement.gangs import capacity
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.sizing import whole_gpu_for
from jobqueue.placement.views import ApplianceView, JobView
from protocol.autoscaling import Autoscaling
from protocol.job_spec import (
    MAX_PORT,
    MIN_IDLE_SECONDS,
    DatasetMount,
    FailureClass,
    HealthCheck,
    JobKind,
    JobRequest,
    Mount,
    OnMemberLoss,
    Port,
)
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_NAME_LENGTH = 100
MAX_TEXT_LENGTH = 64 * 1024
MAX_PATH_LENGTH = 300

_SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys"})
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


_PARTS: Mapping[str, Any] = {
    "kind": JobKind,
    "mounts": list[Mount],
    "datasets": list[DatasetMount],
    "ports": list[Port],
    "health_check": HealthCheck | None,
    "autoscaling": Autoscaling | None,
}


def whole_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without a kind, data paths, ports and health checks that are incomplete."""
    parts = dict(values)
    for name in _PARTS.keys() & values:
        try:
            msgspec.convert(values[name], _PARTS[name])
        except msgspec.ValidationError:
            del parts[name]
    return parts


def request_from(values: Mapping[str, Any]) -> JobRequest:
    """Return a request of its fields, whose kind and parts may be JSON."""
    parts = {name: msgspec.convert(values[name], _PARTS[name]) for name in _PARTS.keys() & values}
    return JobRequest(**{**values, **parts})


def check_request(
    request: JobRequest, other_errors: Iterable[tuple[str, str]] = (), *, scope: Scope | None = None
) -> None:
    """Raise `InvalidInputError` with every error of every field, if there are any.

    Args:
        request: the request.
        other_errors: errors found elsewhere, by field.
        scope: of the user, who may lack a permission for a field.
    """
    errors = request_errors(request, other_errors, scope=scope)
    if errors:
        details = " ".join(error for of_field in errors.values() for error in of_field)
        raise InvalidInputError(f"The job can't be submitted. {details}", errors=errors)


def request_errors(
    request: JobRequest, other_errors: Iterable[tuple[str, str]] = (), *, scope: Scope | None = None
) -> dict[str, list[str]]:
    """Return the errors that `check_request` would raise, by field."""
    errors: dict[str, list[str]] = {}
    for field_name, error in (*_errors(request), *_rights(request, scope), *other_errors):
        errors.setdefault(field_name, []).append(error)
    return errors


def check_capacity(job: JobView, appliances: Sequence[ApplianceView], *, now: datetime) -> None:
    """Raise `InvalidInputError` if the job exceeds every appliance.

    A tenant without appliances may submit jobs: they wait for one.
    """
    able = [view for view in appliances if view.executors]
    ledger = Ledger(able, now=now)
    if not able:
        return
    _check_staging(job, able)
    # A job that names no profile gets a whole GPU where no slice suffices.
    has_choice = job.slice_need is not None and not job.slice_need.profile
    for wanted in (job, whole_gpu_for(job)) if has_choice else (job,):
        large, _ = apply_filters(TOTALS, ledger, wanted.shape, np.ones(ledger.size, np.bool_))
        if large.any():
            _check_gang(wanted, ledger, large)
            return
    problem = slice_problem(job, able)
    if problem is not None:
        raise InvalidInputError(
            f"The job {job.name!r} can't be submitted. {problem.sentence}",
            code="no_such_slice",
            errors={problem.field: [problem.sentence]},
        )
    job = whole_gpu_for(job) if has_choice else job
    largest = max(able, key=_size)
    requested = _figures(job.gpus, job.gpu_memory_bytes, job.cpus, job.memory_bytes)
    gpu_memory_bytes = _gpu_memory(largest) if job.gpu_memory_bytes else 0
    gpus, cpus, memory_bytes = _size(largest)
    has = _figures(gpus, gpu_memory_bytes, cpus, memory_bytes)
    raise InvalidInputError(
        f"No appliance is large enough for {job.name!r}: it requests {requested}. The largest is "
        f"{largest.name} with {has}. Request less, or add an appliance.",
        code="exceeds_every_appliance",
        errors=_excesses(job, able),
    )


def _check_staging(job: JobView, able: Sequence[ApplianceView]) -> None:
    """Raise `InvalidInputError` if no agent fetches the datasets of a job."""
    if not job.datasets or any(Need.DATASETS not in view.missing for view in able):
        return
    named = able[0].name if len(able) == 1 else "None of the appliances"
    verb = "fetches no datasets" if len(able) == 1 else "fetches datasets"
    problem = f"{named} {verb}. A newer agent with [datasets] in its configuration does."
    message = f"The job {job.name!r} can't be submitted. {problem}"
    raise InvalidInputError(message, code="no_dataset_cache", errors={"datasets": [problem]})


def _check_gang(job: JobView, ledger: Ledger, large: Mask) -> None:
    """Raise `InvalidInputError` if the appliances, while idle, can't hold all members."""
    limit = capacity(ledger, job.shape, large)
    if job.nodes > max(1, limit):
        problem = (
            f"{job.nodes} members with {_figures(job.gpus, 0, job.cpus, job.memory_bytes)} each "
            f"exceed the tenant's appliances, which hold {limit}. Enter at most {limit} nodes, or "
            "request less for each."
        )
        raise InvalidInputError(
            f"The gang {job.name!r} can't be submitted. {problem}",
            code="exceeds_all_appliances",
            errors={"nodes": [problem]},
        )


def _errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    yield from limit_errors(request)
    yield from _text_errors(request)
    yield from _env_errors("env", request.env)
    yield from _env_errors("secrets", request.secrets)
    for name in request.env.keys() & request.secrets.keys():
        yield "secrets", f"{name} is in both env and secrets; remove one."
    pairs = (*request.env.items(), *request.secrets.items())
    if sum(len(name) + len(value) for name, value in pairs) > MAX_TEXT_LENGTH:
        yield "env", f"env and secrets are longer than {MAX_TEXT_LENGTH} characters; shorten them."
    yield from _container_errors(request)
    yield from _requirement_errors(request)
    yield from _relation_errors(request)
    yield from _idle_errors(request)
    yield from _service_errors(request)
    yield from _gang_errors(request)
    yield from network_errors(request)
    yield from framework_errors(request)
    yield from option_errors(request)
    yield from rental_errors(request)


def _text_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    if not request.name.strip():
        yield "name", "The name is empty; enter one."
    elif len(request.name) > MAX_NAME_LENGTH:
        yield "name", f"The name has {len(request.name)} characters; use at most {MAX_NAME_LENGTH}."
    elif not request.name.isprintable():
        yield "name", "The name has unprintable characters; use letters and digits."
    # Whether a cluster of the tenant runs jobs without one is checked by `jobqueue.queue.clusters`.
    if request.image and not is_image_name(request.image):
        shown = repr(request.image[:MAX_IMAGE_LENGTH])
        form = "use the form 'registry:5000/team/app:1.2', in lower case"
        yield "image", f"{shown} is not an image name; {form}."


def _container_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    if sum(map(len, request.command)) > MAX_TEXT_LENGTH:
        yield "command", f"The command is longer than {MAX_TEXT_LENGTH} characters; shorten it."
    if any("\0" in argument for argument in request.command):
        yield "command", "The command has a zero byte; remove it."
    if request.cpus == 0:
        yield "cpus", "cpus is 0; enter more."
    path = request.working_dir
    if path and (not path.startswith("/") or not path.isprintable() or len(path) > MAX_PATH_LENGTH):
        yield "working_dir", f"{path!r} is not an absolute path; enter one such as '/workspace'."
    if request.shared_memory_bytes > request.memory_bytes:
        problem = f"shared_memory_bytes is {request.shared_memory_bytes}"
        yield "shared_memory_bytes", f"{problem}; enter at most memory_bytes."
    if request.time_limit_seconds and request.kind is JobKind.SERVICE:
        yield "time_limit_seconds", "A service runs until it is stopped; remove the time limit."
    yield from (("ports", error) for error in _port_errors(request.ports))
    yield from (("outputs", error) for error in _output_errors(request))


def _output_errors(request: JobRequest) -> Iterator[str]:
    others = [mount.target for mount in request.mounts]
    others += [mount.target for mount in request.datasets]
    seen: list[str] = []
    for path in request.outputs:
        parts = path.split("/")[1:]
        is_plain = bool(parts) and not any(part in {"", ".", ".."} for part in parts)
        if not path.startswith("/") or not path.isprintable() or not is_plain:
            yield f"{path!r} is not the absolute path of a folder; enter one such as '/results'."
        elif len(path) > MAX_PATH_LENGTH:
            yield f"{path[:50]!r}... has more than {MAX_PATH_LENGTH} characters; shorten it."
        elif parts[0] in _SYSTEM_FOLDERS:
            yield f"{path!r} is a folder of the system; use one such as '/results'."
        elif near := next((other for other in (*seen, *others) if _overlap(path, other)), None):
            yield f"{path!r} overlaps {near!r}; use folders that contain no other."
        seen.append(path)


def _overlap(path: str, other: str) -> bool:
    path, other = f"{path.rstrip('/')}/", f"{other.rstrip('/')}/"
    return path.startswith(other) or other.startswith(path)


def _port_errors(ports: Sequence[Port]) -> Iterator[str]:
    for port in ports:
        if not 0 < port.container_port <= MAX_PORT:
            yield f"{port.container_port} is not a port; enter 1 to {MAX_PORT}."
        if port.name and not _PORT_NAME.fullmatch(port.name):
            yield f"{port.name!r} is not a port's name; use lower-case letters and digits."
    # An address is looked up by the port's name, or by its number.
    numbers = {port.container_port for port in ports}
    keys = {port.name or str(port.container_port) for port in ports}
    if len(numbers) < len(ports) or len(keys) < len(ports):
        yield "A port or its name occurs twice; remove one, or give it another name."


def _relation_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    classes = [failure_class.value for failure_class in FailureClass]
    for name in request.retry_on:
        if name not in classes:
            yield "retry_on", f"{name!r} is not a failure class; use {', '.join(classes)}."
    if request.array:
        try:
            parse_array(request.array)
        except ValueError as error:
            yield "array", str(error)


def _service_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    check = request.health_check
    if request.kind is not JobKind.SERVICE:
        if request.instances > 1:
            yield "instances", "Only a service has instances; set kind to service, or use array."
        if check is not None:
            yield "health_check", "Only a service has a health check; set kind to service."
        if request.autoscaling is not None:
            yield "autoscaling", "Only a service scales by itself; set kind to service."
    elif request.array:
        yield "array", "A service has instances instead of an array; set instances."
    for error in () if check is None else health_check_errors(check):
        yield "health_check", error
    policy = request.autoscaling
    if policy is not None and request.kind is JobKind.SERVICE:
        has_ports = bool(request.ports)
        for error in autoscaling_errors(policy, has_ports=has_ports, has_gpus=_has_gpus(request)):
            yield "autoscaling", error
        if request.instances > policy.max_instances:
            allowed = f"at most {policy.max_instances}, as autoscaling says"
            yield "instances", f"instances is {request.instances}; enter {allowed}."


def _has_gpus(request: JobRequest) -> bool:
    return bool(request.gpus or is_slice_request(request))


def _gang_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    if request.on_member_loss not in tuple(OnMemberLoss):
        choices = ", ".join(OnMemberLoss)
        yield "on_member_loss", f"{request.on_member_loss!r} is not one of: {choices}."
    if request.nodes < 2:  # noqa: PLR2004 - one member is no gang
        return
    if request.kind is JobKind.SERVICE:
        yield "nodes", "A service has instances instead of gang members; set instances."
    elif request.array:
        yield "nodes", "A gang can't be an array, too; submit a job for each gang."
    if request.max_retries and request.on_member_loss == OnMemberLoss.STOP:
        problem = "A gang with on_member_loss 'stop' is not retried"
        yield "on_member_loss", f"{problem}; choose restart or continue, or set max_retries to 0."


def _idle_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    percent, seconds = request.idle_gpu_percent, request.idle_gpu_seconds
    if 0 < seconds < MIN_IDLE_SECONDS:
        allowed = f"{MIN_IDLE_SECONDS} or more, or 0 for none"
        yield "idle_gpu_seconds", f"idle_gpu_seconds is {seconds}; enter {allowed}."
    if bool(percent) != bool(seconds):
        yield "idle_gpu_seconds", "Set both idle_gpu_percent and idle_gpu_seconds, or neither."


def _requirement_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    yield from slice_errors(request)
    for name in ("gpu_models", "idle_gpu_percent"):
        if getattr(request, name) and not request.gpus and not is_slice_request(request):
            instead = "set gpus as well, or gpu_memory_bytes for a part of a GPU"
            yield name, f"{name} is set without gpus; {instead}."
    for word in request.gpu_models:
        if not word.strip() or not word.isprintable() or len(word) > MAX_NAME_LENGTH:
            yield "gpu_models", f"{word!r} is not a GPU model; enter one such as 'H100'."
    for where, labels in (("labels", request.labels), ("required_labels", request.required_labels)):
        for key, value in labels.items():
            if not _LABEL.fullmatch(key) or len(value) > MAX_NAME_LENGTH or "\0" in value:
                yield where, f"{key!r} is not a label; use up to 63 letters, digits, '-', '_', '.'."


def _rights(request: JobRequest, scope: Scope | None) -> Iterator[tuple[str, str]]:
    if request.priority > 0 and scope and not scope.allows(Permission.STOP_ANY_JOB):
        yield "priority", "Only an admin can set a priority above 0; enter 0 or less."


def _env_errors(where: str, env: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            yield where, f"{name!r} is not a variable name; use letters, digits and underscores."
        if name in DEVICE_VARIABLES or (name == CAPABILITIES and "all" in value.split(",")):
            yield where, f"{name} would give the container devices of the host; remove it."
        if "\0" in value:
            yield where, f"The value of {name} has a zero byte; remove it."


def _excesses(job: JobView, able: Sequence[ApplianceView]) -> dict[str, list[str]]:
    figures = {
        "gpus": (job.gpus, max(_size(view)[0] for view in able)),
        "gpu_memory_bytes": (job.gpu_memory_bytes, max(map(_gpu_memory, able))),
        "cpus": (job.cpus, max(_size(view)[1] for view in able)),
        "memory_bytes": (job.memory_bytes, max(_size(view)[2] for view in able)),
    }
    errors = {}
    for name, (wanted, maximum) in figures.items():
        if wanted > maximum:
            # GPUs of unknown memory have 0.
            available = format_value(name, maximum) if maximum or name == "gpus" else "unknown"
            errors[name] = [
                f"{format_value(name, wanted)} requested; the most available is {available}."
            ]
    return errors


def _figures(gpus: int, gpu_memory_bytes: int, cpus: float, memory_bytes: int) -> str:
    memory = f" with {format_size(gpu_memory_bytes)}" if gpu_memory_bytes else ""
    own = format_size(memory_bytes)
    return f"{gpus} GPUs{memory}, {cpus:g} CPU cores and {own} of memory"


def _size(view: ApplianceView) -> tuple[int, float, int]:
    """Return the GPUs, cores and memory of an appliance, or of the largest node of a cluster."""
    if view.cluster is not None:
        return view.cluster.largest
    return len(view.gpus), view.cpus, view.memory_bytes


def _gpu_memory(view: ApplianceView) -> int:
    if view.cluster is not None:
        return int(view.cluster.gpu_memory_bytes.max(initial=0))
    return max((gpu.memory_bytes for gpu in view.gpus), default=0)
