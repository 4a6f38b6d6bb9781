"""GPU time that the ledger doesn't have as whole hours: the current hour, and parts of hours.

The ledger has the whole hours of a period. The hour that is under way, the last one until it is
recorded, and the parts of hours at both ends of a period are measured from attempts and samples,
by the rules of the ledger. So every figure of GPU time counts up to now.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import UnavailableError
from jobqueue.models import Attempt
from jobqueue.usage.ledger import (
    HOUR,
    LedgerAttempt,
    floor_hour,
    read_attempts,
    read_models,
    recorded_until,
    use_by_model,
)
from jobqueue.usage.measuring import GPUKey, GPUWindows, Period, Use, gpu_windows
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store


@dataclass(frozen=True, slots=True)
class LiveUse:
    """An attempt's use of one GPU model on one day in UTC, `2026-03-02`."""

    attempt: LedgerAttempt
    gpu_model: str
    day: str
    use: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The part of a period that is not in the ledger as whole hours.

    Attributes:
        uses: by attempt, GPU model and day.
        is_so_far: whether the ledger lacks hours of the period, so that its figures may grow.
        problem: why used and idle time is missing; empty if it is not.
        recorded_at: the end of the ledger when this was read. An hour that is recorded meanwhile is
            in `uses`, and must not count twice.
    """

    uses: tuple[LiveUse, ...] = ()
    is_so_far: bool = False
    problem: str = ""
    recorded_at: datetime | None = None


def live_use(
    session: Session,
    store: Store | None,
    scope: Scope,
    period: Period,
    *,
    now: datetime,
    appliances: Collection[str] | None = None,
) -> Live:
    """Return the GPU time of a period that is not in the ledger.

    Args:
        session: for ledger and attempts.
        store: for used and idle time and energy; with None, only allocated time is counted, and
            GPU models are unknown.
        scope: whose GPU time.
        period: the time; what is after `now` is not counted.
        now: the time.
        appliances: the ids of some; None for all.
    """
    scope.require(Permission.VIEW)
    uses: list[LiveUse] = []
    problem = ""
    recorded_at = recorded_until(session)
    for part in _parts(session, period, recorded_at, now=now):
        attempts = [
            attempt
            for attempt in read_attempts(session, part, scope=scope)
            if appliances is None or attempt.appliance_id in appliances
        ]
        windows: dict[GPUKey, GPUWindows] = {}
        models: dict[str, Mapping[str, str]] = {}
        if attempts and store is not None:
            models = read_models(session, {attempt.site_id for attempt in attempts})
            try:
                windows = gpu_windows(
                    store,
                    start_ns=to_ns(part.since),
                    end_ns=to_ns(part.until),
                    tenants=scope.tenants,
                    has_slices=any(attempt.has_mig for attempt in attempts),
                )
            except UnavailableError as error:
                problem = error.message
        uses += [
            LiveUse(attempt, model, f"{part.since:%Y-%m-%d}", use)
            for attempt in attempts
            for model, use in use_by_model(
                attempt, windows, models.get(attempt.site_id, {}), part
            ).items()
        ]
    is_open = recorded_at is None or recorded_at < period.until
    return Live(
        uses=tuple(uses),
        is_so_far=is_open and period.since < now,
        problem=problem,
        recorded_at=recorded_at,
    )


def _parts(
    session: Session, period: Period, recorded_at: datetime | None, *, now: datetime
) -> Iterator[Period]:
    """Yield what of a period is not in the ledger, by day in UTC."""
    since, until = period.since, min(period.until, now)
    if since >= until:
        return
    if recorded_at is None:
        first_at = session.scalar(select(func.min(Attempt.assigned_at)))
        yield from _days(max(since, first_at or until), until)
        return
    whole_since = since if since == floor_hour(since) else floor_hour(since) + HOUR
    whole_until = min(floor_hour(until), recorded_at)
    if whole_since >= whole_until:
        yield from _days(since, until)
    else:
        yield from _days(since, whole_since)
        yield from _days(whole_until, until)


def _days(since: datetime, until: datetime) -> Iterator[Period]:
    while since < until:
        midnight = since.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        yield Period(since, min(midnight, until))
        since = midnight
