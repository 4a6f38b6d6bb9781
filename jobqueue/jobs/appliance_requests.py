"""What a requested job asks of appliances: parts of GPUs, rented ones, and enough resources.

Clusters are in `jobqueue.jobs.cluster_requests`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from core.errors import InvalidInputError
from core.quantities import format_size, format_value
from jobqueue.executors.abilities import Need, needs_of
from jobqueue.partitions.checks import nearest_profile
from jobqueue.placement.filters import TOTALS, apply_filters
from jobqueue.placement.gangs import capacity
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.plan_state import whole_gpu_for
from jobqueue.placement.rental_choice import REFUSED
from jobqueue.placement.rentals import AVAILABILITY, RENTAL_KEYS, REPUTATION, words_of
from jobqueue.placement.slices import GPUKind, SliceNeed, options
from jobqueue.placement.views import ApplianceView, JobView
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import JobKind, JobRequest

MAX_PROFILE_LENGTH = 32
_PARTS = ("gpu_slice", "gpu_memory_bytes", "gpu_compute")
_ASK = "Request gpu_memory_bytes instead, or ask an admin for a partition policy"
MAX_VALUE_LENGTH = 500
_MAXIMA = {AVAILABILITY: 100, REPUTATION: 1}
# The fields of needs that are not named after theirs.
_FIELDS = {"network gang": "network", "network host": "network", "gang": "framework"}


class _SliceProblem(NamedTuple):
    """Why no GPU of the tenant has what a job needs, by field."""

    field: str
    sentence: str


def is_slice_request(request: JobRequest) -> bool:
    """Return whether a request is for a part of a GPU."""
    return not request.gpus and any(getattr(request, name) for name in _PARTS)


def slice_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of the fields about a part of a GPU, with their names."""
    profile = request.gpu_slice
    if len(profile) > MAX_PROFILE_LENGTH or not profile.isprintable() or profile != profile.strip():
        form = f"at most {MAX_PROFILE_LENGTH} characters, such as '1g.10gb'"
        yield "gpu_slice", f"{profile[:MAX_PROFILE_LENGTH]!r} is not a MIG profile; use {form}."
    if request.gpus:
        for name in ("gpu_slice", "gpu_compute"):
            if getattr(request, name):
                problem = f"{name} is for a part of one GPU, and gpus for whole ones"
                yield name, f"{problem}; set gpus to 0, or remove {name}."
    elif profile and (request.gpu_memory_bytes or request.gpu_compute):
        problem = "A profile has its own memory and compute"
        yield "gpu_slice", f"{problem}; remove gpu_memory_bytes and gpu_compute, or the profile."
    if request.nodes > 1 and is_slice_request(request):
        yield "nodes", "The members of a gang get whole GPUs; set gpus, or nodes to 1."


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
    problem = _slice_problem(job, able)
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


