"""Maintenance of jobs: delete ended ones by users, the operator and age, list stuck ones.

A job is *stuck* if it has waited for more than a day, or has not stopped an hour after a stop
request: its appliance may be gone, or no appliance can run it.

A job that ran on a rented appliance stays until its use is charged: the usage ledger, and minimum
times, are computed from its attempts.

Services that scale may wake and sleep for years. Their ended attempts and their events are deleted
when they are old, but for the newest. What attempts used is in the ledger by then, and was charged.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import ColumnElement, and_, delete, exists, func, literal, or_, select
from sqlalchemy.orm import Session, aliased

from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.fairshare.usage import charge_jobs
from jobqueue.jobs.settings import settings_of
from jobqueue.jobs.shown import with_attempts
from jobqueue.models import Attempt, Job, JobDependency, JobEvent, TenantQueueSettings
from jobqueue.queue.service import get_job
from jobqueue.states import ALLOCATED_STATES, WAITING, AttemptState, JobState
from jobqueue.usage.ledger import recorded_until
from tenants.auditing.recording import record
from tenants.permissions import Permission
from tenants.scope import Scope

WAITS_TOO_LONG = timedelta(days=1)
STOPS_TOO_LONG = timedelta(hours=1)
# The ledger's second check of the last hour has then been made.
CHARGED_AFTER = timedelta(days=2)
# Deleting so many takes about 40 ms, with their attempts, events and logs.
BATCH = 100
STUCK_JOB_SORTS: Columns = {
    "submitted_at": Job.submitted_at,
    "stop_requested_at": Job.stop_requested_at,
    "name": Job.name,
    "state": Job.state,
}
_FINAL = [state for state in JobState if state.is_final]
# Of services that scale.
OLD_AFTER = timedelta(days=7)
NEWEST_ATTEMPTS = 20
NEWEST_EVENTS = 500
_OPEN = (*ALLOCATED_STATES, AttemptState.BOUND)


@dataclass(frozen=True, slots=True)
class JobRetention:
    """The number of jobs that ended long ago, and of stuck ones."""

    ended: int
    stuck: int


def job_retention(
    session: Session, scope: Scope, *, ended_before: datetime, now: datetime
) -> JobRetention:
    """Count the jobs that ended before a time, and those that are stuck."""
    scope.require(Permission.OPERATE)
    count = select(func.count()).select_from(Job)
    ended = session.scalar(count.where(_has_ended(ended_before)))
    return JobRetention(ended or 0, session.scalar(count.where(_is_stuck(now))) or 0)


def list_stuck_jobs(
    session: Session, scope: Scope, *, now: datetime, **paging: Unpack[Paging]
) -> Page[Job]:
    """Return the stuck jobs, the oldest first by default."""
    scope.require(Permission.OPERATE)
    statement = select(Job).where(_is_stuck(now)).options(*with_attempts()).order_by(Job.id)
    return list_page(session, statement, STUCK_JOB_SORTS, last=Job.id, **paging)


def delete_job(session: Session, scope: Scope, job_id: str, *, now: datetime) -> tuple[Job, bool]:
    """Delete an ended job with its attempts, history and logs; its usage stays in the ledger.

    The first task of an array stands for it, so that all its tasks are deleted before it, up to
    `BATCH` with each call: call it in a new transaction until it is done. If that ends before, the
    array has fewer tasks, and can be deleted again.

    Returns:
        The job, and whether it was deleted itself.

    Raises:
        ForbiddenError: it is another user's job, and the role may not stop those.
        ConflictError: it, or a task of its array, has not ended, or its rented appliance is not
            charged yet, or another job waits for it.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    tasks = or_(Job.id == job.id, Job.array_id == job.id)
    # Locked, as an instance of a service may be added at the same moment.
    with session.begin_nested():
        locked = select(Job.id, Job.state).where(tasks).order_by(Job.id == job.id, Job.id)
        rows = session.execute(locked.with_for_update()).all()
    active = sum(not row.state.is_final for row in rows)
    if active:
        which = f"{active} tasks of {job.name!r} have" if len(rows) > 1 else f"{job.name!r} has"
        raise ConflictError(f"{which} not ended. Stop the job first.", code="job_not_ended")
    ids = [row.id for row in rows]
    if session.scalar(select(exists().where(JobDependency.on_job_id.in_(ids)))):
        raise ConflictError(f"Other jobs wait for {job.name!r}.", code="job_needed")
    uncharged = select(Job.id).where(tasks, _awaits_charge(session, now=now)).limit(1)
    if session.scalar(uncharged) is not None:
        raise ConflictError(
            f"{job.name!r} ran on a rented appliance, and is needed until that is charged. Delete "
            f"it {CHARGED_AFTER.days} days after its end.",
            code="job_not_charged",
        )
    part = ids[:BATCH]
    half_life = settings_of(session, job.tenant_id).ordering.half_life
    charge_jobs(session, job.tenant_id, part, half_life=half_life)
    session.execute(
        delete(Job).where(Job.id.in_(part)), execution_options={"synchronize_session": False}
    )
    record(
        session,
        action="job.deleted",
        target_id=job.id,
        target_name=job.name,
        tenant_id=job.tenant_id,
        before={"state": job.state.value, "jobs": len(part)},
        now=now,
    )
    session.expunge(job)
    return job, len(part) == len(ids)


