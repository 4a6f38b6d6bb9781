"""Let instances of a service sleep, wake them, and add others.

An instance that sleeps stays a job of its service, which has no resources and is not placed. It has
its number, its history and the values of updates.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.changes import ANY, Topic, note_change
from core.errors import ConflictError
from jobqueue.holds.service import BUDGET_SPENT, require_no_hold
from jobqueue.jobs.retries import ASLEEP_MESSAGE
from jobqueue.jobs.transitions import (
    move_attempt,
    move_job,
    record_event,
    stop_attempts,
    withdraw_data,
)
from jobqueue.models import Job, ServiceScaler
from jobqueue.placement.views import queue_time
from jobqueue.services.scaling import add_instances, service_id, service_instances
from jobqueue.states import WAITING, AttemptState, JobState, Reason
from protocol.attempts import Health
from tenants.models import User


def is_awake(instance: Job) -> bool:
    """Return whether an instance serves, starts or waits, and is not about to sleep."""
    attempt = instance.attempt
    is_stopping = attempt is not None and attempt.stop_reason is Reason.SCALED_DOWN
    return instance.state is not JobState.ASLEEP and not (
        is_stopping and instance.state not in WAITING
    )


def is_ready(instance: Job) -> bool:
    """Return whether an instance serves: with a health check it is healthy."""
    attempt = instance.attempt
    if instance.state is not JobState.RUNNING or attempt is None or attempt.stop_reason:
        return False
    return not instance.health_check or attempt.health is Health.HEALTHY


def set_awake(session: Session, instances: Sequence[Job], wanted: int, *, now: datetime) -> None:
    """Let so many instances of a service be awake, as far as possible now.

    The lowest numbers wake first. Those that wait or start sleep before those that serve, and among
    them the highest numbers. An instance that is about to sleep can wake once it has stopped.

    Raises:
        ConflictError: the tenant's job quota is reached.
    """
    awake = [instance for instance in instances if is_awake(instance)]
    awake.sort(key=lambda instance: (not is_ready(instance), instance.state in WAITING))
    for instance in reversed(awake[wanted:]):
        _put_to_sleep(session, instance, now=now)
    missing = wanted - len(awake)
    asleep = [instance for instance in instances if instance.state is JobState.ASLEEP]
    for instance in asleep[: max(0, missing)]:
        _wake(session, instance, "Woken: its service needs it.", now=now)
    missing = min(missing - len(asleep), wanted - len(instances))
    if missing > 0:
        add_instances(session, instances, missing, now=now)


def wake_service(session: Session, job: Job, user_id: str, *, now: datetime) -> bool:
    """Wake an instance of a service of which none is awake, for the request of a user.

    Returns:
        Whether an instance is awake now, or will be soon.

    Raises:
        ConflictError: a budget is spent, or the service has ended.
    """
    instances = service_instances(session, job)
    if not instances:
        message = f"The service {job.name!r} has ended."
        raise ConflictError(message, code="job_not_running")
    if any(map(is_awake, instances)):
        return True
    asleep = [instance for instance in instances if instance.state is JobState.ASLEEP]
    if not asleep:
        return False
    require_no_hold(session, asleep[0])
    scaler = session.get(ServiceScaler, service_id(job))
    if scaler is not None and scaler.cost_hold:
        message = f"The service {job.name!r} stays asleep: {scaler.cost_hold}."
        raise ConflictError(message, code=BUDGET_SPENT)
    user = session.get(User, user_id)
    who = user.name if user else "a user"
    if _wake(session, asleep[0], f"Woken by a request of {who}.", now=now):
        woken = update(ServiceScaler).where(ServiceScaler.service_id == service_id(job))
        session.execute(woken.values(woken_at=now, evaluate_at=now))
    return True


def _wake(session: Session, instance: Job, message: str, *, now: datetime) -> bool:
    # Its wait begins now, see `retry_at` where waits are measured.
    values = {"reason": Reason.NONE, "message": "", "started_at": None, "retry_at": now}
    values["queue_at"] = queue_time(now, instance.priority)
    if not move_job(session, instance.id, JobState.QUEUED, expected={JobState.ASLEEP}, **values):
        return False
    record_event(session, instance, message=message, now=now)
    note_change(session, Topic.PLACEMENT, ANY)
    return True


def _put_to_sleep(session: Session, instance: Job, *, now: datetime) -> None:
    attempt = instance.attempt
    values = {"reason": Reason.SCALED_DOWN, "message": ASLEEP_MESSAGE}
    if move_job(session, instance.id, JobState.ASLEEP, expected=WAITING, retry_at=None, **values):
        if attempt is not None:
            withdraw_data(session, [instance.id])
            bound, ended = {AttemptState.BOUND}, {**values, "finished_at": now}
            move_attempt(session, attempt.id, AttemptState.STOPPED, expected=bound, **ended)
        record_event(session, instance, now=now)
        return
    # It stops for an update, or another reason, already: the next decision sees it again.
    session.refresh(instance)
    attempt = instance.attempt
    if attempt is None or attempt.stop_reason is not None:
        return
    message = "Stopping: its service does not need it now."
    stop_attempts(session, [attempt], Reason.SCALED_DOWN, lambda _: message, now=now)
