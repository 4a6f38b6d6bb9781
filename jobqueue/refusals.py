"""Why an appliance can't take a job: the filters of placement, each with a code and a sentence.

Pure. `unsuitable` looks at what an appliance is, `not_free` at what is left of it now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from core.units import format_value
from jobqueue.executors.health import HealthState
from tenants.models import ApplianceState

# Sums of fractions of a core carry rounding errors far below what anybody asks for.
_CPU_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class GPUView:
    """A GPU of an appliance; one that failed is given to no job. `fault` is why, in a word or two.

    Its state is what the appliance's agent judged last.
    """

    uuid: str
    memory_bytes: int
    state: HealthState = HealthState.HEALTHY
    fault: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether no job may have it."""
        return self.state is HealthState.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What starting and running attempts hold on an appliance."""

    gpu_uuids: frozenset[str] = frozenset()
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceView:
    """What placement knows of an appliance.

    Attributes:
        fault: why it takes no jobs with GPUs, whatever the state of each; "" when it does.
        last_used_at: when a job last went there.
    """

    id: str
    name: str
    state: ApplianceState = ApplianceState.ONLINE
    is_drained: bool = False
    executors: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: tuple[GPUView, ...] = ()
    fault: str = ""
    held: Held = Held()
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What placement knows of a waiting job.

    Attributes:
        requested: the one appliance that the user asked for.
        bound_to: the appliance on which it waits since an earlier plan.
    """

    id: str
    name: str
    submitted_at: datetime
    gpus: int = 0
    gpu_memory_bytes: int = 0
    cpus: float = 1.0
    memory_bytes: int = 0
    requested: str | None = None
    bound_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one appliance does not take one job; `reason` begins with the appliance's name."""

    appliance_id: str
    appliance: str
    code: str
    reason: str

    @classmethod
    def of(cls, view: ApplianceView, code: str, fact: str) -> "Refusal":
        """Return a refusal whose sentence is `name: fact`."""
        return cls(
            appliance_id=view.id, appliance=view.name, code=code, reason=f"{view.name}: {fact}"
        )


@dataclass(slots=True)
class Remainder:
    """What is left of an appliance; `take` is the only thing that changes it."""

    gpus: list[GPUView]
    cpus: float
    memory_bytes: int

    @classmethod
    def of(cls, view: ApplianceView) -> "Remainder":
        """Return what running attempts leave of an appliance; failed GPUs are no part of it."""
        return cls(
            gpus=[gpu for gpu in usable_gpus(view) if gpu.uuid not in view.held.gpu_uuids],
            cpus=view.cpus - view.held.cpus,
            memory_bytes=view.memory_bytes - view.held.memory_bytes,
        )

    def take(self, job: JobView) -> tuple[str, ...]:
        """Give the job its share and return its GPUs: healthy ones first, of these the smallest
        that suffice, in order."""
        suitable = sorted(_large_enough(job, self.gpus), key=_by_health_and_size)
        taken = suitable[: job.gpus]
        self.gpus = [gpu for gpu in self.gpus if gpu not in taken]
        self.cpus -= job.cpus
        self.memory_bytes -= job.memory_bytes
        return tuple(gpu.uuid for gpu in taken)

    def needs_degraded(self, job: JobView) -> bool:
        """Return whether the job could only have its GPUs if degraded ones were among them."""
        healthy = [gpu for gpu in self.gpus if gpu.state is HealthState.HEALTHY]
        return job.gpus > len(_large_enough(job, healthy))


def usable_gpus(view: ApplianceView) -> list[GPUView]:
    """Return the GPUs that jobs may have: none where the appliance itself failed."""
    return [] if view.fault else [gpu for gpu in view.gpus if not gpu.is_failed]


def unsuitable(job: JobView, view: ApplianceView) -> Refusal | None:
    """Return why the job can't run on this appliance as things stand, however idle it were."""
    if job.requested and job.requested != view.id:
        return Refusal.of(view, "not_requested", "another appliance was asked for")
    if view.state is not ApplianceState.ONLINE:
        code = "stale" if view.state is ApplianceState.STALE else "not_online"
        return Refusal.of(view, code, _STATE_FACTS[view.state])
    if view.is_drained:
        return Refusal.of(view, "drained", "drained, takes no new jobs")
    if not view.executors:
        return Refusal.of(view, "no_executor", "has nothing to run jobs with")
    return exceeds_totals(job, view) or _exceeds_working(job, view)


