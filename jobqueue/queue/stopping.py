"""Stopping jobs: one, or all tasks of an array, a part of them in each transaction.

A waiting job stops at once, a running one through its appliance's desired state.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Row, exists, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError
from jobqueue.jobs.gangs import stops_together
from jobqueue.jobs.transitions import (
    change_job,
    move_all,
    move_attempt,
    move_job,
    record_event,
    record_events,
    withdraw_data,
)
from jobqueue.models import Attempt, Job
from jobqueue.queue.service import get_job
from jobqueue.states import ALLOCATED_STATES, WITHOUT_ATTEMPT, AttemptState, JobState, Reason
from tenants.auditing.drafts import actor_of
from tenants.auditing.recording import record
from tenants.fleet.appliances import bump_generation, bump_generations
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

_Task = Row[str, str, JobState, Reason]

# A transaction that stops so many takes about 15 ms.
TASKS_PER_TRANSACTION = 100
_FINAL = [state for state in JobState if state.is_final]
_BEFORE_START = "Stopped before it started."


def stop_job(session: Session, scope: Scope, job_id: str, *, now: datetime) -> Job:
    """Stop a job: a waiting one at once, a running one through its appliance's desired state.

    A member of a gang stops with the others, unless the gang has started and goes on without lost
    members. A second request while it stops changes nothing.

    Raises:
        ForbiddenError: it is another user's job, and the role may not stop those.
        ConflictError: it has already ended.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    _require_may_stop(scope, job)
    is_whole_gang = stops_together(session, job)
    was_requested = job.stop_requested_at is not None
    # Dispatch and reports of appliances move it meanwhile, to and fro if it is tried again.
    while not (_stop_waiting(session, job, now=now) or _request_stop(session, job, scope, now=now)):
        pass
    session.refresh(job)
    if is_whole_gang:
        others = (Job.array_id == job.array_id, Job.state.not_in(_FINAL))
        while stop_all(session, scope, others, now=now):
            pass
    if not was_requested:
        # Guarded updates bypass the ORM events that write the audit log.
        record(
            session,
            action="job.stop_requested",
            target_id=job.id,
            target_name=job.name,
            tenant_id=job.tenant_id,
            after={"state": job.state.value},
            now=now,
        )
    return job


