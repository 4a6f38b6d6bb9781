"""Checks of requests for a part of a GPU: which fields go together, and whether GPUs offer it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from core.quantities import format_size
from jobqueue.partitions.checks import nearest_profile
from jobqueue.placement.slices import GPUKind, SliceNeed, options
from jobqueue.placement.views import ApplianceView, JobView
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import JobRequest

MAX_PROFILE_LENGTH = 32
_PARTS = ("gpu_slice", "gpu_memory_bytes", "gpu_compute")
_ASK = "Request gpu_memory_bytes instead, or ask an admin for a partition policy"


class SliceProblem(NamedTuple):
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


def slice_problem(job: JobView, appliances: Sequence[ApplianceView]) -> SliceProblem | None:
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
    return SliceProblem(field, f"No slice has {need}. The largest is {largest[1]}.")


def _whole_problem(job: JobView, appliances: Sequence[ApplianceView]) -> SliceProblem | None:
    whole = max(sum(not _is_cut(gpu.kind) for gpu in view.gpus) for view in appliances)
    if not job.gpus or whole >= job.gpus or not any(len(v.gpus) >= job.gpus for v in appliances):
        return None
    cut = f"{job.gpus} whole GPUs requested, but MIG cuts GPUs into slices by a partition policy"
    limit = f"at most {whole} of an appliance are whole"
    return SliceProblem("gpus", f"{cut}: {limit}. Request fewer, or a part by gpu_memory_bytes.")


def _is_cut(kind: GPUKind | None) -> bool:
    return kind is not None and kind.mode is PartitionMode.MIG


def _profile_problem(profile: str, kinds: set[GPUKind]) -> SliceProblem | None:
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
    return SliceProblem("gpu_slice", sentence)


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