def rental_errors(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the errors of a request about rented appliances, by field."""
    for problem in requirement_errors(request.rental):
        yield "rental", problem
    if not request.max_gpu_hour_price:
        if request.rental:
            yield "rental", "rental is set without max_gpu_hour_price; set the highest price, too."
        return
    needs = needs_of(request, is_service=request.kind is JobKind.SERVICE)
    need = next((need for need in REFUSED if need in needs), None)
    if need is not None:
        name = _FIELDS.get(need, need.value)
        own = f"remove {name}, or set max_gpu_hour_price to 0 to stay on own appliances"
        yield "max_gpu_hour_price", f"Rented appliances {REFUSED[need]}; {own}."
    elif request.cluster_options:
        instead = "remove cluster_options, or set max_gpu_hour_price to 0"
        yield "max_gpu_hour_price", f"No clusters are rented; {instead}."


def requirement_errors(rental: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with requirements, as sentences."""
    return filter(None, (_requirement_problem(key, value) for key, value in rental.items()))


def _slice_problem(job: JobView, appliances: Sequence[ApplianceView]) -> _SliceProblem | None:
    """Return why the GPUs of some appliances don't offer what a job needs; None if they do.

    What is named in its place would work.
    """
    kinds = {gpu.kind for view in appliances for gpu in view.gpus if gpu.kind is not None}
    need = job.slice_need
    if need is None:
        return _whole_problem(job, appliances)
    if any(options(kind, need) for kind in kinds):
        return None
    if need.profile:
        return _profile_problem(need.profile, kinds)
    largest = max((_largest(kind) for kind in kinds), default=(0, ""))
    if not largest[1]:
        return None
    field = "gpu_memory_bytes" if need.memory_bytes > largest[0] else "gpu_compute"
    return _SliceProblem(field, f"No slice has {need}. The largest is {largest[1]}.")


def _whole_problem(job: JobView, appliances: Sequence[ApplianceView]) -> _SliceProblem | None:
    whole = max(sum(not _is_cut(gpu.kind) for gpu in view.gpus) for view in appliances)
    if not job.gpus or whole >= job.gpus or not any(len(v.gpus) >= job.gpus for v in appliances):
        return None
    cut = f"{job.gpus} whole GPUs requested, but MIG cuts GPUs into slices by a partition policy"
    limit = f"at most {whole} of an appliance are whole"
    return _SliceProblem("gpus", f"{cut}: {limit}. Request fewer, or a part by gpu_memory_bytes.")


def _is_cut(kind: GPUKind | None) -> bool:
    return kind is not None and kind.mode is PartitionMode.MIG


def _profile_problem(profile: str, kinds: set[GPUKind]) -> _SliceProblem | None:
    cut = [kind for kind in kinds if _is_cut(kind)]
    offered = sorted({name for kind in cut for name in _offered(kind)})
    if not offered and any(not kind.profiles for kind in cut):
        sentence = (
            "The profiles of the GPUs are known once MIG is on, which waits until no job uses "
            "them. Submit it then, or request gpu_memory_bytes."
        )
    elif not offered:
        sentence = f"No GPU is cut by MIG, so none offers {profile!r}. {_ASK}."
    else:
        nearest = nearest_profile(profile, offered)
        hint = f" The nearest is {nearest}." if nearest else ""
        sentence = f"No GPU offers the MIG profile {profile!r}. Choose from {', '.join(offered)}."
        sentence += hint
    return _SliceProblem("gpu_slice", sentence)


def _offered(kind: GPUKind) -> list[str]:
    """Return the profiles that jobs can get of a kind."""
    return [
        profile.name for profile in kind.profiles if options(kind, SliceNeed(profile=profile.name))
    ]


def _largest(kind: GPUKind) -> tuple[int, str]:
    """Return the memory of the largest slice of a kind, and what it is."""
    if kind.mode is not PartitionMode.MIG:
        return kind.memory_bytes, f"a whole GPU of {format_size(kind.memory_bytes)}"
    offered = _offered(kind)
    sizes = [(row.memory_bytes, row.name) for row in kind.profiles if row.name in offered]
    memory_bytes, name = max(sizes, default=(0, ""))
    return memory_bytes, name and f"{name} with {format_size(memory_bytes)}"


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


def _requirement_problem(key: str, value: str) -> str:
    """Return what is wrong with a requirement, as a sentence, or ""."""
    if key not in RENTAL_KEYS:
        near = get_close_matches(key, RENTAL_KEYS, n=1)
        instead = f"Did you mean {near[0]!r}?" if near else f"Use {', '.join(RENTAL_KEYS)}."
        return f"There is no requirement {key[:MAX_VALUE_LENGTH]!r}. {instead}"
    if len(value) > MAX_VALUE_LENGTH or not value.isprintable():
        return f"{key} is too long, or has unprintable characters; enter a short text."
    if key not in _MAXIMA:
        return "" if words_of(value) else f"{key} is empty; enter a value, or remove it."
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if 0 <= number <= _MAXIMA[key]:
        return ""
    return f"{key} is {value!r}; enter a number from 0 to {_MAXIMA[key]}."
