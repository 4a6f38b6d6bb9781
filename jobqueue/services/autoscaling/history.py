"""Bound the history of services that scale: they may wake and sleep for years.

Their ended attempts and their events are deleted when they are old, but for the newest. What
attempts used is in the ledger by then, and was charged.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.queue.retention import CHARGED_AFTER
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState
from jobqueue.usage.ledger import recorded_until

OLD_AFTER = timedelta(days=7)
NEWEST_ATTEMPTS = 20
NEWEST_EVENTS = 500
# Deleting so many takes a few tens of milliseconds.
BATCH = 100
_FINAL = [state for state in JobState if state.is_final]
_OPEN = (*ALLOCATED_STATES, AttemptState.BOUND)


def expire_history(session: Session, *, now: datetime) -> int:
    """Delete old attempts and events of instances that have not ended, up to `BATCH` of each.

    Returns:
        How many were deleted; 0 if there are no more.
    """
    recorded_at = recorded_until(session)
    old_at = min(now - OLD_AFTER, now - CHARGED_AFTER)
    instances = (
        select(Job.id)
        .where(Job.autoscaling.is_not(None), Job.state.not_in(_FINAL))
        .where(exists().where(Attempt.job_id == Job.id, Attempt.finished_at < old_at))
    )
    deleted = 0
    for job_id in session.scalars(instances.order_by(Job.id)):
        if recorded_at is not None and deleted < BATCH:
            deleted += _expire_attempts(session, job_id, before=min(old_at, recorded_at))
        if deleted < BATCH:
            deleted += _expire_events(session, job_id, before=old_at)
    return deleted


def _expire_attempts(session: Session, job_id: str, *, before: datetime) -> int:
    newest = session.scalar(select(func.max(Attempt.number)).where(Attempt.job_id == job_id)) or 0
    old = select(Attempt.id).where(
        Attempt.job_id == job_id,
        Attempt.number <= newest - NEWEST_ATTEMPTS,
        Attempt.state.not_in(_OPEN),
        Attempt.finished_at < before,
        Attempt.is_charged,
    )
    idents = session.scalars(old.order_by(Attempt.number).limit(BATCH)).all()
    session.execute(
        delete(Attempt).where(Attempt.id.in_(idents)),
        execution_options={"synchronize_session": False},
    )
    return len(idents)


def _expire_events(session: Session, job_id: str, *, before: datetime) -> int:
    of_job = select(JobEvent.id).where(JobEvent.job_id == job_id)
    newest = session.scalar(of_job.order_by(JobEvent.id.desc()).offset(NEWEST_EVENTS - 1).limit(1))
    if newest is None:
        return 0
    old = of_job.where(JobEvent.id < newest, JobEvent.at < before)
    idents = session.scalars(old.order_by(JobEvent.id).limit(BATCH)).all()
    session.execute(
        delete(JobEvent).where(JobEvent.id.in_(idents)),
        execution_options={"synchronize_session": False},
    )
    return len(idents)
