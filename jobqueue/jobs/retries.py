"""End a job with its attempt, or queue it again.

It is queued again after a failure of a class that it lists in `retry_on`, up to `max_retries`
times, each time after a longer pause, and whenever it was preempted or moved. A preempted job goes
to the end of the queue, behind the job that it made room for; one that moves because its appliance
is drained, or no longer rented, returns to its place, as does one that its cluster preempted, after
a pause. An attempt
that failed to start through no fault of its job is followed by up to `FREE_STARTS` others that
don't count as retries. A service is queued again when an update stops it, when its appliance is
lost, when its container disappears, and whenever it fails to start as above. A gang is queued again
or ends as a whole, see `jobqueue.jobs.gangs`. Placement prefers appliances where no attempt of the
job has failed.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.fairshare.settings import OrderPolicy
from jobqueue.jobs.gangs import (
    ENDED_WITH_FIRST,
    attempts_to_count,
    is_led,
    note_end,
    settle_members,
    stands_together,
    stop_led,
)
from jobqueue.jobs.preemptions import end_text
from jobqueue.jobs.quarantine import is_start_fault
from jobqueue.jobs.settings import settings_of
from jobqueue.jobs.transitions import move_job, record_event, shorten
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import queue_time
from jobqueue.states import AttemptState, JobState, Reason
from protocol.job_spec import FailureClass, JobKind

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=10)
# Starts after those that failed through no fault of the job; each time elsewhere, if possible.
FREE_STARTS = 3
# The pause of a preempted job where the queue is ordered by points; and of one that a cluster
# preempted, whose next report shows what the other job has taken.
PREEMPTED_PAUSE = timedelta(seconds=30)


DESCRIPTIONS: Mapping[FailureClass, str] = {
    FailureClass.EXIT: "The command exited with an error or was killed.",
    FailureClass.OUT_OF_MEMORY: "The container used more memory than it requested.",
    FailureClass.START: "The image could not be pulled, the data not fetched, or the container not "
    "started.",
    FailureClass.APPLIANCE: "The appliance was lost, or the node of a cluster failed.",
}
_CLASSES: Mapping[Reason, FailureClass] = {
    Reason.EXIT_CODE: FailureClass.EXIT,
    Reason.SIGNAL: FailureClass.EXIT,
    Reason.OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
    Reason.START_FAILED: FailureClass.START,
    Reason.DATA_UNAVAILABLE: FailureClass.START,
    Reason.GPU_SLICE_FAILED: FailureClass.START,
    Reason.NETWORK_FAILED: FailureClass.START,
    Reason.GPU_FAULT_OF_NEIGHBOR: FailureClass.EXIT,
    Reason.INVALID_JOB: FailureClass.START,
    Reason.IMAGE_NOT_FOUND: FailureClass.START,
    Reason.IMAGE_PULL_FAILED: FailureClass.START,
    Reason.EXECUTOR_ERROR: FailureClass.START,
    Reason.APPLIANCE_LOST: FailureClass.APPLIANCE,
    Reason.NODE_FAILED: FailureClass.APPLIANCE,
}
# Texts for attempts that the queue itself stopped, or that of a cluster.
_QUEUED_AGAIN: Mapping[Reason, str] = {
    Reason.PREEMPTED: "stopped for another job",
    Reason.APPLIANCE_DRAINED: "moves from a drained appliance",
    Reason.CONTRACT_ENDED: "stopped with the contract of its rented appliance",
    Reason.UPDATED: "stopped for an update",
    Reason.GANG_RESTARTED: "stopped with the other members",
    Reason.PREEMPTED_BY_CLUSTER: "made room for another job of the cluster",
    Reason.SCALED_DOWN: "stopped as its service does not need it",
}
ASLEEP_MESSAGE = "Asleep: its service does not need it now."
_NO_PAUSE = timedelta()
_SERVICE_GOES_ON = frozenset({Reason.APPLIANCE_LOST, Reason.EXECUTOR_ERROR, Reason.RESTORED})


def end_job(
    session: Session, attempt: Attempt, to: JobState, values: Mapping[str, Any], *, now: datetime
) -> None:
    """End an attempt's job with it, or queue it again; add that to its history.

    Args:
        session: the session.
        attempt: the attempt, which has ended.
        to: the state in which the job ends.
        values: its other columns then.
        now: the time.
    """
    job = attempt.job
    _lock(session, attempt)
    if attempt.stop_reason is Reason.FIRST_MEMBER_ENDED:
        # Also if its appliance was lost while it stopped.
        to, values = JobState.SUCCEEDED, {**values, "reason": Reason.NONE}
        values |= {"message": ENDED_WITH_FIRST}
    reason, state = values["reason"], JobState(job.state)
    if to is JobState.SUCCEEDED and (_gang_moves(attempt) or _service_goes_on(attempt)):
        reason = attempt.stop_reason
    retry = _next_try(session, job, attempt, reason, now=now)
    if stands_together(job):
        retry = _with_members(session, attempt, reason, retry, now=now)
    elif job.nodes > 1 and to is not JobState.SUCCEEDED and attempt.stop_reason is None:
        note_end(session, attempt, now=now)
    if not retry:
        move_job(session, job.id, to, **values)
        record_event(session, job, message=values["message"], now=now)
        return
    message, pause = retry
    preempted = end_text(session, attempt, now=now) if reason is Reason.PREEMPTED else ""
    waits: dict[str, Any] = {
        "reason": reason if reason in _QUEUED_AGAIN else Reason.WAITING_FOR_RETRY,
        "message": shorten(preempted or f"{message} {values['message']}".rstrip()),
        "started_at": None,
        "retry_at": now + pause,
    }
    if reason is Reason.PREEMPTED:
        waits["queue_at"] = queue_time(now, job.priority)
        if settings_of(session, job.tenant_id).ordering.policy is not OrderPolicy.FIFO:
            # By points it may come first again: the job that it made room for starts before it.
            waits["retry_at"] = now + PREEMPTED_PAUSE
    following = JobState.QUEUED
    if reason is Reason.SCALED_DOWN and job.autoscaling is not None:
        following, waits["message"], waits["retry_at"] = JobState.ASLEEP, ASLEEP_MESSAGE, None
    if move_job(session, job.id, following, expected={state}, **waits):
        record_event(session, job, now=now)


def _lock(session: Session, attempt: Attempt) -> None:
    """Read an attempt and its job anew, and lock them, with the members of a gang as a whole.

    A user may request a stop at the same moment, and other members may end: from here on that
    waits.
    """
    job = attempt.job
    if stands_together(job):
        members = select(Job.id).where(Job.array_id == job.array_id).order_by(Job.id)
        session.execute(members.with_for_update())
    session.refresh(attempt, with_for_update=True)


def _service_goes_on(attempt: Attempt) -> bool:
    """Return whether the queue stopped an instance of a service, which ended well then."""
    return attempt.job.kind is JobKind.SERVICE and attempt.stop_reason in _QUEUED_AGAIN


def _gang_moves(attempt: Attempt) -> bool:
    """Return whether the queue stopped a member of a gang that is to start again as a whole.

    A member may store a checkpoint then and exit with 0: it has not succeeded while others stop,
    which would wait for it forever.
    """
    is_moving = attempt.stop_reason in {Reason.PREEMPTED, Reason.APPLIANCE_DRAINED}
    return is_moving and stands_together(attempt.job)


def _with_members(
    session: Session,
    attempt: Attempt,
    reason: Reason,
    retry: tuple[str, timedelta] | None,
    *,
    now: datetime,
) -> tuple[str, timedelta] | None:
    """Return how a member of a gang goes on, which starts anew as a whole or ends as a whole."""
    if attempt.stop_reason is Reason.GANG_RESTARTED and attempt.job.stop_requested_at is None:
        return f"Attempt {attempt.number} stopped with the other members; queued again.", _NO_PAUSE
    has_succeeded = attempt.state is AttemptState.SUCCEEDED
    if attempt.stop_reason in {Reason.MEMBER_ENDED, Reason.FIRST_MEMBER_ENDED}:
        return None
    if has_succeeded and (retry is None or reason not in _QUEUED_AGAIN):
        if is_led(attempt.job) and attempt.job.array_index == 0:
            stop_led(session, attempt.job, now=now)
        return None
    restarts = settle_members(session, attempt, may_restart=retry is not None, now=now)
    return retry if restarts else None


def tries(attempts: Collection[Attempt]) -> int:
    """Return how many attempts of a job, or of all members of its gang, counted.

    Those that were preempted, updated or moved don't, nor the first `FREE_STARTS` that failed to
    start through no fault of the job, nor trials on quarantined appliances.
    """
    counted = sum(
        attempt.reason not in _QUEUED_AGAIN and not is_start_fault(attempt) for attempt in attempts
    )
    return counted + max(0, _failed_starts(attempts) - FREE_STARTS)


def _failed_starts(attempts: Collection[Attempt]) -> int:
    return sum(is_start_fault(attempt) and not _is_trial(attempt) for attempt in attempts)


def _is_trial(attempt: Attempt) -> bool:
    return bool(attempt.placement.get("is_trial"))


def _next_try(
    session: Session, job: Job, attempt: Attempt, reason: Reason, *, now: datetime
) -> tuple[str, timedelta] | None:
    if job.stop_requested_at is not None:
        return None
    if reason in _QUEUED_AGAIN:
        is_by_cluster = reason is Reason.PREEMPTED_BY_CLUSTER
        pause = max(PREEMPTED_PAUSE, _pause_of(job, now)) if is_by_cluster else _NO_PAUSE
        return f"Attempt {attempt.number} {_QUEUED_AGAIN[reason]}; queued again.", pause
    if job.kind is JobKind.SERVICE and reason in _SERVICE_GOES_ON:
        return f"Attempt {attempt.number} ended; the service starts again.", _pause_of(job, now)
    if is_start_fault(attempt) and (
        job.kind is JobKind.SERVICE
        or _is_trial(attempt)
        or _failed_starts(attempts_to_count(session, job)) <= FREE_STARTS
    ):
        where = f"could not start on {attempt.place_name}"
        return f"Attempt {attempt.number} {where}; queued again.", _pause_of(job, now)
    failure = _CLASSES.get(reason)
    is_retried = failure is not None and failure.value in job.retry_on
    number = tries(attempts_to_count(session, job)) if is_retried else None
    if number is None or number > job.max_retries:
        return None
    message = f"Attempt {attempt.number} failed; retry {number} of {job.max_retries}."
    return message, _pause(number)


def _pause_of(job: Job, now: datetime) -> timedelta:
    """Return the pause after the attempts of the last hour."""
    return _pause(sum(attempt.bound_at > now - LONGEST_PAUSE * 6 for attempt in job.attempts))


def _pause(number: int) -> timedelta:
    doublings = min(max(number - 1, 0), 10)
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)
