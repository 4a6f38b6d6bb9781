"""Job requests: the fields that a user submits, and their validation.

What they ask of appliances and of clusters is checked in `appliance_requests` and
`cluster_requests`, beside what those have.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from core.errors import InvalidInputError
from core.schedule_times import check_schedule, check_time_zone
from core.spec import limit_errors
from jobqueue.executors.confinement import DEVICE_VARIABLES, DRIVER_CAPABILITIES
from jobqueue.images.names import MAX_IMAGE_LENGTH, is_image_name
from jobqueue.jobs.appliance_requests import is_slice_request, rental_errors, slice_errors
from jobqueue.jobs.cluster_requests import option_errors
from jobqueue.jobs.relations import parse_array
from jobqueue.jobs.settings import QueueSettings
from protocol.autoscaling import Autoscaling, CostPeriod, ScalingMetric, ScalingWindow
from protocol.gangs import LED_BY_FIRST, Framework, JobNetwork, job_network
from protocol.job_spec import (
    MAX_PORT,
    MIN_IDLE_SECONDS,
    DatasetMount,
    FailureClass,
    HealthCheck,
    HealthCheckKind,
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

_ASK = "An admin can allow it in the queue settings."
_MAX_CHECK_LENGTH = 2000
_MAX_SCALING_LENGTH = 200
_REQUEST_METRICS = frozenset({ScalingMetric.CONCURRENT_REQUESTS, ScalingMetric.REQUESTS_PER_SECOND})


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


def permission_errors(request: JobRequest, settings: QueueSettings) -> Iterator[tuple[str, str]]:
    """Yield what a request's network and devices would need that the tenant does not allow."""
    if settings.allows_host_network:
        return
    if job_network(request.network, request.framework, request.nodes) is JobNetwork.HOST:
        yield "network", f"This tenant's jobs may not use the appliance's network. {_ASK}"
    if request.uses_rdma:
        yield "uses_rdma", f"This tenant's jobs may not use the appliance's RDMA devices. {_ASK}"


def autoscaling_errors(policy: Autoscaling, *, has_ports: bool, has_gpus: bool) -> Iterator[str]:
    """Yield what is wrong with how a service scales, whose job has ports or GPUs, or not."""
    for _, error in limit_errors(policy):
        yield error
    if policy.min_instances > policy.max_instances:
        yield f"min_instances is {policy.min_instances}; enter at most max_instances."
    if policy.metric not in tuple(ScalingMetric):
        yield f"{policy.metric!r} is not a metric; enter {', '.join(ScalingMetric)}."
        return
    if not math.isfinite(policy.max_cost):
        yield f"max_cost is {policy.max_cost:g}; enter an amount, or 0 for none."
    if policy.cost_period not in tuple(CostPeriod):
        yield f"cost_period is {policy.cost_period!r}; enter {' or '.join(CostPeriod)}."
    metric = ScalingMetric(policy.metric)
    yield from _target_errors(policy, metric, has_gpus=has_gpus)
    if metric in _REQUEST_METRICS and not has_ports:
        yield f"{metric.value} are counted at ports; add one, or choose another metric."
    yield from _sample_errors(policy, metric)
    has_waking_window = any(window.min_instances for window in policy.windows)
    if policy.min_instances == 0 and not (
        has_ports or has_waking_window or metric is ScalingMetric.SAMPLES
    ):
        yield "min_instances is 0, but nothing would wake the service; add a port, or enter 1."
    if metric is ScalingMetric.SCHEDULE and not policy.windows:
        yield "The metric schedule needs windows; add one."
    for window in policy.windows:
        yield from _window_errors(window)


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
    yield from _network_errors(request)
    yield from _framework_errors(request)
    yield from option_errors(request)
    yield from rental_errors(request)


def _text_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    if not request.name.strip():
        yield "name", "The name is empty; enter one."
    elif len(request.name) > MAX_NAME_LENGTH:
        yield "name", f"The name has {len(request.name)} characters; use at most {MAX_NAME_LENGTH}."
    elif not request.name.isprintable():
        yield "name", "The name has unprintable characters; use letters and digits."
    # Whether a cluster of the tenant runs jobs without one is checked by `cluster_requests`.
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
    for error in () if check is None else _health_check_errors(check):
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
        if name in DEVICE_VARIABLES or (name == DRIVER_CAPABILITIES and "all" in value.split(",")):
            yield where, f"{name} would give the container devices of the host; remove it."
        if "\0" in value:
            yield where, f"The value of {name} has a zero byte; remove it."