def delete_ended(session: Session, scope: Scope, *, before: datetime, now: datetime) -> int:
    """Delete up to `BATCH` jobs that ended before a time, with their attempts, history and logs.

    Returns:
        The number of deleted jobs.
    """
    scope.require(Permission.OPERATE)
    return _delete(session, _has_ended(before), before=before, tenant_id=None, now=now)


def expire_jobs(session: Session, *, retention_days: int, now: datetime) -> int:
    """Delete up to `BATCH` jobs that ended longer ago than their tenant retains them.

    Args:
        session: the session.
        retention_days: the most; a tenant may have less.
        now: the time.

    Returns:
        The number of deleted jobs; 0 if there are no more.
    """
    less = select(TenantQueueSettings.tenant_id, TenantQueueSettings.job_retention_days).where(
        TenantQueueSettings.job_retention_days < retention_days
    )
    for tenant_id, days in [(None, retention_days), *session.execute(less).all()]:
        before = now - timedelta(days=days or retention_days)
        condition = _has_ended(before)
        if tenant_id is not None:
            condition = and_(Job.tenant_id == tenant_id, condition)
        deleted = _delete(session, condition, before=before, tenant_id=tenant_id, now=now)
        if deleted:
            return deleted
    return 0


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


def _delete(
    session: Session,
    condition: ColumnElement[bool],
    *,
    before: datetime,
    tenant_id: str | None,
    now: datetime,
) -> int:
    condition = and_(condition, ~_awaits_charge(session, now=now))
    rows = session.execute(select(Job.id, Job.tenant_id).where(condition).limit(BATCH)).all()
    job_ids = [row.id for row in rows]
    for owner_id in sorted({row.tenant_id for row in rows}):
        half_life = settings_of(session, owner_id).ordering.half_life
        owned = [row.id for row in rows if row.tenant_id == owner_id]
        charge_jobs(session, owner_id, owned, half_life=half_life)
    session.execute(
        delete(Job).where(Job.id.in_(job_ids)), execution_options={"synchronize_session": False}
    )
    if job_ids:
        record(
            session,
            action="job.cleaned",
            target_name=f"{len(job_ids)} jobs that ended before {before:%Y-%m-%d}",
            tenant_id=tenant_id,
            after={"jobs": len(job_ids), "ended_before": before.isoformat()},
            now=now,
        )
    return len(job_ids)


def _has_ended(before: datetime) -> ColumnElement[bool]:
    other = aliased(Job)
    # The first task of an array stands for it in lists, so it goes last.
    has_tasks = exists().where(other.array_id == Job.id, other.id != Job.id)
    is_needed = exists().where(JobDependency.on_job_id == Job.id)
    return and_(Job.state.in_(_FINAL), Job.finished_at < before, ~has_tasks, ~is_needed)


def _awaits_charge(session: Session, *, now: datetime) -> ColumnElement[bool]:
    """Return the condition of jobs that ran on rented appliances until lately.

    They may be needed for longer: the ledger waits for the store of samples.
    """
    recorded_at = recorded_until(session)
    charged_at = now - CHARGED_AFTER
    return exists().where(
        Attempt.job_id == Job.id,
        Attempt.contract_id.is_not(None),
        or_(
            Attempt.finished_at.is_(None),
            Attempt.finished_at > min(charged_at, recorded_at or charged_at),
            literal(recorded_at is None),
        ),
    )


def _is_stuck(now: datetime) -> ColumnElement[bool]:
    waiting_since = func.coalesce(Job.retry_at, Job.submitted_at)
    waits = and_(Job.state.in_(WAITING), waiting_since < now - WAITS_TOO_LONG)
    stops = and_(Job.state.not_in(_FINAL), Job.stop_requested_at < now - STOPS_TOO_LONG)
    return or_(waits, stops)


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
