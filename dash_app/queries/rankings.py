"""Rankings of a fleet: its hottest, most throttled and idle GPUs, full disks, heavy users.

A GPU is *idle* if it is allocated, but its mean utilization over the time range is below 5 %.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from operator import itemgetter
from typing import Any

from sqlalchemy.orm import Session

from core.clock import from_ns
from dash_app.context import SharedCache
from dash_app.queries.fleet import ApplianceCard
from dash_app.queries.gpu_rows import BUSY_PERCENT, ClusterFigures, GPURow
from dash_app.queries.telemetry import Telemetry
from jobqueue.partitions.allocations import SegmentKind
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import UsageBy, UsageTotal, usage_groups
from timeseries.store import APPLIANCE_TAG

TOP = 5
# A share of the time below this is noise.
_MIN_THROTTLED_PERCENT = 0.5

GPUAt = tuple[ApplianceCard, GPURow]


@dataclass(slots=True, kw_only=True)
class ModelCapacity:
    """GPUs of one model: allocated ones are busy or idle, the others free or out of service.

    Those of clusters that are allocated are `unmeasured`.
    `shared` are in neither: jobs have slices of them, of which `free_slots` are free.
    """

    model: str
    total: int = 0
    busy: int = 0
    idle: int = 0
    free: int = 0
    failed: int = 0
    unmeasured: int = 0
    shared: int = 0
    slots: int = 0
    free_slots: int = 0

    @property
    def allocated(self) -> int:
        """Return the number of GPUs that are allocated to jobs as a whole."""
        return self.busy + self.idle + self.unmeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class Rankings:
    """The top of each list with its value, and the jobs and users with the most GPU-hours."""

    hottest: Sequence[tuple[GPUAt, float]]
    throttled: Sequence[tuple[GPUAt, float]]
    idle: Sequence[tuple[GPUAt, float]]
    fullest: Sequence[ApplianceCard]
    capacity: Sequence[ModelCapacity]
    jobs: Sequence[UsageTotal]
    users: Sequence[UsageTotal]


def rankings(
    session: Session,
    telemetry: Telemetry,
    cache: SharedCache,
    cards: Sequence[ApplianceCard],
    *,
    appliances: Collection[str] | None,
    now: datetime,
) -> Rankings:
    """Return the rankings of some appliances over the telemetry's span.

    Args:
        session: for the jobs.
        telemetry: filtered to these appliances.
        cache: of the means over the span, which hardly change within a minute.
        cards: the appliances.
        appliances: their ids; None for the whole fleet.
        now: the time.
    """
    gpus = [(card, gpu) for card in cards for gpu in card.gpus]
    use, parts = _means(telemetry, cache, ("utilization_percent", "throttled"))
    throttled = {
        key: share for key, part in parts.items() if (share := 100 * part) >= _MIN_THROTTLED_PERCENT
    }
    slowed = [gpu_at for gpu_at in gpus if throttled and _key(gpu_at) in throttled]
    usage = _gpu_hours(session, telemetry, appliances, now=now)
    return Rankings(
        hottest=_top(
            [
                (gpu_at, value)
                for gpu_at in gpus
                if (value := gpu_at[1].number("temperature_celsius")) is not None
            ]
        ),
        throttled=_top([(gpu_at, throttled[_key(gpu_at)]) for gpu_at in slowed]),
        idle=[
            (gpu_at, -share)
            for gpu_at, share in _top(
                [(gpu_at, -use.get(_key(gpu_at), 0.0)) for gpu_at in gpus if gpu_at[1].job]
            )
            if -share < BUSY_PERCENT
        ],
        fullest=sorted(
            (card for card in cards if card.disk_percent is not None),
            key=lambda card: -(card.disk_percent or 0.0),
        )[:TOP],
        capacity=capacity_by_model(
            [gpu_at for gpu_at in gpus if gpu_at[0].cluster is None],
            use,
            [card.cluster for card in cards if card.cluster is not None],
        ),
        jobs=usage[UsageBy.JOB],
        users=usage[UsageBy.USER],
    )


def capacity_by_model(
    gpus: Sequence[GPUAt], use: Mapping[Any, float], clusters: Iterable[ClusterFigures] = ()
) -> list[ModelCapacity]:
    """Return the capacity by model, most GPUs first.

    Args:
        gpus: each with its appliance.
        use: mean utilization in percent, by appliance id and index.
        clusters: whose GPUs count through their nodes.
    """
    models: dict[str, ModelCapacity] = {}
    for gpu_at in gpus:
        gpu = gpu_at[1]
        model = models.get(gpu.model)
        if model is None:
            model = models[gpu.model] = ModelCapacity(model=gpu.model or "unknown model")
        model.total += 1
        if gpu.occupancy is not None and not gpu.is_out_of_service:
            model.shared += 1
            model.slots += gpu.occupancy.slots
            model.free_slots += gpu.occupancy.slots_with(SegmentKind.FREE, SegmentKind.IDLE)
        elif gpu.job is not None:
            is_busy = use.get(_key(gpu_at), 0.0) >= BUSY_PERCENT
            model.busy, model.idle = model.busy + is_busy, model.idle + (not is_busy)
        elif gpu.is_out_of_service:
            model.failed += 1
        else:
            model.free += 1
    for figures in clusters:
        for name, (total, allocated, down) in figures.models.items():
            model = models.setdefault(name, ModelCapacity(model=name or "unknown model"))
            model.total += total
            model.unmeasured += allocated
            model.failed += down
            model.free += total - allocated - down
    return sorted(models.values(), key=lambda model: (-model.total, model.model))


def _key(gpu_at: GPUAt) -> tuple[str, str]:
    return gpu_at[0].appliance_id, gpu_at[1].index


def _top(values: Sequence[tuple[GPUAt, float]]) -> list[tuple[GPUAt, float]]:
    return nlargest(TOP, values, key=itemgetter(1))


def _means(
    telemetry: Telemetry, cache: SharedCache, names: tuple[str, ...]
) -> Sequence[Mapping[tuple[str, str], float]]:
    """Return the means of fields over the span, by appliance and GPU."""

    def read() -> Sequence[Mapping[tuple[str, str], float]]:
        result = telemetry.over_span("gpu", names, group_by=(APPLIANCE_TAG, "gpu"))
        return [
            {
                (series.tags.get(APPLIANCE_TAG, ""), series.tags.get("gpu", "")): series.values[-1]
                for series in result.of(name)
                if series.values
            }
            for name in names
        ]

    return telemetry.once_a_minute(cache, f"means of {names}", read, [{} for _ in names])


def _gpu_hours(
    session: Session, telemetry: Telemetry, appliances: Collection[str] | None, *, now: datetime
) -> Mapping[UsageBy, Sequence[UsageTotal]]:
    """Return the jobs and the users with the most GPU-hours in the telemetry's span."""
    period = Period(from_ns(telemetry.span.start_ns), from_ns(telemetry.span.end_ns))
    scope = telemetry.scope
    live = live_use(session, None, scope, period, now=now, appliances=appliances)
    return {
        by: usage_groups(session, scope, period, by=by, live=live, appliances=appliances, limit=TOP)
        for by in (UsageBy.JOB, UsageBy.USER)
    }
