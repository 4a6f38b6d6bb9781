"""What users see and change of services that scale."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from jobqueue.jobs.requests import autoscaling_errors
from jobqueue.jobs.transitions import change_job, record_event
from jobqueue.models import Job, ServiceScaler
from jobqueue.queue.service import get_job
from jobqueue.queue.stopping import stop_job
from jobqueue.services.autoscaling.evaluation import policy_of
from jobqueue.services.autoscaling.instances import is_awake, is_ready, set_awake
from jobqueue.services.scaling import changeable_service, service_id, service_instances
from protocol.autoscaling import Autoscaling
from tenants.auditing.recording import record
from tenants.models import User
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStatus:
    """How a service scales, and what its last decision was.

    Attributes:
        policy: how it scales.
        awake: instances that serve, start or wait.
        ready: those of them that serve.
        wanted: what the last decision wanted; None before the first one.
        metric_value: what it saw of the metric, as a sum of all instances.
        why: its reason.
        is_refused: whether it could not add instances.
        decided_at: when the number last changed.
        woken_at: since when it wakes; None if it does not.
        wake_seconds: how long the last wake-up took.
    """

    policy: Autoscaling
    awake: int
    ready: int
    wanted: int | None
    metric_value: float | None
    why: str
    is_refused: bool
    decided_at: datetime | None
    woken_at: datetime | None
    wake_seconds: float | None


def scaling_status(session: Session, scope: Scope, job_id: str) -> ScalingStatus:
    """Return how a service scales.

    Raises:
        NotFoundError: there is no such job, or it does not scale by itself.
    """
    job = get_job(session, scope, job_id)
    status = status_of(session, job)
    if status is None:
        raise NotFoundError.of("autoscaling of the job", job_id)
    return status


def status_of(session: Session, job: Job) -> ScalingStatus | None:
    """Return how the service of a job scales; None if it does not, or has ended."""
    instances = service_instances(session, job) if job.autoscaling is not None else []
    policy = policy_of(instances)
    if policy is None:
        return None
    scaler = session.get(ServiceScaler, service_id(job))
    names = ("wanted", "decided_at", "woken_at", "wake_seconds")
    return ScalingStatus(
        policy=policy,
        awake=sum(map(is_awake, instances)),
        ready=sum(map(is_ready, instances)),
        why=scaler.why if scaler else "",
        is_refused=bool(scaler and scaler.is_refused),
        metric_value=scaler.load if scaler else None,
        **{name: getattr(scaler, name, None) for name in names},
    )


def set_autoscaling(
    session: Session, scope: Scope, job_id: str, policy: Autoscaling | None, *, now: datetime
) -> Job:
    """Let a service scale by itself in this way, or with None no longer.

    Without autoscaling it has the instances that are awake, at least one.

    Raises:
        InvalidInputError: names what is wrong.
        ForbiddenError: it is another user's service, and the role may not stop those.
        ConflictError: the job is no service, or has ended.
    """
    job = changeable_service(session, scope, job_id)
    if policy is not None:
        has_gpus, has_ports = job.wants_gpus, bool(job.ports)
        errors = list(autoscaling_errors(policy, has_ports=has_ports, has_gpus=has_gpus))
        if errors:
            message = f"The autoscaling can't be changed. {' '.join(errors)}"
            raise InvalidInputError(message, errors={"autoscaling": errors})
    instances = service_instances(session, job)
    before = instances[0].autoscaling
    stored = None if policy is None else msgspec.to_builtins(policy)
    for instance in instances:
        change_job(session, instance, autoscaling=stored)
    if policy is None:
        _end(session, scope, job, now=now)
    else:
        _begin(session, job, now=now)
    session.refresh(job)
    _record(session, scope, job, before=before, after=stored, now=now)
    return job


def _begin(session: Session, job: Job, *, now: datetime) -> None:
    scaler = session.get(ServiceScaler, service_id(job))
    if scaler is None:
        values = {"service_id": service_id(job), "tenant_id": job.tenant_id}
        session.add(ServiceScaler(**values, evaluate_at=now))
    else:
        # What it remembers is of the former policy.
        scaler.memory, scaler.evaluate_at = {}, now


def _end(session: Session, scope: Scope, job: Job, *, now: datetime) -> None:
    session.execute(delete(ServiceScaler).where(ServiceScaler.service_id == service_id(job)))
    instances = service_instances(session, job)
    if not any(map(is_awake, instances)):
        set_awake(session, instances, 1, now=now)
    instances = service_instances(session, job)
    # If all are about to sleep, the first one starts again once it has stopped.
    left = [instance for instance in instances if is_awake(instance)] or instances[:1]
    for instance in instances:
        if instance not in left:
            stop_job(session, scope, instance.id, now=now)
    left = service_instances(session, job)
    for instance in left:
        change_job(session, instance, array_size=len(left))


def _record(
    session: Session,
    scope: Scope,
    job: Job,
    *,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    now: datetime,
) -> None:
    user = session.scalar(select(User).where(User.id == scope.user_id))
    who = user.name if user else "A user"
    what = "removed the autoscaling" if after is None else "changed how the service scales"
    record_event(session, job, message=f"{who} {what}.", now=now)
    record(
        session,
        action="job.autoscaled",
        target_id=job.id,
        target_name=job.name,
        tenant_id=job.tenant_id,
        before={"autoscaling": before},
        after={"autoscaling": after},
        now=now,
    )