def _network_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's network, by field."""
    names = tuple(JobNetwork)
    if request.network and request.network not in names:
        yield "network", f"{request.network!r} is not one of: {', '.join(names)}."
    is_gang = request.nodes > 1
    if request.network == JobNetwork.GANG and not is_gang:
        instead = "set nodes to 2 or more, or remove the network"
        if request.kind is JobKind.SERVICE:
            instead = "a service has none; remove the network"
        yield "network", f"A private network connects the members of a gang: {instead}."
    has_framework = request.framework not in {"", Framework.NONE}
    if request.network == JobNetwork.BRIDGE and is_gang and has_framework:
        why = f"members on other appliances can't reach each other, which {request.framework} needs"
        instead = "Choose gang, or host if the tenant allows it."
        yield "network", f"On the engine's bridge, {why}. {instead}"


def _framework_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's framework, by field."""
    framework = request.framework
    if framework not in tuple(Framework):
        yield "framework", f"{framework!r} is not one of: {', '.join(Framework)}."
    if framework == Framework.NONE:
        return
    if request.kind is JobKind.SERVICE or request.array:
        kind = "a service" if request.kind is JobKind.SERVICE else "an array"
        yield "framework", f"A framework is for gangs and single jobs, not for {kind}; remove it."
    if request.nodes == 1 or framework not in LED_BY_FIRST:
        return
    if request.on_member_loss == OnMemberLoss.CONTINUE:
        problem = f"A gang of {framework} does not go on without a member"
        yield "on_member_loss", f"{problem}; choose stop or restart."
    if not request.command:
        problem = f"A gang of {framework} needs the command that its first member runs"
        yield "command", f"{problem}; enter one."


def _health_check_errors(check: HealthCheck) -> Iterator[str]:
    """Yield what is wrong with a health check."""
    if check.kind is not HealthCheckKind.COMMAND and not check.port:
        yield "port of the check is 0; enter 1 or more."
    path, command = check.path, check.command
    is_path = path.startswith("/") and path.isprintable() and " " not in path
    if check.kind is HealthCheckKind.HTTP and (not is_path or len(path) > _MAX_CHECK_LENGTH):
        yield f"{path!r} is not a path; enter one such as '/health'."
    is_command = command.strip() and "\0" not in command and len(command) <= _MAX_CHECK_LENGTH
    if check.kind is HealthCheckKind.COMMAND and not is_command:
        yield f"{command!r} is not a command; enter one such as 'pg_isready'."
    for _, error in limit_errors(check):
        yield error.replace(" is ", " of the check is ")


def _target_errors(policy: Autoscaling, metric: ScalingMetric, *, has_gpus: bool) -> Iterator[str]:
    if not (math.isfinite(policy.target) and policy.target > 0):
        yield f"target is {policy.target:g}; enter more than 0."
    if metric is ScalingMetric.GPU_UTILIZATION:
        if not has_gpus:
            yield "gpu_utilization needs GPUs; set gpus, or choose another metric."
        if policy.target > 100:  # noqa: PLR2004 - percent
            yield f"target is {policy.target:g}; a utilization is at most 100 percent."


def _sample_errors(policy: Autoscaling, metric: ScalingMetric) -> Iterator[str]:
    parts = policy.samples.split(".")
    is_name = len(parts) == 2 and all(parts) and policy.samples.isprintable()  # noqa: PLR2004
    if metric is not ScalingMetric.SAMPLES:
        if policy.samples or policy.tags:
            yield "samples and tags are for the metric samples; choose it, or remove them."
    elif not is_name or len(policy.samples) > _MAX_SCALING_LENGTH:
        yield f"samples is {policy.samples!r}; enter MEASUREMENT.FIELD, such as redis.queue_length."
    if any(len(name) + len(value) > _MAX_SCALING_LENGTH for name, value in policy.tags.items()):
        yield f"A tag has more than {_MAX_SCALING_LENGTH} characters; enter a shorter one."


def _window_errors(window: ScalingWindow) -> Iterator[str]:
    for _, error in limit_errors(window):
        yield f"{error.removesuffix('.')}, in each window."
    if window.min_instances > window.max_instances:
        yield "min_instances of a window is above its max_instances; enter at most that."
    for check, text in ((check_schedule, window.schedule), (check_time_zone, window.time_zone)):
        try:
            check(text)
        except ValueError as error:
            yield str(error)
