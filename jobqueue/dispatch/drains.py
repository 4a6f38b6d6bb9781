"""Draining an appliance: it gets no new jobs, waits for those that run, then moves the rest.

Without a time to wait, jobs run to their end. With one, the attempts that still run when it is over
are stopped, and their jobs are queued again at their old place; that doesn't count as a retry. Jobs
that only wait for the appliance move at the next placement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from jobqueue.dispatch.desired_state import stoppable_attempts
from jobqueue.jobs.transitions import stop_attempts
from jobqueue.models import Attempt, Job
from jobqueue.rentals import ListedJob, rented_job
from jobqueue.states import ALLOCATED_STATES, Reason
from tenants.fleet.appliance_service import drain_appliance
from tenants.models import Appliance
from tenants.scope import Scope

MAX_WAIT = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """The progress of draining an appliance.

    Attributes:
        deadline_at: when the jobs that are left move; None if they run to their end.
        job_count: how many jobs ran when it was drained.
        jobs: those of them that still run.
    """

    drained_at: datetime
    deadline_at: datetime | None
    job_count: int
    jobs: Sequence[ListedJob]

    @property
    def is_done(self) -> bool:
        """Return whether no job runs any more."""
        return not self.jobs

    @property
    def jobs_left(self) -> int:
        """Return how many jobs still run."""
        return len(self.jobs)


def drain(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    wait: timedelta | None = None,
    now: datetime,
) -> Appliance:
    """Drain an appliance, or change how long a drained one waits for its jobs.

    Callers check that `wait` is between 0 and `MAX_WAIT`.
    """
    appliance = drain_appliance(session, scope, appliance_id, now=now)
    appliance.drain_deadline_at = None if wait is None else now + wait
    return appliance


def drain_progress(session: Session, appliance: Appliance) -> DrainProgress | None:
    """Return how far the draining of an appliance is; None if it isn't drained."""
    drained_at = appliance.drained_at
    if drained_at is None:
        return None
    on_it = and_(Attempt.job_id == Job.id, Attempt.appliance_id == appliance.id)
    ran = (
        select(Job.id)
        .join(Attempt, on_it)
        .where(
            Attempt.assigned_at <= drained_at,
            or_(Attempt.finished_at.is_(None), Attempt.finished_at >= drained_at),
        )
    )
    allocated = select(Attempt).where(
        Attempt.appliance_id == appliance.id, Attempt.state.in_(ALLOCATED_STATES)
    )
    # An operator who has the appliance's page sees what its provider does.
    jobs = [
        rented_job(attempt) if attempt.contract_id else attempt.job
        for attempt in session.scalars(allocated.order_by(Attempt.job_id)).unique()
    ]
    return DrainProgress(
        drained_at=drained_at,
        deadline_at=appliance.drain_deadline_at,
        job_count=len({*session.scalars(ran), *(job.id for job in jobs)}),
        jobs=jobs,
    )


def move_overdue(session: Session, *, now: datetime) -> int:
    """Stop the attempts on appliances whose time to wait is over; return how many."""
    is_overdue = and_(Appliance.drained_at.is_not(None), Appliance.drain_deadline_at <= now)
    return stop_attempts(
        session,
        stoppable_attempts(session, is_overdue),
        Reason.APPLIANCE_DRAINED,
        lambda attempt: f"Stopping to move: {attempt.place_name} is drained.",
        now=now,
    )
