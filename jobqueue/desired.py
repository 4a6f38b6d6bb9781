"""Desired and observed state: what an appliance should run, and what it says of it."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.errors import NotFoundError
from jobqueue.executors.base import AttemptObservation, AttemptSpec, ObservedState
from jobqueue.executors.wire import DesiredState
from jobqueue.guarded import move_attempt, move_job
from jobqueue.history import record_event, shorten
from jobqueue.models import Attempt, Job
from jobqueue.observations import Outcome, next_state
from jobqueue.states import HOLDING, AttemptState, JobKind, JobState
from tenants.fleet.appliances import bump_generation
from tenants.models import Appliance

_MAX_EXIT_CODE = 2**31 - 1


def desired_state(session: Session, appliance_id: str) -> DesiredState:
    """Return what should run on an appliance, and what should end there.

    Raises:
        NotFoundError: the appliance was deleted.
    """
    # The generation is read first: a change in between then shows as a newer one at the next ask.
    generation = session.scalar(
        select(Appliance.desired_generation).where(Appliance.id == appliance_id)
    )
    if generation is None:
        raise NotFoundError.of("appliance", appliance_id)
    attempts = _held_attempts(session, appliance_id)
    return DesiredState(
        generation=generation,
        attempts=[_spec(a) for a in attempts if a.job.stop_requested_at is None],
        stopping=[a.id for a in attempts if a.job.stop_requested_at is not None],
    )


def apply_report(
    session: Session,
    appliance_id: str,
    observations: Sequence[AttemptObservation],
    *,
    now: datetime,
) -> int:
    """Move attempts and their jobs to what their appliance observed; return how many moved.

    Observations of attempts that this appliance does not have, and those that say nothing new, are
    passed over.
    """
    attempts = {attempt.id: attempt for attempt in _held_attempts(session, appliance_id)}
    moved = 0
    has_ended = False
    for observation in observations:
        attempt = attempts.get(observation.attempt_id)
        if attempt is None:
            continue
        is_stop_requested = attempt.job.stop_requested_at is not None
        outcome = next_state(attempt.state, observation, is_stop_requested=is_stop_requested)
        if outcome is None:
            _note_progress(session, attempt, observation)
        elif _move(session, attempt, outcome, observation, now=now):
            moved += 1
            has_ended |= outcome.state.is_final
    if has_ended:
        bump_generation(session, appliance_id)
    return moved


def _held_attempts(session: Session, appliance_id: str) -> list[Attempt]:
    statement = (
        select(Attempt)
        .where(Attempt.appliance_id == appliance_id, Attempt.state.in_(HOLDING))
        .order_by(Attempt.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement).unique())


def _spec(attempt: Attempt) -> AttemptSpec:
    job = attempt.job
    return AttemptSpec(
        attempt_id=attempt.id,
        job_id=job.id,
        name=job.name,
        image=job.image,
        command=job.command,
        env=job.env,
        gpu_uuids=attempt.gpu_uuids,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        is_service=job.kind is JobKind.SERVICE,
    )


def _move(
    session: Session,
    attempt: Attempt,
    outcome: Outcome,
    observation: AttemptObservation,
    *,
    now: datetime,
) -> bool:
    times = _times(attempt, outcome, observation, now=now)
    end = {"reason": outcome.reason, "message": shorten(outcome.message), **times}
    if outcome.state.is_final:
        end["exit_code"] = _exit_code(observation)
    if not move_attempt(session, attempt.id, expected={attempt.state}, state=outcome.state, **end):
        return False
    job_state = JobState(outcome.state.value)
    _move_job(session, attempt.job, job_state, end)
    record_event(
        session, attempt.job_id, tenant_id=attempt.tenant_id, state=job_state,
        reason=outcome.reason, message=outcome.message, now=now,
    )  # fmt: skip
    session.refresh(attempt)
    return True


def _move_job(session: Session, job: Job, state: JobState, values: dict[str, object]) -> None:
    expected = {before for before in JobState if not before.is_final}
    move_job(session, job.id, expected=expected, state=state, **values)


def _note_progress(session: Session, attempt: Attempt, observation: AttemptObservation) -> None:
    """Show what a start is busy with, such as pulling its image."""
    message = shorten(observation.message)
    if observation.state is not ObservedState.STARTING or message in {"", attempt.message}:
        return
    if move_attempt(session, attempt.id, expected={AttemptState.STARTING}, message=message):
        move_job(session, attempt.job_id, expected={JobState.STARTING}, message=message)


def _times(
    attempt: Attempt, outcome: Outcome, observation: AttemptObservation, *, now: datetime
) -> dict[str, datetime]:
    started_at = attempt.started_at or _plausible(observation.started_at_ns, attempt, now=now)
    if not outcome.state.is_final:
        return {"started_at": started_at}
    finished_at = _plausible(observation.finished_at_ns, attempt, now=now)
    if observation.started_at_ns is None and attempt.started_at is None:
        return {"finished_at": finished_at}
    return {"started_at": started_at, "finished_at": max(started_at, finished_at)}


def _plausible(time_ns: int | None, attempt: Attempt, *, now: datetime) -> datetime:
    """Return the appliance's instant, kept between assignment and now: its clock may be wrong."""
    if time_ns is None:
        return now
    earliest_at = attempt.assigned_at or attempt.bound_at
    return from_ns(min(max(time_ns, to_ns(earliest_at)), to_ns(now)))


def _exit_code(observation: AttemptObservation) -> int | None:
    code = observation.exit_code
    return code if code is not None and abs(code) <= _MAX_EXIT_CODE else None
