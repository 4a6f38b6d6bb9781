"""What jobs used of GPUs hour by hour, from the usage ledger, and what they waited for.

A job waits from its submission, or the end of the last job that it depends on, until GPUs are
allocated to it for the first time. It counts for the GPU model that it got. One that got none
counts for all models that it could have had, in proportion to their GPUs. An instance of a service
that scales may have slept since then: it counts while it waits now, from its last wake-up on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, func, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.dispatch.appliance_views import matching_models
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.partitions.measures import gpu_amount
from jobqueue.states import WAITING
from jobqueue.usage.ledger import HOUR, UNKNOWN_MODEL, WANTS_GPUS, read_models
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from protocol.clusters import are_requested

_MILLISECONDS = HOUR.total_seconds() * 1000


class UsedHour(NamedTuple):
    """What jobs used of a GPU model in an hour, in GPU-hours; its number in the period."""

    appliance_id: str
    gpu_model: str
    hour: int
    allocated: float
    idle: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waited in a period.

    Attributes:
        since: from when on.
        until: to when; the end of the period if it still waits.
        gpus: that it waited for, by GPU model.
        seconds: how long it had waited at its start; None if it started outside of the period.
    """

    since: datetime
    until: datetime
    gpus: Mapping[str, float]
    seconds: float | None


def used_on(
    session: Session, tenant_id: str, period: Period, *, is_rented_out: bool
) -> Iterator[UsedHour]:
    """Yield what was used of a tenant's own appliances by its jobs, or by those of customers."""
    if is_rented_out:
        contracts = select(Attempt.contract_id).where(Attempt.provider_id == tenant_id).distinct()
        condition = UsageEntry.contract_id.in_(contracts)
        return _used(session, period, condition)
    is_own = UsageEntry.contract_id.is_(None)
    return _used(session, period, UsageEntry.tenant_id == tenant_id, is_own)


def used_elsewhere(session: Session, tenant_id: str, period: Period) -> Iterator[UsedHour]:
    """Yield what a tenant's jobs used of rented appliances."""
    is_rented = UsageEntry.contract_id.is_not(None)
    return _used(session, period, UsageEntry.tenant_id == tenant_id, is_rented)


def _used(session: Session, period: Period, *conditions: ColumnElement[bool]) -> Iterator[UsedHour]:
    statement = (
        select(
            UsageEntry.appliance_id,
            UsageEntry.gpu_model,
            UsageEntry.hour_at,
            func.sum(UsageEntry.allocated_milliseconds),
            func.sum(UsageEntry.idle_milliseconds),
        )
        .where(UsageEntry.hour_at >= period.since, UsageEntry.hour_at < period.until, *conditions)
        .group_by(UsageEntry.appliance_id, UsageEntry.gpu_model, UsageEntry.hour_at)
    )
    for ident, model, hour_at, allocated, idle in session.execute(statement).yield_per(2000):
        number = (hour_at - period.since) // HOUR
        # Sums are decimals on MySQL.
        used = float(allocated) / _MILLISECONDS, float(idle) / _MILLISECONDS
        yield UsedHour(ident, model, number, *used)


def waits(session: Session, tenant_id: str, period: Period, fleet: Counter[str]) -> Iterator[Wait]:
    """Yield the jobs with GPUs that waited in a period.

    Args:
        session: the session.
        tenant_id: whose jobs.
        period: the time.
        fleet: the GPUs of own appliances, by model.
    """
    models: dict[str, Mapping[str, str]] = {}
    rows = _rows(session, tenant_id, period)
    jobs = [list(group) for _, group in groupby(rows, key=lambda row: row.id)]
    sites = {row.site_id for group in jobs for row in group if row.site_id}
    for part in chunked(sorted(sites)):
        models |= read_models(session, set(part))
    released = _released(session, [group[0] for group in jobs if group[0].dependencies])
    for group in jobs:
        first = next((row for row in group if row.charged_from is not None), None)
        since = max(group[0].submitted_at, released.get(group[0].id, group[0].submitted_at))
        started_at = first.charged_from if first else None
        if group[0].autoscaling is not None:
            if group[0].state not in WAITING:
                continue
            since, started_at = group[0].retry_at or since, None
        until = started_at or group[0].finished_at or period.until
        gpus = _gpus_of(group[0], first, models, fleet)
        is_in = started_at is not None and period.since <= started_at < period.until
        if gpus and until >= period.since:
            seconds = max(0.0, (until - since).total_seconds()) if is_in else None
            yield Wait(
                max(since, period.since), min(max(since, until), period.until), gpus, seconds
            )


def _rows(session: Session, tenant_id: str, period: Period) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield jobs that were not over before a period, each with its attempts."""
    columns = (
        *(Job.id, Job.submitted_at, Job.finished_at, Job.gpus, Job.gpu_compute, Job.gpu_models),
        *(Job.dependencies, Job.state, Job.autoscaling, Job.retry_at),
        CHARGED_FROM.label("charged_from"),
        *(Attempt.gpu_uuids, Attempt.gpu_slice),
        func.coalesce(Attempt.node_id, Attempt.appliance_id).label("site_id"),
    )
    statement = (
        select(*columns)
        .outerjoin(Attempt, Attempt.job_id == Job.id)
        .where(
            Job.tenant_id == tenant_id,
            WANTS_GPUS,
            Job.submitted_at < period.until,
            or_(Job.finished_at.is_(None), Job.finished_at > period.since),
        )
        .order_by(Job.id, Attempt.number)
    )
    return iter(session.execute(statement).yield_per(1000))


def _released(session: Session, jobs: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, datetime]:
    """Return when the last job ended that each of these depended on, as far as that is known."""
    needed = sorted({entry["job_id"] for job in jobs for entry in job.dependencies})
    ends = {
        row.id: row.finished_at
        for part in chunked(needed)
        for row in session.execute(select(Job.id, Job.finished_at).where(Job.id.in_(part)))
        if row.finished_at is not None
    }
    released: dict[str, datetime] = {}
    for job in jobs:
        times = [ends[key] for entry in job.dependencies if (key := entry["job_id"]) in ends]
        if times:
            released[job.id] = max(times)
    return released


def _gpus_of(
    job: Row[*tuple[Any, ...]],
    first: Row[*tuple[Any, ...]] | None,
    models: Mapping[str, Mapping[str, str]],
    fleet: Counter[str],
) -> dict[str, float]:
    """Return the GPUs that a job waited for; the size of a slice is known once it has run."""
    if first is not None and first.gpu_uuids:
        by_uuid = models.get(first.site_id, {})
        uuids = first.gpu_uuids
        # Not every cluster reports which GPUs of a node a job has.
        first_model = next(iter(by_uuid.values()), "")
        any_model = by_uuid.get("", first_model) if are_requested(uuids) else ""
        names = [by_uuid.get(uuid) or any_model or UNKNOWN_MODEL for uuid in uuids]
        size = gpu_amount(uuids, first.gpu_slice) / len(uuids)
        return {name: size * count for name, count in Counter(names).items()}
    gpus = job.gpus or job.gpu_compute
    if not gpus:
        return {}
    wanted = set(fleet)
    if job.gpu_models:
        wanted &= matching_models(job.gpu_models, fleet)
    if not wanted:
        return {", ".join(sorted(word.strip() for word in job.gpu_models)): gpus}
    total = sum(fleet[name] for name in wanted)
    shares: dict[str, float] = defaultdict(float)
    for name in wanted:
        shares[name] = gpus * fleet[name] / total
    return dict(shares)
