"""Changing jobs that wait, and submitting ended ones again."""

from datetime import datetime

import msgspec
from msgspec import structs
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from core.secretbox import SecretBox
from jobqueue.jobs.gangs import gang_members
from jobqueue.jobs.transitions import change_job, record_event
from jobqueue.models import Job
from jobqueue.placement.views import PRIORITY_POINT
from jobqueue.queue.service import get_job, submit_job
from jobqueue.states import WAITING
from protocol.job_spec import MAX_PRIORITY, JobKind, JobRequest, JobSpec
from tenants.auditing.recording import record
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope


def retry_job(session: Session, scope: Scope, job_id: str, *, box: SecretBox, now: datetime) -> Job:
    """Submit a job of one's own again, with its secrets; for a member, its whole gang.

    Raises:
        ConflictError: it is a task of an array.
        ForbiddenError: it is another user's job, and has secrets.
        InvalidInputError: it can't be submitted any more; see `submit_job`.
    """
    job = get_job(session, scope, job_id)
    if job.array_id is not None and job.kind is JobKind.BATCH and job.nodes == 1:
        raise ConflictError(
            "Tasks of an array can't be retried one by one. Copy the job instead.", code="array"
        )
    source = job.id if job.secret_names else None
    request = structs.replace(request_like(job), secrets_from=source)
    return submit_job(session, scope, request, box=box, now=now)


def request_like(job: Job) -> JobRequest:
    """Return a request for the same job, without its secrets and dependencies."""
    spec = msgspec.convert(job, JobSpec, from_attributes=True)
    if spec.autoscaling is not None:
        spec = structs.replace(spec, instances=max(1, spec.autoscaling.min_instances))
    return JobRequest(
        **structs.asdict(spec),
        kind=job.kind,
        container_policy=job.container_policy.value,
        appliance_id=job.appliance_id,
        project=job.project_id,
    )


def set_priority(
    session: Session, scope: Scope, job_id: str, priority: int, *, now: datetime
) -> Job:
    """Change the priority of a job that waits; its place in the queue moves accordingly.

    Raises:
        ForbiddenError: it is another user's job, or the priority is above 0, and the role may not
            do that.
        InvalidInputError: the priority is out of range.
        ConflictError: the job has started or ended.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        problem = f"{priority} is not between -{MAX_PRIORITY} and {MAX_PRIORITY}"
        raise InvalidInputError(f"priority: {problem}.", errors={"priority": [problem]})
    if job.user_id != scope.user_id or priority > 0:
        scope.require(Permission.STOP_ANY_JOB)
    before = job.priority
    queue_at = job.queue_at - (priority - before) * PRIORITY_POINT
    # A gang waits at the place of its first member.
    for member in gang_members(session, job):
        if member.id != job.id and member.state in WAITING:
            change_job(session, member, priority=priority, queue_at=queue_at)
    # Its state changes when the queue starts it at the same time.
    is_waiting = job.state in WAITING
    if not is_waiting or not change_job(session, job, priority=priority, queue_at=queue_at):
        session.refresh(job)
        raise ConflictError(
            f"The job {job.name!r} is no longer waiting ({job.state.value}).", code="job_started"
        )
    session.refresh(job)
    if before == priority:
        return job
    user = session.get(User, scope.user_id)
    who = user.name if user else "A user"
    message = f"{who} changed the priority from {before} to {priority}."
    record_event(session, job, message=message, now=now)
    # Guarded updates bypass the ORM events that write the audit log.
    record(
        session,
        action="job.changed",
        target_id=job.id,
        target_name=job.name,
        tenant_id=job.tenant_id,
        before={"priority": before},
        after={"priority": priority},
        now=now,
    )
    return job
