"""Rolling updates of services: their instances get new values one by one.

An instance that waits or sleeps gets them at once. One that runs is stopped and queued again with
them; the next one follows when it is ready: when it is healthy, or without a health check when it
has run for some seconds. GPUs are released first, so an update needs no more of them than the
service has.

An update fails, and leaves the other instances as they are, when an updated instance is unhealthy,
exits or can't start. docs/states/service_update.md draws its states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from core.secretbox import SecretBox
from jobqueue.jobs.job_secrets import decrypt_secrets, encrypt_secrets
from jobqueue.jobs.quarantine import is_start_fault
from jobqueue.jobs.requests import request_from
from jobqueue.jobs.retries import FREE_STARTS
from jobqueue.jobs.transitions import move_attempt, move_job, move_update, record_event
from jobqueue.models import OPTIONS, Attempt, Job, ServiceUpdate
from jobqueue.queue.resubmission import request_like
from jobqueue.queue.service import checked_job, get_job
from jobqueue.services.scaling import changeable_service, columns_of, service_id, service_instances
from jobqueue.states import WAITING, WITHOUT_ATTEMPT, JobState, Reason, UpdateState
from protocol.attempts import Health
from protocol.job_spec import JobRequest
from tenants.auditing.recording import record
from tenants.fleet.appliances import bump_generation
from tenants.models import User
from tenants.scope import Scope

# An instance without a health check is ready after this time without a restart.
READY_AFTER = timedelta(seconds=10)
# Fields of a request that an update can't change.
FIXED = frozenset(
    {
        *("name", "kind", "array", "instances", "priority", "notify", "time_limit_seconds"),
        *("after_ok", "after_any", "secrets_from", "project", "nodes", "on_member_loss"),
        *("framework", "network", "uses_rdma", "cluster_options", "autoscaling"),
    }
)
UPDATABLE = frozenset(JobRequest.__struct_fields__) - FIXED
_COLUMNS = UPDATABLE - {"secrets"} - OPTIONS | {"secret_env", "secret_names", "options"}


@dataclass(frozen=True, slots=True)
class UpdateProgress:
    """The latest update of a service, and how many of its instances have it."""

    revision: int
    state: UpdateState
    message: str
    changed: list[str]
    updated: int
    total: int
    requested_at: datetime
    finished_at: datetime | None


def update_service(
    session: Session,
    scope: Scope,
    job_id: str,
    changes: Mapping[str, Any],
    *,
    box: SecretBox,
    now: datetime,
) -> Job:
    """Update the instances of a service one by one; without changes, restart them one by one.

    An update that is still rolling is replaced: its changes are included.

    Args:
        session: the session.
        scope: of the user.
        job_id: an instance of the service.
        changes: fields of `JobRequest` in `UPDATABLE`; `secrets` add to those that it has.
        box: encrypts secrets.
        now: the time.

    Raises:
        InvalidInputError: names every invalid field.
        ForbiddenError: it is another user's service, and the role may not stop those; or it has
            secrets.
        ConflictError: the job is no service, or has ended.
    """
    job = changeable_service(session, scope, job_id)
    if unknown := sorted(changes.keys() - UPDATABLE):
        error = "An update can't change it. Copy the service instead."
        raise InvalidInputError(
            f"{unknown[0]}: {error}", errors={name: [error] for name in unknown}
        )
    running = sorted(service_instances(session, job), key=lambda instance: instance.revision)
    latest = session.get(ServiceUpdate, service_id(job))
    is_rolling = latest is not None and latest.state is UpdateState.ROLLING
    # The values that the service has, or is about to have.
    base = columns_of(latest) if latest and is_rolling else _columns(running[-1])
    if base["secret_names"] and job.user_id != scope.user_id:
        message = f"Only the user who submitted {job.name!r} can update it: it has secrets."
        raise ForbiddenError(message)
    like = msgspec.structs.asdict(request_like(running[-1]))
    like |= {"instances": 1, "project": None}
    current = {name: base[name] for name in _COLUMNS & UPDATABLE}
    options = {name: getattr(Job, name) for name in OPTIONS} | (base["options"] or {})
    request = request_from({**like, **current, **options, **changes})
    wanted, _ = checked_job(session, scope, request, now=now)
    values = {name: getattr(wanted, name) for name in (*current, "options")}
    values |= {name: base[name] for name in ("secret_env", "secret_names")}
    secrets = decrypt_secrets(box, base["secret_env"])
    secrets = {name: secrets[name] for name in secrets.keys() - request.env.keys()}
    if request.secrets or len(secrets) < len(base["secret_names"]):
        secrets |= request.secrets
        values |= {"secret_env": encrypt_secrets(box, secrets), "secret_names": sorted(secrets)}
    changed = {
        "secrets" if name.startswith("secret_") else name
        for name in values
        if values[name] != base[name] and name != "options"
    }
    changed |= {name for name in OPTIONS if getattr(wanted, name) != options[name]}
    previous = _columns(running[0])
    _start(session, scope, job, values=values, previous=previous, changed=sorted(changed), now=now)
    return job


def roll_back(session: Session, scope: Scope, job_id: str, *, now: datetime) -> Job:
    """Give the instances of a service the values that they had before its latest update.

    Raises:
        ForbiddenError: it is another user's service, and the role may not stop those.
        ConflictError: the job is no service, has ended, or was not updated.
    """
    job = changeable_service(session, scope, job_id)
    latest = session.get(ServiceUpdate, service_id(job))
    if latest is None:
        message = f"The service {job.name!r} was not updated yet."
        raise ConflictError(message, code="no_update")
    parts = {"values": latest.previous, "previous": latest.values}
    _start(session, scope, job, **parts, changed=latest.changed, now=now)
    return job


def _start(
    session: Session,
    scope: Scope,
    job: Job,
    *,
    values: Mapping[str, Any],
    previous: Mapping[str, Any],
    changed: list[str],
    now: datetime,
) -> None:
    latest = session.get(ServiceUpdate, service_id(job))
    newest = max(instance.revision for instance in service_instances(session, job))
    revision = max(newest, latest.revision if latest else 0) + 1
    session.merge(
        ServiceUpdate(
            service_id=service_id(job),
            tenant_id=job.tenant_id,
            revision=revision,
            values=msgspec.to_builtins(values),
            previous=msgspec.to_builtins(previous),
            changed=changed,
            state=UpdateState.ROLLING,
            message="",
            requested_at=now,
            finished_at=None,
        )
    )
    session.flush()
    _note(session, scope, job, revision=revision, changed=changed, now=now)


def update_progress(session: Session, scope: Scope, job_id: str) -> UpdateProgress:
    """Return the latest update of a service.

    Raises:
        NotFoundError: there is none.
    """
    progress = latest_update(session, scope, job_id)
    if progress is None:
        raise NotFoundError.of("update of the service", job_id)
    return progress


def latest_update(session: Session, scope: Scope, job_id: str) -> UpdateProgress | None:
    """Return the latest update of a service, if there is one."""
    job = get_job(session, scope, job_id)
    latest = session.get(ServiceUpdate, service_id(job))
    if latest is None:
        return None
    running = service_instances(session, job)
    return UpdateProgress(
        revision=latest.revision,
        state=latest.state,
        message=latest.message,
        changed=latest.changed,
        updated=sum(instance.revision >= latest.revision for instance in running),
        total=len(running),
        requested_at=latest.requested_at,
        finished_at=latest.finished_at,
    )


def advance_updates(session: Session, *, now: datetime) -> None:
    """Take the next step of every update that rolls."""
    rolling = select(ServiceUpdate).where(ServiceUpdate.state == UpdateState.ROLLING)
    for service_update in session.scalars(rolling.order_by(ServiceUpdate.service_id)):
        _advance(session, service_update, now=now)


def _advance(session: Session, service_update: ServiceUpdate, *, now: datetime) -> None:
    first = session.get_one(Job, service_update.service_id)
    running = service_instances(session, first)
    updated = [instance for instance in running if instance.revision >= service_update.revision]
    problem = _ended_badly(session, service_update)
    problem = problem or next(filter(None, map(_problem, updated)), "")
    problem = problem or _cannot_start(updated, since=service_update.requested_at)
    waiting = [
        instance
        for instance in running
        if instance not in updated and instance.state in WITHOUT_ATTEMPT
    ]
    others = [
        instance
        for instance in running
        if instance not in updated and instance.state not in WITHOUT_ATTEMPT
    ]
    if problem:
        _finish(session, service_update, UpdateState.FAILED, problem, now=now)
    elif not running:
        _finish(session, service_update, UpdateState.FAILED, "The service was stopped.", now=now)
    elif waiting:
        for instance in waiting:
            _replace(session, service_update, instance, now=now)
    elif all(_is_ready(instance, now=now) for instance in updated) and others:
        _replace(session, service_update, others[0], now=now)
    elif all(_is_ready(instance, now=now) for instance in updated):
        _finish(session, service_update, UpdateState.DONE, "", now=now)


def _ended_badly(session: Session, service_update: ServiceUpdate) -> str:
    """Return how an updated instance ended, if one did without a request."""
    ended = select(Job).where(
        or_(Job.id == service_update.service_id, Job.array_id == service_update.service_id),
        Job.revision == service_update.revision,
        Job.state.in_((JobState.FAILED, JobState.LOST)),
    )
    job = session.scalars(ended.order_by(Job.id).limit(1)).unique().first()
    return f"{job.title} {job.state.value}: {job.message}" if job else ""


def _updated_attempt(job: Job) -> Attempt | None:
    """Return the attempt that runs with the new values; the one before may still be stopping."""
    attempt = job.attempt
    is_running = job.state is JobState.RUNNING and attempt and attempt.stop_reason is None
    return attempt if is_running else None


def _problem(job: Job) -> str:
    attempt = _updated_attempt(job)
    if attempt is None:
        return ""
    is_restarting = attempt.restarts > 0 and not job.health_check
    if is_restarting or attempt.health in {Health.UNHEALTHY, Health.RESTARTING}:
        how = attempt.health.value or "restarting"
        return f"{job.title} is {how}. {attempt.message}".rstrip()
    return ""


def _cannot_start(updated: Sequence[Job], *, since: datetime) -> str:
    """Return which updated instance has failed to start too often, though it is tried again."""
    for job in updated:
        failed = [
            attempt
            for attempt in job.attempts
            if attempt.bound_at >= since and is_start_fault(attempt)
        ]
        if job.state in WAITING and len(failed) > FREE_STARTS:
            return f"{job.title} can't start. {failed[-1].message}"
    return ""


def _is_ready(job: Job, *, now: datetime) -> bool:
    if job.state is JobState.ASLEEP:
        return True
    attempt = _updated_attempt(job)
    if attempt is None or attempt.started_at is None:
        return False
    if job.health_check:
        return attempt.health is Health.HEALTHY
    return now - attempt.started_at >= READY_AFTER


def _replace(session: Session, service_update: ServiceUpdate, job: Job, *, now: datetime) -> None:
    """Give an instance its new values; one that runs stops for them, unless it has them."""
    columns, attempt, state = columns_of(service_update), job.attempt, JobState(job.state)
    is_same = service_update.changed and columns == _columns(job) | {
        "revision": service_update.revision
    }
    stops = state not in WITHOUT_ATTEMPT and not is_same
    if stops and attempt is not None and attempt.stop_reason is None:
        held = {attempt.state}
        if not move_attempt(
            session, attempt.id, attempt.state, expected=held, stop_reason=Reason.UPDATED
        ):
            return  # it has just changed: the next step sees it
        bump_generation(session, attempt.appliance_id)
    if move_job(session, job.id, state, expected={state}, **columns):
        session.refresh(job)
        message = f"Update to revision {service_update.revision}{': stopping.' if stops else '.'}"
        record_event(session, job, message=message, now=now)


def _finish(
    session: Session, service_update: ServiceUpdate, to: UpdateState, message: str, *, now: datetime
) -> None:
    if move_update(session, service_update, to, message=message, finished_at=now):
        first = session.get_one(Job, service_update.service_id)
        text = f"Update to revision {service_update.revision} {to.value}. {message}".rstrip()
        record_event(session, first, message=text, now=now)


def _columns(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _COLUMNS}


def _note(
    session: Session, scope: Scope, job: Job, *, revision: int, changed: list[str], now: datetime
) -> None:
    user = session.get(User, scope.user_id)
    fields_text = f": {', '.join(changed)}" if changed else ""
    message = (
        f"{user.name if user else 'A user'} started the update to revision {revision}{fields_text}."
    )
    first = session.get(Job, service_id(job)) or job
    record_event(session, first, message=message, now=now)
    record(
        session,
        action="job.updated",
        target_id=job.id,
        target_name=job.name,
        tenant_id=job.tenant_id,
        after={"revision": revision, "changed": changed},
        now=now,
    )
