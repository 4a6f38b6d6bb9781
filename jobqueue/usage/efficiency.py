"""The efficiency report of a job: how well it uses its resources, with advice in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import object_session

from core.clock import to_ns
from core.quantities import format_size
from jobqueue.models import Attempt, Job
from jobqueue.partitions.measures import (
    NOT_MEASURABLE,
    activity_of,
    memory_measurement,
    slice_label,
    slice_of,
)
from jobqueue.usage.bottleneck import Bottleneck, Measure, find_bottleneck, measure_windows
from jobqueue.usage.measuring import (
    NO_WINDOWS,
    WINDOW_NS,
    GPUKey,
    GPUWindows,
    Use,
    gpu_use,
    gpu_windows,
)
from jobqueue.usage.totals import JOULES_PER_KILOWATT_HOUR
from protocol.clusters import are_requested
from protocol.gpu_slices import GPUSlice
from tenants.models import Appliance
from tenants.models.appliances import decode_inventory
from timeseries.store import Aggregate, RangeQuery, Store

# A GPU that was never busier than this was not used.
USED_PERCENT = 5.0
MUCH_IDLE_RATIO = 0.5
LITTLE_MEMORY_RATIO = 0.25
MUCH_MEMORY_RATIO = 0.9
# Advice about smaller requests is not worth a change.
MIN_MEMORY_BYTES = 4 * 1024**3
_MAX_WINDOWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUTime:
    """The time that GPUs were allocated and used; the ratio is None where nothing was measured."""

    gpu_utilization_ratio: float | None
    allocated_gpu_seconds: float
    used_gpu_seconds: float
    idle_gpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUse(GPUTime):
    """The GPU time of a member of a gang, by its rank."""

    job_id: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangUse(GPUTime):
    """The GPU time of a gang: in sum, and by member."""

    members: Sequence[MemberUse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(GPUTime):
    """Allocated and used resources of all attempts of a job; None where nothing was measured.

    `gpus_used` are those that were busier than `USED_PERCENT` at some time of the last attempt, a
    slice counts as 1; `gang` is there for members of one. Of a job with a slice of a GPU,
    `gpu_slice` names it, all figures are those within it, and `not_measurable` says what the driver
    can't tell, and why.
    """

    gpus: int
    gpu_slice: str = ""
    not_measurable: str = ""
    gpus_used: int | None
    gpu_memory_peak_bytes: int | None
    gpu_memory_total_bytes: int | None
    memory_peak_bytes: int | None
    memory_bytes: int
    cpu_cores_used: float | None
    cpus: float
    energy_kilowatt_hours: float | None
    bottleneck: Bottleneck | None
    advice: str
    gang: GangUse | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a job's last attempt runs on; None and 0 if unknown.

    `gpu_memory_bytes` is that of its largest GPU, or of its slice.
    """

    gpu_memory_bytes: int | None = None
    cpu_count: int = 0


def hardware_of(job: Job) -> Hardware:
    """Return the hardware of a job. Needs the session of the job."""
    if job.attempt is None:
        return Hardware()
    uuids, site = job.attempt.gpu_uuids, job.attempt.appliance
    session = object_session(job)
    if job.attempt.is_on_cluster:
        node = session and job.attempt.node_id and session.get(Appliance, job.attempt.node_id)
        if not node:
            return Hardware()
        site = node
    inventory = decode_inventory(site.inventory)
    own = slice_of(job.attempt.gpu_slice)
    is_any = are_requested(uuids)
    sizes = (gpu.memory_bytes for gpu in inventory.gpus if is_any or gpu.uuid in uuids)
    size = (own.memory_bytes if own else 0) or max(sizes, default=0)
    # What a rented appliance has besides is not for its customer.
    cpu_count = 0 if job.attempt.contract_id else inventory.cpu_count
    return Hardware(size or None, cpu_count)


