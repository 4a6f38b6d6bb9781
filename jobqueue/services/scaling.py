"""Instances of services: each is a job, placed by itself. The first one stands for all of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session, selectinload

from core.errors import ConflictError, InvalidInputError
from jobqueue.jobs.relations import add_other_tasks
from jobqueue.jobs.transitions import change_job
from jobqueue.models import Job, ServiceUpdate
from jobqueue.placement.views import queue_time
from jobqueue.queue.service import get_job, reserve_jobs
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState, Reason, UpdateState
from protocol.autoscaling import MAX_INSTANCES
from protocol.job_spec import ContainerPolicy, JobKind
from tenants.auditing.recording import record
from tenants.permissions import Permission
from tenants.scope import Scope


def scale_service(
    session: Session, scope: Scope, job_id: str, instances: int, *, now: datetime
) -> Job:
    """Add instances to a service, or stop those with the highest numbers.

    Raises:
        InvalidInputError: the number is out of range.
        ForbiddenError: it is another user's service, and the role may not stop those.
        ConflictError: the job is no service, has ended, or scales by itself; or the tenant's job
            quota is reached.
    """
    if not 1 <= instances <= MAX_INSTANCES:
        error = (
            f"instances is {instances}; enter 1 to {MAX_INSTANCES}. To end it, stop the service."
        )
        raise InvalidInputError(error, errors={"instances": [error]})
    job = changeable_service(session, scope, job_id)
    if job.autoscaling is not None:
        message = f"The service {job.name!r} scales by itself. Change or remove its autoscaling."
        raise ConflictError(message, code="autoscaled")
    running = service_instances(session, job)
    before, change = len(running), instances - len(running)
    if change > 0:
        add_instances(session, running, change, now=now)
    for instance in reversed(running[instances:]):
        stop_job(session, scope, instance.id, now=now)
    if change <= 0:
        _number(session, running[:instances], size=instances)
    session.refresh(job)
    if change:
        record(
            session,
            action="job.scaled",
            target_id=job.id,
            target_name=job.name,
            tenant_id=job.tenant_id,
            before={"instances": before},
            after={"instances": instances},
            now=now,
        )
    return job


def add_instances(session: Session, running: Sequence[Job], count: int, *, now: datetime) -> None:
    """Add instances to those of a service.

    Raises:
        ConflictError: the tenant's job quota is reached.
    """
    reserve_jobs(session, running[0].tenant_id, count)
    _add(session, running, count, now=now)
    _number(session, running, size=len(running) + count)


def changeable_service(session: Session, scope: Scope, job_id: str) -> Job:
    """Return an instance of a service that has not ended and that the user may change.

    Raises:
        ForbiddenError: it is another user's service, and the role may not stop those.
        ConflictError: the job is no service, or all of its instances have ended.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job = get_job(session, scope, job_id)
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    if job.kind is not JobKind.SERVICE:
        raise ConflictError(f"The job {job.name!r} is not a service.", code="no_service")
    if not service_instances(session, job):
        message = f"The service {job.name!r} has ended. Copy it to start it again."
        raise ConflictError(message, code="job_ended")
    return job


def service_id(job: Job) -> str:
    """Return the id of the first instance of a job's service."""
    return job.array_id or job.id


def service_instances(session: Session, job: Job) -> list[Job]:
    """Return the instances of a job's service that have not ended and need not stop, by number."""
    return instances_of(session, service_id(job))


def instances_of(session: Session, ident: str) -> list[Job]:
    """Return the instances of the service whose first instance had this id."""
    # Whether they serve is in their attempts.
    statement = select(Job).where(*is_instance(ident)).options(selectinload(Job.attempts))
    ordered = statement.order_by(Job.array_index, Job.id).execution_options(populate_existing=True)
    return list(session.scalars(ordered).unique())


def is_instance(ident: str) -> list[ColumnElement[bool]]:
    """Return the conditions of those instances."""
    return [
        or_(Job.id == ident, Job.array_id == ident),
        Job.state.not_in([state for state in JobState if state.is_final]),
        Job.stop_requested_at.is_(None),
    ]


def columns_of(service_update: ServiceUpdate) -> dict[str, Any]:
    """Return the columns of an instance after an update."""
    policy = ContainerPolicy(service_update.values["container_policy"])
    return {
        "options": None,  # values of earlier versions have none
        **service_update.values,
        "container_policy": policy,
        "revision": service_update.revision,
    }


def _number(session: Session, running: Sequence[Job], *, size: int) -> None:
    for number, instance in enumerate(running):
        index = number if instance.array_index is None else instance.array_index
        change_job(
            session, instance, array_id=service_id(instance), array_index=index, array_size=size
        )


def _add(session: Session, running: Sequence[Job], count: int, *, now: datetime) -> None:
    like = max(running, key=lambda instance: instance.revision)
    latest = session.get(ServiceUpdate, service_id(like))
    is_rolling = latest is not None and latest.state is UpdateState.ROLLING
    taken = {instance.array_index or 0 for instance in running}
    free = [index for index in range(len(taken) + count) if index not in taken][:count]
    add_other_tasks(
        session,
        like,
        free,
        **{
            "array_id": service_id(like),
            "array_size": len(running) + count,
            "dependencies": [],
            "state": JobState.SUBMITTED,
            "reason": Reason.NONE,
            "message": "",
            "exit_code": None,
            "queue_at": queue_time(now, like.priority),
            "retry_at": None,
            "submitted_at": now,
            "started_at": None,
            "finished_at": None,
            "is_notice_due": False,
            **(columns_of(latest) if latest and is_rolling else {}),
        },
    )
