"""Evidence by day: how long offered appliances were reachable, and how customers' attempts ended.

Days are written while they last and for a few days after, as late reports still come in. A row
never shrinks: jobs that are deleted after their retention stay evidence.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.db import chunked
from jobqueue.models import Attempt
from jobqueue.states import AttemptState, Reason
from marketplace.cases import Dimension
from marketplace.models import Contract
from marketplace.reputation.models import EvidenceDay
from tenants.models import OfferedAppliance
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery, Store

DAY = timedelta(days=1)
FIRST_DAYS = 90
"""How far back the first evidence of a provider goes."""
_LATE_DAYS = 3
_APPLIANCES_PER_QUERY = 200
# Above the first, a day is good; below the second, bad: 72 minutes without the appliance.
GOOD_AVAILABILITY, BAD_AVAILABILITY = 0.999, 0.95
REACHABLE, RAN = "reachable", "ran"
FAULTS: Mapping[Reason, float] = {
    Reason.APPLIANCE_LOST: 0.0,
    Reason.NODE_FAILED: 0.0,
    Reason.EXECUTOR_ERROR: 0.0,
    Reason.APPLIANCE_DRAINED: 0.5,
}
"""Ends through the provider, whenever they came, and how far they still speak for it."""
START_FAULTS = frozenset({Reason.START_FAILED, Reason.GPU_SLICE_FAILED})
"""These are the provider's if the command never ran; the pull of an image is the customer's."""
_ENDED = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST)


@dataclass(frozen=True, slots=True)
class DayKey:
    """What a row is about."""

    day_at: datetime
    dimension: Dimension
    subject: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCount:
    """What a row counts; see `EvidenceDay`."""

    total: float
    good: float
    measured: float | None = None


Days = Mapping[DayKey, DayCount]


def day_of(at: datetime) -> datetime:
    """Return the start of a day in UTC."""
    return datetime.combine(at.date(), time(), at.tzinfo)


def first_day(session: Session, provider_id: str, *, now: datetime) -> datetime:
    """Return the day from which on a provider's evidence is to be measured again."""
    recorded = session.scalar(
        select(func.max(EvidenceDay.day_at, type_=EvidenceDay.day_at.type)).where(
            EvidenceDay.provider_id == provider_id
        )
    )
    earliest = day_of(now) - FIRST_DAYS * DAY
    return earliest if recorded is None else max(earliest, recorded - _LATE_DAYS * DAY)


def offered_to_customers(session: Session, provider_id: str) -> Sequence[str]:
    """Return the appliances of a provider that are on offer."""
    statement = select(OfferedAppliance.appliance_id).where(
        OfferedAppliance.provider_id == provider_id
    )
    return session.scalars(statement.order_by(OfferedAppliance.appliance_id)).all()


def measure_availability(
    store: Store,
    provider_id: str,
    appliance_ids: Iterable[str],
    *,
    since: datetime,
    now: datetime,
) -> dict[DayKey, DayCount]:
    """Return the evidence of the days of appliances, by the portal's own samples.

    Days without samples are left out: the portal measured nothing. It needs no transaction.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    days = {}
    for part in chunked(appliance_ids, _APPLIANCES_PER_QUERY):
        query = RangeQuery(
            measurement="appliance_status",
            fields=("reachable",),
            start_ns=to_ns(since),
            end_ns=to_ns(now),
            aggregate=Aggregate.AVG,
            step_ns=to_ns(since + DAY) - to_ns(since),
            tenants=(provider_id,),
            filters={APPLIANCE_TAG: tuple(part)},
            group_by=(APPLIANCE_TAG,),
        )
        for series in store.query_range(query):
            for time_ns, share in zip(series.times_ns, series.values, strict=True):
                day_at = day_of(from_ns(time_ns))
                key = DayKey(day_at, Dimension.AVAILABILITY, series.tags[APPLIANCE_TAG], REACHABLE)
                total = min((now - day_at) / DAY, 1.0)
                good = total * availability_goodness(share)
                days[key] = DayCount(total=total, good=good, measured=share)
    return days


def availability_goodness(share: float) -> float:
    """Return how far a day speaks for a provider in which an appliance was reachable so long."""
    span = GOOD_AVAILABILITY - BAD_AVAILABILITY
    return min(max((share - BAD_AVAILABILITY) / span, 0.0), 1.0)


def count_attempts(session: Session, provider_id: str, *, since: datetime) -> Days:
    """Return the evidence of the customers' attempts that ended since a day.

    An attempt that started and ended in any way of its own is good: succeeded or not is up to the
    customer. One that never started, through no fault of the provider, is no case.
    """
    statement = select(
        Attempt.tenant_id, Attempt.reason, Attempt.started_at, Attempt.finished_at
    ).where(
        # Attempts of earlier versions have no `provider_id`.
        Attempt.contract_id.in_(select(Contract.id).where(Contract.provider_id == provider_id)),
        Attempt.state.in_(_ENDED),
        Attempt.finished_at >= since,
    )
    totals: dict[DayKey, int] = defaultdict(int)
    goods: dict[DayKey, float] = defaultdict(float)
    for customer_id, reason, started_at, finished_at in session.execute(statement).yield_per(1000):
        ended = _end_of(reason, has_started=started_at is not None)
        if ended is None or finished_at is None:
            continue
        kind, good = ended
        key = DayKey(day_of(finished_at), Dimension.JOBS, customer_id, kind)
        totals[key] += 1
        goods[key] += good
    return {key: DayCount(total=total, good=goods[key]) for key, total in totals.items()}


def write_days(session: Session, provider_id: str, days: Days) -> None:
    """Add the evidence of days, or bring it up to date; rows that count more stay as they are."""
    if not days:
        return
    first_at = min(key.day_at for key in days)
    statement = select(EvidenceDay).where(
        EvidenceDay.provider_id == provider_id, EvidenceDay.day_at >= first_at
    )
    rows = {
        DayKey(row.day_at, row.dimension, row.subject, row.kind): row
        for row in session.scalars(statement)
    }
    for key, count in days.items():
        row = rows.get(key)
        if row is None:
            row = EvidenceDay(
                provider_id=provider_id,
                day_at=key.day_at,
                dimension=key.dimension,
                subject=key.subject,
                kind=key.kind,
                total=0.0,
            )
            session.add(row)
        if count.total >= row.total:
            row.total, row.good, row.measured = count.total, count.good, count.measured
    session.flush()


def delete_old_days(session: Session, provider_id: str, *, before: datetime) -> None:
    """Delete evidence that counts for nothing any longer."""
    session.execute(
        delete(EvidenceDay).where(
            EvidenceDay.provider_id == provider_id, EvidenceDay.day_at < before
        )
    )


def _end_of(reason: Reason, *, has_started: bool) -> tuple[str, float] | None:
    """Return the kind of an attempt's end, and how far it speaks for the provider."""
    if reason in FAULTS:
        return reason.value, FAULTS[reason]
    if not has_started:
        return (reason.value, 0.0) if reason in START_FAULTS else None
    return RAN, 1.0