def job_efficiency(
    store: Store, job: Job, *, hardware: Hardware, members: Sequence[Job] = (), now: datetime
) -> Efficiency:
    """Return the report of a job; with the `members` of its gang, that of the gang is in it.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    tried = _tried(job)
    use, gpus_used = _gpu_use(store, job, tried, now=now)
    own = slice_of(tried[-1].gpu_slice) if tried else None
    peaks = _aggregates(store, job, tried, own, now=now)
    measured = use.used_milliseconds + use.idle_milliseconds
    bottleneck = _bottleneck(store, job, tried, host_cpus=hardware.cpu_count, now=now)
    facts: dict[str, Any] = {
        "gpus": len(tried[-1].gpu_uuids) if tried else job.gpus,
        "gpu_slice": slice_label(own) if own else "",
        "gpus_used": gpus_used if measured else None,
        **_gpu_time(use),
        "gpu_memory_peak_bytes": _whole(peaks.get("gpu_memory")),
        "gpu_memory_total_bytes": hardware.gpu_memory_bytes,
        "memory_peak_bytes": _whole(peaks.get("memory")),
        "memory_bytes": job.memory_bytes,
        "cpu_cores_used": None if (cpu := peaks.get("cpu")) is None else cpu / 100,
        "cpus": job.cpus,
    }
    return Efficiency(
        **facts,
        energy_kilowatt_hours=use.energy_joules / JOULES_PER_KILOWATT_HOUR
        if measured and own is None
        else None,
        not_measurable=_not_measurable(
            own,
            is_measured=bool(measured),
            is_on_cluster=bool(tried and tried[-1].is_on_cluster),
        ),
        bottleneck=bottleneck,
        advice=_advice(**facts, bottleneck=bottleneck),
        gang=_gang_use(store, members, now=now) if members else None,
    )


def _gang_use(store: Store, members: Sequence[Job], *, now: datetime) -> GangUse:
    uses = [_gpu_use(store, member, _tried(member), now=now)[0] for member in members]
    return GangUse(
        **_gpu_time(sum(uses, start=Use())),
        members=[
            MemberUse(job_id=member.id, rank=member.array_index or 0, **_gpu_time(use))
            for member, use in zip(members, uses, strict=True)
        ],
    )


def _gpu_time(use: Use) -> dict[str, Any]:
    measured = use.used_milliseconds + use.idle_milliseconds
    return {
        "gpu_utilization_ratio": use.used_milliseconds / measured if measured else None,
        "allocated_gpu_seconds": use.allocated_milliseconds / 1000,
        "used_gpu_seconds": use.used_milliseconds / 1000,
        "idle_gpu_seconds": use.idle_milliseconds / 1000,
    }


def _tried(job: Job) -> list[Attempt]:
    return [attempt for attempt in job.attempts if attempt.charged_from is not None]


def _gpu_use(store: Store, job: Job, tried: list[Attempt], *, now: datetime) -> tuple[Use, int]:
    """Return the GPU use of all attempts, and how many GPUs the last one used."""
    if not any(attempt.gpu_uuids for attempt in tried):
        return Use(), 0
    start_ns, end_ns = _span(tried, now)
    step_ns = WINDOW_NS * max(1, (end_ns - start_ns) // (_MAX_WINDOWS * WINDOW_NS))
    windows = gpu_windows(
        store,
        start_ns=start_ns,
        end_ns=end_ns,
        step_ns=step_ns,
        tenants=(job.tenant_id,),
        jobs=[job.id],
        has_slices=any(attempt.gpu_slice for attempt in tried),
    )
    use = Use()
    samples: list[GPUWindows] = []
    for attempt in tried:
        began_ns, ended_ns = _span([attempt], now)
        own = slice_of(attempt.gpu_slice)
        uuids = [own.uuid] if own else attempt.gpu_uuids
        keys = [GPUKey(job.tenant_id, job.id, uuid) for uuid in uuids]
        samples = [windows.get(key, NO_WINDOWS) for key in keys]
        for gpu_samples in samples:
            gpu = gpu_use(gpu_samples, start_ns=began_ns, end_ns=ended_ns, step_ns=step_ns)
            use += gpu.part(own.share_milli) if own else gpu
    busiest = (max(windows.utilization.values(), default=0) for windows in samples)
    return use, sum(percent >= USED_PERCENT for percent in busiest)


def _not_measurable(own: GPUSlice | None, *, is_measured: bool, is_on_cluster: bool) -> str:
    if is_on_cluster and not is_measured:
        return "Utilization and energy: clusters do not report how jobs use their GPUs."
    if own is None:
        return ""
    if is_measured:
        return "Energy: the driver reports that of the whole GPU only."
    return f"Utilization and energy: {NOT_MEASURABLE[own.mode]}."


def _aggregates(
    store: Store, job: Job, tried: list[Attempt], own: GPUSlice | None, *, now: datetime
) -> dict[str, float]:
    """Return the peaks of a GPU's memory and of the container's, and its average CPU use."""
    if not tried:
        return {}
    start_ns, end_ns = _span(tried, now)
    wanted = {
        "gpu_memory": (memory_measurement(own), "memory_used_bytes", Aggregate.MAX),
        "memory": ("attempt", "memory_bytes", Aggregate.MAX),
        "cpu": ("attempt", "cpu_percent", Aggregate.AVG),
    }
    results = {}
    for name, (measurement, field, aggregate) in wanted.items():
        query = RangeQuery(
            measurement=measurement,
            fields=(field,),
            start_ns=start_ns,
            end_ns=end_ns,
            aggregate=aggregate,
            tenants=(job.tenant_id,),
            filters={"job": (job.id,)},
        )
        for series in store.query_range(query):
            results[name] = series.values[0]
    return results


def _bottleneck(
    store: Store, job: Job, tried: list[Attempt], *, host_cpus: int, now: datetime
) -> Bottleneck | None:
    """Return what slows the last attempt down, once it has run for a while."""
    attempt = tried[-1] if tried else None
    gpu = attempt and attempt.gpu_uuids and activity_of(slice_of(attempt.gpu_slice))
    if attempt is None or not gpu:
        return None
    start_ns, end_ns = _span([attempt], now)
    measure = Measure(*gpu)
    windows = measure_windows(store, job, attempt, measure, start_ns=start_ns, end_ns=end_ns)
    return find_bottleneck(windows, measure, cpus=job.cpus, host_cpus=host_cpus)


def _span(tried: list[Attempt], now: datetime) -> tuple[int, int]:
    began_at = tried[0].charged_from or now
    end_at = tried[-1].finished_at or now
    return to_ns(began_at), max(to_ns(began_at) + 1, to_ns(end_at))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _advice(
    *,
    gpus: int,
    gpu_slice: str,
    gpus_used: int | None,
    gpu_utilization_ratio: float | None,
    memory_peak_bytes: int | None,
    memory_bytes: int,
    bottleneck: Bottleneck | None,
    **_others: object,
) -> str:
    """Return the advice that saves the most."""
    if gpu_slice and gpus_used == 0:
        return "The GPU slice was not used. Check that the program finds it, or request none."
    if gpus and gpus_used is not None and gpus_used < gpus:
        held = f"Asked for {gpus} GPU{'' if gpus == 1 else 's'}, used {gpus_used or 'none'}."
        if not gpus_used:
            return f"{held} Check that the program finds its GPUs, or request 0."
        return f"{held} Request {gpus_used}, or check why the others stay idle."
    if bottleneck is not None:
        return bottleneck.sentence
    if gpu_utilization_ratio is not None and gpu_utilization_ratio < 1 - MUCH_IDLE_RATIO:
        what = "The GPU slice was" if gpu_slice else "The GPUs were"
        idle = f"{what} idle {1 - gpu_utilization_ratio:.0%} of the time."
        waiting = "it" if gpu_slice else "them"
        return f"{idle} Check whether loading data keeps {waiting} waiting."
    used = "GPU slice" if gpu_slice else "GPUs"
    well = "" if gpu_utilization_ratio is None else f"The job makes good use of its {used}."
    return _memory_advice(memory_peak_bytes, memory_bytes) or well


def _memory_advice(peak_bytes: int | None, requested_bytes: int) -> str:
    if peak_bytes is None:
        return ""
    used_ratio = peak_bytes / requested_bytes
    used = f"Memory peaked at {format_size(peak_bytes)} of {format_size(requested_bytes)}."
    if used_ratio >= MUCH_MEMORY_RATIO:
        return f"{used} Request more, so that it does not run out of memory."
    if used_ratio < LITTLE_MEMORY_RATIO and requested_bytes >= MIN_MEMORY_BYTES:
        return f"{used} Request less, so that more jobs fit on the appliance."
    return ""
