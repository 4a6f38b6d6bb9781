"""What stands out in a fleet: its hottest, most throttled and idle GPUs, full disks, heavy users.

A GPU is *idle* if it is allocated, but its mean utilization over the time range is below 5 %.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import nlargest
from operator import itemgetter
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.clock import from_ns
from dash_app.context import SharedCache
from dash_app.queries.fleet import ApplianceCard
from dash_app.queries.gpu_rows import BUSY_PERCENT, GPURow
from dash_app.queries.telemetry import Telemetry
from dash_app.timerange import Span
from jobqueue.models import Attempt
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG

TOP = 5
_HOUR = timedelta(hours=1)
# A share of the time below this is noise.
_MIN_THROTTLED_PERCENT = 0.5

GPUAt = tuple[ApplianceCard, GPURow]


@dataclass(slots=True, kw_only=True)
class ModelCapacity:
    """GPUs of one model: allocated ones are used or idle, the others free or out of service."""

    model: str
    total: int = 0
    used: int = 0
    idle: int = 0
    free: int = 0
    failed: int = 0

    @property
    def allocated(self) -> int:
        """How many are allocated to jobs."""
        return self.used + self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Rankings:
    """The top of each list with its value; the ids and names of jobs and users with GPU-hours."""

    hottest: Sequence[tuple[GPUAt, float]]
    throttled: Sequence[tuple[GPUAt, float]]
    idle: Sequence[tuple[GPUAt, float]]
    fullest: Sequence[ApplianceCard]
    capacity: Sequence[ModelCapacity]
    jobs: Sequence[tuple[str, str, float]]
    users: Sequence[tuple[str, float]]


def rankings(
    session: Session,
    telemetry: Telemetry,
    cache: SharedCache,
    cards: Sequence[ApplianceCard],
    *,
    appliances: Collection[str] | None,
) -> Rankings:
    """Return the rankings of some appliances over the telemetry's span.

    Args:
        session: for the jobs.
        telemetry: filtered to these appliances.
        cache: of the means over the span, which hardly change within a minute.
        cards: the appliances.
        appliances: their ids; None for the whole fleet.
    """
    gpus = [(card, gpu) for card in cards for gpu in card.gpus]
    use, parts = _means(telemetry, cache, ("utilization_percent", "throttled"))
    throttled = {
        key: share for key, part in parts.items() if (share := 100 * part) >= _MIN_THROTTLED_PERCENT
    }
    slowed = [one for one in gpus if throttled and _key(one) in throttled]
    jobs, users = _gpu_hours(session, telemetry.scope, telemetry.span, appliances)
    return Rankings(
        hottest=_top(
            [
                (one, value)
                for one in gpus
                if (value := one[1].number("temperature_celsius")) is not None
            ]
        ),
        throttled=_top([(one, throttled[_key(one)]) for one in slowed]),
        idle=[
            (one, -share)
            for one, share in _top([(one, -use.get(_key(one), 0.0)) for one in gpus if one[1].job])
            if -share < BUSY_PERCENT
        ],
        fullest=sorted(
            (card for card in cards if card.disk_percent is not None),
            key=lambda card: -(card.disk_percent or 0.0),
        )[:TOP],
        capacity=capacity_by_model(gpus, use),
        jobs=[(ident, name, hours) for (ident, name), hours in jobs],
        users=users,
    )


def capacity_by_model(gpus: Sequence[GPUAt], use: Mapping[Any, float]) -> list[ModelCapacity]:
    """Return the capacity by model, most GPUs first.

    Args:
        gpus: each with its appliance.
        use: mean utilization in percent, by appliance id and index.
    """
    found: dict[str, ModelCapacity] = {}
    for one in gpus:
        gpu = one[1]
        model = found.get(gpu.model)
        if model is None:
            model = found[gpu.model] = ModelCapacity(model=gpu.model or "unknown model")
        model.total += 1
        if gpu.job is not None:
            is_used = use.get(_key(one), 0.0) >= BUSY_PERCENT
            model.used, model.idle = model.used + is_used, model.idle + (not is_used)
        elif gpu.is_out_of_service:
            model.failed += 1
        else:
            model.free += 1
    return sorted(found.values(), key=lambda model: (-model.total, model.model))


def _key(one: GPUAt) -> tuple[str, str]:
    return one[0].appliance_id, one[1].index


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
                (one.tags.get(APPLIANCE_TAG, ""), one.tags.get("gpu", "")): one.values[-1]
                for one in result.of(name)
                if one.values
            }
            for name in names
        ]

    return telemetry.once_a_minute(cache, f"means of {names}", read, [{} for _ in names])


def _gpu_hours(
    session: Session, scope: Scope, span: Span, appliances: Collection[str] | None
) -> tuple[list[tuple[tuple[str, str], float]], list[tuple[str, float]]]:
    """Return the jobs (id, name) and the users with the most GPU-hours in a span."""
    start_at, end_at = from_ns(span.start_ns), from_ns(span.end_ns)
    statement = select(Attempt).where(
        Attempt.started_at < end_at,
        or_(Attempt.finished_at.is_(None), Attempt.finished_at > start_at),
    )
    if appliances is not None:
        statement = statement.where(Attempt.appliance_id.in_(appliances))
    jobs: dict[tuple[str, str], float] = defaultdict(float)
    users: dict[str, float] = defaultdict(float)
    for attempt in session.scalars(scope.select(statement, Attempt)).unique():
        if attempt.started_at is None or not attempt.gpu_uuids:
            continue
        until = min(attempt.finished_at or end_at, end_at)
        hours = (until - max(attempt.started_at, start_at)) / _HOUR * len(attempt.gpu_uuids)
        jobs[attempt.job_id, attempt.job.name] += hours
        users[attempt.job.user.name if attempt.job.user else "removed user"] += hours
    return _heaviest(jobs), _heaviest(users)


def _heaviest(hours: Mapping[Any, float]) -> list[Any]:
    return sorted(hours.items(), key=lambda item: -item[1])[:TOP]