def stop_array(session: Session, scope: Scope, job_id: str, *, now: datetime) -> tuple[Job, bool]:
    """Stop a part of the tasks of a job's array that have not ended, the last ones first.

    Call it in a new transaction until it is done: a task's stop is final or requested, whatever
    becomes of the others. What is left after a crash is stopped by the next request.

    Returns:
        The job, as it is once no more tasks are left to stop; and whether none are.

    Raises:
        ForbiddenError: as `stop_job` does.
        ConflictError: the job is no task of an array, or all tasks have ended.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = scope.get(session, Job, job_id, kind="job")
    if job.array_id is None:
        raise ConflictError(f"The job {job.name!r} is not part of an array.", code="no_array")
    _require_may_stop(scope, job)
    open_tasks = (Job.array_id == job.array_id, Job.state.not_in(_FINAL))
    count = stop_all(session, scope, open_tasks, now=now)
    if count:
        # Updates in bulk bypass the ORM events that write the audit log.
        record(
            session,
            action="job.stop_requested",
            target_id=job.array_id,
            target_name=job.name,
            tenant_id=job.tenant_id,
            after={"jobs": count},
            now=now,
        )
    elif not session.scalar(select(exists().where(*open_tasks))):
        message = f"All tasks of the array {job.name!r} have already ended."
        raise ConflictError(message, code="job_ended")
    unstopped = select(exists().where(*open_tasks, Job.stop_requested_at.is_(None)))
    is_done = count < TASKS_PER_TRANSACTION or not session.scalar(unstopped)
    if is_done:
        session.refresh(job)
    return job, is_done


def stop_all(
    session: Session, scope: Scope, conditions: Sequence[ColumnElement[bool]], *, now: datetime
) -> int:
    """Stop up to `TASKS_PER_TRANSACTION` jobs that have not ended; return how many.

    The caller has checked that the scope may stop all that meet the conditions.
    """
    is_running_on = Job.state.not_in(_FINAL) & Job.stop_requested_at.is_(None)
    statement = (
        select(Job.id, Job.tenant_id, Job.state, Job.reason)
        .where(*conditions, is_running_on)
        .order_by(Job.id.desc())
        .limit(TASKS_PER_TRANSACTION)
    )
    # SQLite has no locks of rows.
    begin_writing(session)
    jobs = session.execute(statement.with_for_update()).all()
    if waiting := [job for job in jobs if job.state in WITHOUT_ATTEMPT]:
        _stop_waiting_jobs(session, waiting, now=now)
    if running := [job for job in jobs if job.state not in WITHOUT_ATTEMPT]:
        _request_stops(session, running, _requester(session, scope), now=now)
    return len(jobs)


def _require_may_stop(scope: Scope, job: Job) -> None:
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)


def _stop_waiting_jobs(session: Session, jobs: Sequence[_Task], *, now: datetime) -> None:
    ids = [job.id for job in jobs]
    withdraw_data(session, ids)
    values = {"reason": Reason.STOPPED_BY_USER, "message": _BEFORE_START, "finished_at": now}
    move_all(session, Job, Job.id.in_(ids), JobState.STOPPED, stop_requested_at=now, **values)
    bound = Attempt.job_id.in_(ids) & (Attempt.state == AttemptState.BOUND)
    move_all(session, Attempt, bound, AttemptState.STOPPED, **values)
    event = {"state": JobState.STOPPED, "reason": Reason.STOPPED_BY_USER, "message": _BEFORE_START}
    record_events(
        session, [{"job_id": job.id, "tenant_id": job.tenant_id, **event} for job in jobs], now=now
    )


def _request_stops(
    session: Session, jobs: Sequence[_Task], requester: str, *, now: datetime
) -> None:
    ids = [job.id for job in jobs]
    session.execute(
        update(Job).where(Job.id.in_(ids)).values(stop_requested_at=now),
        execution_options={"synchronize_session": False},
    )
    on = select(Attempt.appliance_id).where(
        Attempt.job_id.in_(ids), Attempt.state.in_(ALLOCATED_STATES)
    )
    bump_generations(session, session.scalars(on.distinct()).all())
    events = [
        {
            "job_id": job.id,
            "tenant_id": job.tenant_id,
            "state": job.state,
            "reason": job.reason,
            "message": f"{requester} requested a stop.",
        }
        for job in jobs
    ]
    record_events(session, events, now=now)


def _stop_waiting(session: Session, job: Job, *, now: datetime) -> bool:
    values = {"reason": Reason.STOPPED_BY_USER, "message": _BEFORE_START, "finished_at": now}
    stopped = JobState.STOPPED
    if not move_job(
        session, job.id, stopped, expected=WITHOUT_ATTEMPT, stop_requested_at=now, **values
    ):
        return False
    withdraw_data(session, [job.id])
    session.refresh(job)
    attempt = job.attempt
    if attempt is not None:
        bound = {AttemptState.BOUND}
        move_attempt(session, attempt.id, AttemptState.STOPPED, expected=bound, **values)
    record_event(session, job, now=now)
    return True


def _request_stop(session: Session, job: Job, scope: Scope, *, now: datetime) -> bool:
    """Let the appliance of a job stop it; return False if its state has just changed."""
    session.refresh(job)
    if job.state in WITHOUT_ATTEMPT:
        return False
    if job.state.is_final:
        message = f"The job {job.name!r} has already ended ({job.state.value})."
        raise ConflictError(message, code="job_ended")
    if job.stop_requested_at is not None:
        return True
    if not change_job(session, job, stop_requested_at=now):
        return False
    session.refresh(job)
    if job.attempt is not None:
        bump_generation(session, job.attempt.appliance_id)
    message = f"{_requester(session, scope)} requested a stop."
    record_event(session, job, message=message, now=now)
    return True


def _requester(session: Session, scope: Scope) -> str:
    user, actor = session.get(User, scope.user_id), actor_of(session)
    name = user.name if user else actor.name if actor else "a user"
    return f"{name[:1].upper()}{name[1:]}"
