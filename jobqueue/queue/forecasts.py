"""Forecasts of when waiting jobs start, and how wrong those of the last days were.

Now and then, the expected starts of the jobs at the front of a queue are stored. When such a job
has started, the forecast is settled: by how much later or earlier it was. The errors of a tenant
are shown beside each new forecast, so that users know what it is worth.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_rows
from jobqueue.dispatch.snapshot import queue_order, read_snapshot, with_jobs
from jobqueue.fairshare.models import StartForecast
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.placement.explanation import ForecastErrors, explain_jobs
from jobqueue.states import WAITING

# Of a queue, so many jobs at its front get forecasts: at most one in each interval.
MAX_FRONT = 100
MAX_MADE = 20
INTERVAL = timedelta(hours=1)
SHOWN_FOR = timedelta(days=30)
# The latest ones of each tenant are stored.
MAX_STORED = 5000


def tenants_with_forecasts(session: Session) -> Sequence[str]:
    """Return the tenants with jobs that wait, or forecasts that are not settled."""
    waiting = select(Job.tenant_id).where(Job.state.in_(WAITING))
    unsettled = select(StartForecast.tenant_id).where(StartForecast.late_seconds.is_(None))
    return session.scalars(waiting.union(unsettled)).all()


def make_forecasts(session: Session, tenant_id: str, *, now: datetime) -> list[StartForecast]:
    """Return when jobs at the front of a tenant's queue are expected to start, to be stored."""
    snapshot = read_snapshot(session, tenant_id, now=now)
    order = queue_order(session, tenant_id, snapshot)
    front = order.ids[:MAX_FRONT]
    recent = select(StartForecast.job_id).where(
        StartForecast.job_id.in_(front), StartForecast.made_at > now - INTERVAL
    )
    fresh = set(session.scalars(recent))
    due = [ident for ident in front if ident not in fresh][:MAX_MADE]
    snapshot = with_jobs(session, tenant_id, snapshot, front, order)
    expected = {
        ident: explanation.expected_start_at
        for ident, explanation in explain_jobs(snapshot, due).items()
    }
    return [
        StartForecast(tenant_id=tenant_id, job_id=ident, made_at=now, expected_start_at=at)
        for ident, at in expected.items()
        if at is not None and at > now
    ]


def settle_forecasts(session: Session, tenant_id: str, *, now: datetime) -> int:
    """Compare forecasts with what happened; return how many were settled.

    Those of jobs that will never start are deleted, as are those that are too old or too many.
    """
    unsettled = (StartForecast.tenant_id == tenant_id, StartForecast.late_seconds.is_(None))
    started = (
        select(
            StartForecast.id,
            StartForecast.expected_start_at,
            func.min(CHARGED_FROM).label("started_at"),
        )
        .join(Attempt, Attempt.job_id == StartForecast.job_id)
        .where(*unsettled, StartForecast.made_at <= CHARGED_FROM)
        .group_by(StartForecast.id, StartForecast.expected_start_at)
    )
    settled = [
        {
            "forecast_id": row.id,
            "late": (row.started_at - row.expected_start_at).total_seconds(),
        }
        for row in session.execute(started)
    ]
    if settled:
        statement = update(StartForecast).where(StartForecast.id == bindparam("forecast_id"))
        session.connection().execute(statement.values(late_seconds=bindparam("late")), settled)
    still_waiting = select(Job.id).where(Job.tenant_id == tenant_id, Job.state.in_(WAITING))
    never = delete(StartForecast).where(*unsettled, StartForecast.job_id.not_in(still_waiting))
    changed_rows(session, never, synchronize_session=False)
    _drop_oldest(session, tenant_id, now=now)
    return len(settled)


def forecast_errors(session: Session, tenant_id: str, *, now: datetime) -> ForecastErrors | None:
    """Return how wrong the tenant's forecasts of the last 30 days were; None if none is settled."""
    late = select(StartForecast.late_seconds).where(
        StartForecast.tenant_id == tenant_id,
        StartForecast.made_at > now - SHOWN_FOR,
        StartForecast.late_seconds.is_not(None),
    )
    errors = np.abs(np.array(session.scalars(late).all(), np.float64))
    if not errors.size:
        return None
    median, p90 = np.percentile(errors, [50, 90]).tolist()
    return ForecastErrors(count=errors.size, median_seconds=median, p90_seconds=p90)


def _drop_oldest(session: Session, tenant_id: str, *, now: datetime) -> None:
    of_tenant = StartForecast.tenant_id == tenant_id
    newest = select(StartForecast.made_at).where(of_tenant)
    last = session.scalar(newest.order_by(StartForecast.made_at.desc()).offset(MAX_STORED).limit(1))
    before = max(now - SHOWN_FOR, last) if last is not None else now - SHOWN_FOR
    old = delete(StartForecast).where(of_tenant, StartForecast.made_at <= before)
    changed_rows(session, old, synchronize_session=False)