def exceeds_totals(job: JobView, view: ApplianceView) -> Refusal | None:
    """Return which of the appliance's totals the job exceeds."""
    if job.gpus > len(view.gpus):
        return Refusal.of(
            view, "too_few_gpus", f"has {_count(len(view.gpus), 'GPU')}, {job.gpus} asked"
        )
    large = len(_large_enough(job, view.gpus))
    if job.gpus > large:
        asked = f"{job.gpus} with {_bytes(job.gpu_memory_bytes)} asked"
        return Refusal.of(
            view, "gpu_memory_too_small", f"has {_count(large, 'GPU')} of that memory, {asked}"
        )
    if job.cpus > view.cpus + _CPU_TOLERANCE:
        return Refusal.of(view, "too_few_cpus", f"has {view.cpus:g} CPU cores, {job.cpus:g} asked")
    if job.memory_bytes > view.memory_bytes:
        fact = f"has {_bytes(view.memory_bytes)} of memory, {_bytes(job.memory_bytes)} asked"
        return Refusal.of(view, "too_little_memory", fact)
    return None


def _exceeds_working(job: JobView, view: ApplianceView) -> Refusal | None:
    """Return which failure keeps a job from an appliance that would be large enough."""
    if job.gpus and view.fault:
        return Refusal.of(view, "appliance_failed", f"failed ({view.fault}), takes no GPU jobs")
    if job.gpus <= len(_large_enough(job, usable_gpus(view))):
        return None
    failed = [gpu for gpu in view.gpus if gpu.is_failed]
    faults = ", ".join(sorted({gpu.fault for gpu in failed if gpu.fault}))
    why = f" ({faults})" if faults else ""
    fact = f"has {_count(len(view.gpus), 'GPU')}, {len(failed)} failed{why}, {job.gpus} asked"
    return Refusal.of(view, "gpus_failed", fact)


def not_free(job: JobView, view: ApplianceView, left: Remainder) -> Refusal | None:
    """Return which resource of a suitable appliance is taken by others now."""
    free = len(_large_enough(job, left.gpus))
    if job.gpus > free:
        failed = sum(gpu.is_failed for gpu in view.gpus)
        broken = f", {failed} failed" if failed else ""
        fact = f"{free} of {len(view.gpus)} GPUs free{broken}, {job.gpus} asked"
        return Refusal.of(view, "gpus_busy", fact)
    if job.cpus > left.cpus + _CPU_TOLERANCE:
        fact = f"{max(left.cpus, 0):g} of {view.cpus:g} CPU cores free, {job.cpus:g} asked"
        return Refusal.of(view, "cpus_busy", fact)
    if job.memory_bytes > left.memory_bytes:
        free_memory = f"{_bytes(max(left.memory_bytes, 0))} of {_bytes(view.memory_bytes)}"
        fact = f"{free_memory} of memory free, {_bytes(job.memory_bytes)} asked"
        return Refusal.of(view, "memory_busy", fact)
    return None


_STATE_FACTS: dict[ApplianceState, str] = {
    ApplianceState.ENROLLED: "enrolled, has not reported yet",
    ApplianceState.STALE: "silent for a short while, takes no new jobs until it is heard",
    ApplianceState.UNREACHABLE: "unreachable",
    ApplianceState.LOST: "lost",
}


def _bytes(count: int) -> str:
    return format_value("memory_bytes", count)


def _by_health_and_size(gpu: GPUView) -> tuple[bool, int]:
    return gpu.state is not HealthState.HEALTHY, gpu.memory_bytes


def _large_enough(job: JobView, gpus: Sequence[GPUView]) -> list[GPUView]:
    return [gpu for gpu in gpus if gpu.memory_bytes >= job.gpu_memory_bytes]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
