"""Jobs as people handle them: submit, list, read, stop. Every call checks what the scope may do."""

from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from jobqueue.guarded import move_attempt, move_job
from jobqueue.history import record_event
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.requests import JobRequest, check_capacity, check_request
from jobqueue.snapshot import WAITING, active_appliances, appliance_view, job_view
from jobqueue.states import HOLDING, AttemptState, JobState, Reason
from tenants.audit import record
from tenants.customers.quotas import hold_limits, refuse_above
from tenants.fleet.appliances import bump_generation
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

JOB_SORTS: Columns = {
    "name": Job.name,
    "state": Job.state,
    "submitted_at": Job.submitted_at,
    "started_at": Job.started_at,
    "finished_at": Job.finished_at,
    "gpus": Job.gpus,
}

__all__ = [
    "JobRequest",
    "active_jobs",
    "get_job",
    "gpu_holders",
    "job_counts",
    "job_events",
    "list_jobs",
    "stop_job",
    "submit_job",
]


def submit_job(session: Session, scope: Scope, request: JobRequest, *, now: datetime) -> Job:
    """Take a job into the queue; placement looks at it in its next cycle.

    Raises:
        InvalidInputError: names every faulty field; code `exceeds_every_appliance` where no
            appliance of the tenant could ever run it.
        ConflictError: the tenant's quota of jobs is reached.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    check_request(request)
    job = _new_job(request, tenant_id=tenant_id, user_id=scope.user_id, now=now)
    views = [appliance_view(row) for row in active_appliances(session, tenant_id)]
    if request.appliance_id is not None:
        views = [view for view in views if view.id == request.appliance_id]
        if not views:
            fault = NotFoundError.of("appliance", request.appliance_id).message
            raise InvalidInputError(fault, errors={"appliance_id": [fault]})
    check_capacity(job_view(job), views)
    most = hold_limits(session, tenant_id).max_active_jobs
    refuse_above(most, lambda: active_jobs(session, tenant_id), adding=1, what="jobs at a time")
    session.add(job)
    session.flush()
    record_event(session, job.id, tenant_id=tenant_id, state=job.state, now=now)
    session.flush()
    session.refresh(job)
    return job


def active_jobs(session: Session, tenant_id: str) -> int:
    """Return how many jobs of a tenant have not ended."""
    active = [state for state in JobState if not state.is_final]
    counted = select(func.count()).where(Job.tenant_id == tenant_id, Job.state.in_(active))
    return session.scalar(counted.select_from(Job)) or 0


def list_jobs(
    session: Session,
    scope: Scope,
    *,
    state: JobState | None = None,
    search: str = "",
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Job]:
    """Return the jobs that the scope may see, newest first.

    Args:
        session: the database session.
        scope: who asks.
        state: only those in this state.
        search: only those with this text in their name, image or id.
        sort: names of `JOB_SORTS`, see `core.sorting`.
        page: the page's number, from 1.
        page_size: how many on a page.
    """
    scope.require(Permission.VIEW)
    statement = scope.select(select(Job).order_by(Job.id.desc()), Job)
    if state is not None:
        statement = statement.where(Job.state == state)
    if search:
        columns = (Job.name, Job.image, Job.id)
        statement = statement.where(or_(*(c.icontains(search, autoescape=True) for c in columns)))
    return paginate(
        session, sorted_by(statement, sort, JOB_SORTS, last=Job.id), number=page, size=page_size
    )


def get_job(session: Session, scope: Scope, job_id: str) -> Job:
    """Return a job; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Job, job_id, kind="job")


def stop_job(session: Session, scope: Scope, job_id: str, *, now: datetime) -> Job:
    """Stop a job: a waiting one at once, a running one by asking its appliance.

    Asking again while it stops changes nothing.

    Raises:
        ForbiddenError: it is somebody else's, and the role may not stop those.
        ConflictError: it has ended already.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    was_asked = job.stop_requested_at is not None
    if not _stop_waiting(session, job, now=now):
        _request_stop(session, job, scope, now=now)
    session.refresh(job)
    if not was_asked:
        # Guarded updates go past what notices changes.
        record(
            session,
            action="job.stop_requested",
            target_kind="job",
            target_id=job.id,
            target_name=job.name,
            tenant_id=job.tenant_id,
            after={"state": job.state.value},
            now=now,
        )
    return job


def job_events(session: Session, scope: Scope, job_id: str) -> list[JobEvent]:
    """Return a job's history, oldest first."""
    job = get_job(session, scope, job_id)
    statement = select(JobEvent).where(JobEvent.job_id == job.id)
    return list(session.scalars(statement.order_by(JobEvent.id)))


def job_counts(session: Session, scope: Scope) -> dict[JobState, int]:
    """Return how many jobs are in each state, those with none included."""
    scope.require(Permission.VIEW)
    counted: Any = select(Job.state, func.count()).group_by(Job.state)
    rows = session.execute(scope.select(counted, Job)).all()
    return dict.fromkeys(JobState, 0) | {row[0]: row[1] for row in rows}


def gpu_holders(session: Session, scope: Scope) -> dict[str, Job]:
    """Return which job holds each GPU now, by the GPU's UUID."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Attempt).where(Attempt.state.in_(HOLDING)), Attempt)
    attempts = session.scalars(statement.order_by(Attempt.id)).unique()
    return {uuid: attempt.job for attempt in attempts for uuid in attempt.gpu_uuids}


def _new_job(request: JobRequest, *, tenant_id: str, user_id: str, now: datetime) -> Job:
    return Job(
        tenant_id=tenant_id,
        user_id=user_id,
        name=request.name.strip(),
        kind=request.kind,
        image=request.image,
        command=list(request.command),
        env=dict(request.env),
        gpus=request.gpus,
        gpu_memory_bytes=request.gpu_memory_bytes,
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
        appliance_id=request.appliance_id,
        state=JobState.SUBMITTED,
        submitted_at=now,
    )


def _stop_waiting(session: Session, job: Job, *, now: datetime) -> bool:
    message = "Stopped before it started."
    values = {"reason": Reason.STOPPED_BY_USER, "message": message, "finished_at": now}
    if not move_job(
        session, job.id, expected=WAITING, state=JobState.STOPPED, stop_requested_at=now, **values
    ):
        return False
    session.refresh(job)
    attempt = job.attempt
    if attempt is not None:
        bound = {AttemptState.BOUND}
        move_attempt(session, attempt.id, expected=bound, state=AttemptState.STOPPED, **values)
    record_event(
        session, job.id, tenant_id=job.tenant_id, state=JobState.STOPPED,
        reason=Reason.STOPPED_BY_USER, message=message, now=now,
    )  # fmt: skip
    return True


def _request_stop(session: Session, job: Job, scope: Scope, *, now: datetime) -> None:
    session.refresh(job)
    if job.state.is_final:
        raise ConflictError(
            f"The job {job.name!r} has ended already: {job.state.value}. There is nothing to stop.",
            code="job_ended",
        )
    if job.stop_requested_at is not None:
        return
    if not move_job(session, job.id, expected={job.state}, stop_requested_at=now):
        # It moved on in this very moment; look again.
        _request_stop(session, job, scope, now=now)
        return
    if job.attempt is not None:
        bump_generation(session, job.attempt.appliance_id)
    user = session.get(User, scope.user_id)
    message = f"{user.name if user else 'A user'} asked to stop it."
    record_event(
        session, job.id, tenant_id=job.tenant_id, state=job.state, reason=job.reason,
        message=message, now=now,
    )  # fmt: skip
