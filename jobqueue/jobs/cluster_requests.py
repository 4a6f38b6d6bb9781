"""What a requested job asks of clusters: its options, and to run without a container."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from jobqueue.executors.abilities import LIMITS, Need, needs_of
from jobqueue.jobs.slice_requests import is_slice_request
from protocol.clusters import ClusterKind, option_names, options_of
from protocol.job_spec import JobKind, JobRequest

MAX_VALUE_LENGTH = 500
MAX_JSON_LENGTH = 8000
_JSON_OPTIONS = frozenset({"ray.runtime_env", "ray.resources"})
_RAY_RESOURCES = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
_WHITESPACE: frozenset[str] = frozenset("\n\r\t")
# The fields of needs that are not named after theirs.
_FIELDS: Mapping[Need, str] = {
    Need.SERVICE: "kind",
    Need.HOST_NETWORK: "network",
    Need.GANG_NETWORK: "network",
    Need.GANG: "framework",
    Need.IMAGE_COMMAND: "command",
    Need.NO_IMAGE: "image",
}


def option_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request's options of clusters, by field."""
    for name, value in request.cluster_options.items():
        if problem := _option_problem(name, value):
            yield "cluster_options", problem
    kinds = kinds_of(request)
    if len(kinds) > 1:
        named = " and ".join(kinds)
        yield "cluster_options", f"The options are for {named}; set those of one kind of cluster."
    elif kinds:
        yield from limit_errors_of(kinds[0], request)


def kinds_of(request: JobRequest) -> list[ClusterKind]:
    """Return the kinds of clusters that the options of a request are for."""
    return [kind for kind in ClusterKind if options_of(kind, request.cluster_options)]


def limit_errors_of(kind: ClusterKind, request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield what clusters of a kind can't do for a request, by field."""
    is_service, has_slice = request.kind is JobKind.SERVICE, is_slice_request(request)
    needs = needs_of(request, is_service=is_service, has_slice=has_slice)
    for limit in LIMITS:
        if limit.executor == kind and limit.needs <= needs:
            (need,) = limit.needs
            name = _slice_field(request) if need is Need.GPU_SLICE else _FIELDS.get(need, need)
            # `jobqueue.queue.clusters` knows which of them needs an image.
            if name != "image" and not name.endswith(" options"):
                yield name, f"{limit.reason[:1].upper()}{limit.reason[1:]}."
    for mount in () if request.image else request.mounts:
        if mount.source != mount.target:
            yield "mounts", f"Without an image, {mount.source} can't be at {mount.target}."


def _slice_field(request: JobRequest) -> str:
    names = ("gpu_slice", "gpu_memory_bytes", "gpu_compute")
    return next(name for name in names if getattr(request, name))


def _option_problem(name: str, value: str) -> str:
    """Return why an option can't be, as a sentence, or ""."""
    names = option_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        instead = f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(names)}."
        return f"There is no option {name[:MAX_VALUE_LENGTH]!r}. {instead}"
    is_json = name in _JSON_OPTIONS
    maximum = MAX_JSON_LENGTH if is_json else MAX_VALUE_LENGTH
    allowed = _WHITESPACE if is_json else frozenset()
    if not value.strip():
        return f"{name} is empty; enter a value, or remove it."
    if len(value) > maximum:
        return f"{name} has {len(value)} characters; use at most {maximum}."
    if not all(character.isprintable() or character in allowed for character in value):
        return f"{name} has control characters or line breaks; remove them."
    return _json_problem(name, value) if is_json else _text_problem(name, value)


def _json_problem(name: str, value: str) -> str:
    document: Any = None
    problem = ""
    try:
        document = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        problem = f"{name} is not JSON: {error}."
    except RecursionError:
        problem = f"{name} is nested too deeply; use fewer levels."
    if problem or isinstance(document, dict):
        return problem or (_resources_problem(document) if name == "ray.resources" else "")
    return f"{name} is not a JSON object; enter one, such as {{}}."


def _resources_problem(resources: Mapping[str, Any]) -> str:
    for name, amount in resources.items():
        if name in _RAY_RESOURCES:
            return f"ray.resources has {name}; use the fields of the job for it."
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount <= 0:
            return f"ray.resources: {name!r} is not a number above 0."
    return ""


def _text_problem(name: str, value: str) -> str:
    if name.startswith(f"{ClusterKind.SLURM}.") and value.lstrip().startswith("-"):
        return f"{name} is {value!r}; it can't begin with '-'."
    if name == "slurm.nice" and not (value.isascii() and value.isdecimal()):
        return f"{name} is {value!r}; enter a whole number, such as 100."
    if name == "kubernetes.node_selector":
        for part in value.split(","):
            key, equals, _ = part.partition("=")
            if not equals or not key.strip():
                return f"{name}: {part!r} is not KEY=VALUE; enter such as pool=a,zone=b."
    return ""
