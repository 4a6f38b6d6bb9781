"""Observed state: what the reports of an appliance change.

Reports may arrive twice, late or out of order: only a transition in `ATTEMPT_TRANSITIONS` counts.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.db import changed_one
from jobqueue.dispatch.desired_state import allocated_attempts
from jobqueue.dispatch.outcomes import Outcome, next_state
from jobqueue.gangs.members import appliances_of_gang, may_start
from jobqueue.jobs.gangs import ENDED_WITH_FIRST
from jobqueue.jobs.idle_limits import idle_message
from jobqueue.jobs.quarantine import apply_probe, note_outcome
from jobqueue.jobs.restored import settle_unreported
from jobqueue.jobs.retries import end_job
from jobqueue.jobs.transitions import move_attempt, move_job, record_event, shorten
from jobqueue.models import Attempt, JobEvent
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import (
    AttemptObservation,
    Health,
    ObservedState,
    ProbeResult,
    StagingProgress,
)
from protocol.challenges import ChallengeResult
from protocol.clusters import are_requested, node_gpu_uuid
from protocol.job_spec import JobKind
from tenants.fleet.appliances import bump_generation, bump_generations
from tenants.fleet.nodes import node_id_of
from tenants.models import Appliance, Challenge, ChallengeOutcome

_MAX_EXIT_CODE = 2**31 - 1

_MAX_EVENTS = 200

_MAX_BYTES = 2**62

_MAX_REMAINING_SECONDS = 365 * 86400.0

# The message of such an attempt names the member that ended, since the queue stopped it.
_NAMES_MEMBER = frozenset({Reason.MEMBER_ENDED, Reason.GANG_RESTARTED})


def apply_report(
    session: Session,
    appliance_id: str,
    observations: Sequence[AttemptObservation],
    *,
    probe: ProbeResult | None = None,
    challenge: ChallengeResult | None = None,
    now: datetime,
) -> int:
    """Move attempts and their jobs to the observed states; return how many moved.

    Attempts that this appliance does not have, and observations that change nothing, are ignored.
    """
    attempts = {
        attempt.id: attempt
        for attempt in allocated_attempts(session, Attempt.appliance_id == appliance_id)
    }
    moved = 0
    if settle_unreported(session, attempts.values(), observations, now=now):
        bump_generation(session, appliance_id)
    ended = {observation.attempt_id for observation in observations if observation.state.is_final}
    # Those first: the event of another move locks the appliance for reading, see `_move`.
    for reported in sorted(observations, key=lambda seen: seen.attempt_id not in ended):
        attempt = attempts.get(reported.attempt_id)
        if attempt is None:
            continue
        observation = _with_first(attempt, reported)
        outcome = next_state(
            attempt.state,
            observation,
            is_stop_requested=attempt.job.stop_requested_at is not None,
            stop_reason=attempt.stop_reason,
        )
        if outcome is not None and attempt.message and _names_member(attempt, outcome):
            outcome = replace(outcome, message=attempt.message)
        if outcome is not None and outcome.reason is Reason.IDLE_GPU:
            outcome = replace(outcome, message=idle_message(attempt.job))
        if outcome is None:
            _update_progress(session, attempt, observation, now=now)
        elif _move(session, attempt, outcome, observation, now=now):
            moved += 1
    if probe is not None:
        apply_probe(session, appliance_id, probe, now=now)
    if challenge is not None:
        _apply_challenge(session, appliance_id, challenge, now=now)
    return moved


def _apply_challenge(
    session: Session, appliance_id: str, result: ChallengeResult, *, now: datetime
) -> None:
    """Store the result of the open challenge; the agent then gets no order any more.

    Results that come again, or of a challenge that was given up, change nothing.
    """
    statement = update(Challenge).where(
        Challenge.appliance_id == appliance_id,
        Challenge.number == result.number,
        Challenge.outcome == ChallengeOutcome.OPEN,
        Challenge.answered_at.is_(None),
    )
    if changed_one(session, statement.values(result=msgspec.to_builtins(result), answered_at=now)):
        bump_generation(session, appliance_id)


def _names_member(attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether the attempt's message names the member for which it stops, and stays."""
    is_stopping = attempt.stop_reason in _NAMES_MEMBER and not outcome.state.is_final
    return outcome.reason in _NAMES_MEMBER or is_stopping


def _with_first(attempt: Attempt, observation: AttemptObservation) -> AttemptObservation:
    """Return what counts of an attempt: one that served a member which succeeded has so, too."""
    if attempt.stop_reason is not Reason.FIRST_MEMBER_ENDED or not observation.state.is_final:
        return observation
    state, message = ObservedState.SUCCEEDED, ENDED_WITH_FIRST
    return structs.replace(observation, state=state, exit_code=None, message=message)


def _move(
    session: Session,
    attempt: Attempt,
    outcome: Outcome,
    observation: AttemptObservation,
    *,
    now: datetime,
) -> bool:
    values: dict[str, Any] = {"reason": outcome.reason, "message": shorten(outcome.message)}
    values |= _times(attempt, outcome, observation, now=now)
    code = observation.exit_code
    if outcome.state.is_final:
        values["exit_code"] = code if code is not None and abs(code) <= _MAX_EXIT_CODE else None
    own: dict[str, Any] = {"staging": None}
    if attempt.gpu_slice and observation.gpu_slice_uuid:
        own["gpu_slice"] = {**attempt.gpu_slice, "uuid": observation.gpu_slice_uuid}
    own |= _node_values(session, attempt, observation)
    own |= _pull_values(attempt, observation, now=now)
    if outcome.reason is Reason.PREEMPTED_BY_CLUSTER:
        own["is_notice_due"] = bool(attempt.job.notify) and attempt.job.array_id is None
    expected = {attempt.state}
    if not move_attempt(session, attempt.id, outcome.state, expected=expected, **values, **own):
        return False
    if outcome.state.is_final:
        end_job(session, attempt, JobState(outcome.state.value), values, now=now)
        # Before the event of the end is written, which locks the appliance for reading: a heartbeat
        # that waited to change it then would be a deadlock.
        with session.no_autoflush:
            bump_generation(session, attempt.appliance_id)
    else:
        if attempt.job.nodes > 1 and not attempt.is_prepared:
            # Its agent is one that does not wait for the others.
            bump_generations(session, appliances_of_gang(session, attempt.job))
        move_job(session, attempt.job_id, JobState(outcome.state.value), **values)
        record_event(session, attempt.job, message=outcome.message, now=now)
    note_outcome(session, attempt, now=now)
    return True


def _update_progress(
    session: Session, attempt: Attempt, observation: AttemptObservation, *, now: datetime
) -> None:
    """Show the progress of a start, such as the pull of its image, and the health of a service."""
    message = shorten(observation.message)
    running = AttemptState.RUNNING
    if attempt.state is running and (columns := _node_values(session, attempt, observation)):
        # Its node or its GPUs were not reported yet when it started.
        move_attempt(session, attempt.id, running, expected={running}, **columns)
    if attempt.stop_reason is not None:
        return  # its message says why
    if observation.state is ObservedState.RUNNING:
        _update_health(session, attempt, observation, message, now=now)
        return
    if observation.state is not ObservedState.STARTING:
        return
    if observation.is_prepared:
        _note_prepared(session, attempt)
    staging = observation.staging and msgspec.to_builtins(_bounded(observation.staging))
    values: dict[str, Any] = {"message": message} if message not in {"", attempt.message} else {}
    reason = _staging_reason(attempt, is_staging=staging is not None)
    values |= {} if reason is None else {"reason": reason}
    own = {"staging": staging} if staging != attempt.staging else {}
    own |= _pull_values(attempt, observation, now=now)
    if not values and not own:
        return
    starting, job_starting = AttemptState.STARTING, JobState.STARTING
    if not move_attempt(session, attempt.id, starting, expected={starting}, **values, **own):
        return
    if values:
        move_job(session, attempt.job_id, job_starting, expected={job_starting}, **values)
    if reason is Reason.WAITING_FOR_DATA:
        session.refresh(attempt)
        record_event(session, attempt.job, message=message, now=now)


def _pull_values(
    attempt: Attempt, observation: AttemptObservation, *, now: datetime
) -> dict[str, datetime]:
    """Return the columns with the times of the pull that the attempt does not have yet.

    If an agent starts again meanwhile, it is from the first begin to the last end.
    """
    reported = {
        "pull_began_at": observation.pull_began_at_ns,
        "pull_ended_at": observation.pull_ended_at_ns,
    }
    return {
        name: _plausible(time_ns, attempt, now=now)
        for name, time_ns in reported.items()
        if time_ns is not None and getattr(attempt, name) is None
    }


def _node_values(
    session: Session, attempt: Attempt, observation: AttemptObservation
) -> dict[str, Any]:
    """Return the columns of the node and the GPUs that a cluster chose for an attempt."""
    name, indices = observation.node, set(observation.gpu_indices)
    is_placed = attempt.node_id is not None
    is_complete = is_placed and not (indices and are_requested(attempt.gpu_uuids))
    if not (attempt.is_on_cluster and name) or is_complete:
        return {}
    node_id = node_id_of(session, attempt.appliance_id, name)
    if node_id is None or (is_placed and node_id != attempt.node_id):
        return {}
    is_whole = len(indices) == len(attempt.gpu_uuids) == len(observation.gpu_indices)
    gpus = select(Appliance.gpu_count).where(Appliance.id == node_id)
    if not (indices and is_whole and indices <= set(range(session.scalar(gpus) or 0))):
        return {} if is_placed else {"node_id": node_id}
    uuids = [node_gpu_uuid(node_id, index) for index in sorted(indices)]
    return {"node_id": node_id, "gpu_uuids": uuids}


def _note_prepared(session: Session, attempt: Attempt) -> None:
    """Let all members of a gang fetch their orders: with the last one prepared, they may start.

    Each member's report does, as two that come together don't see each other. One that is reported
    again may wait for a member that has ended since, on whatever way.
    """
    if attempt.is_prepared:
        if may_start(session, attempt.job):
            bump_generation(session, attempt.appliance_id)
        return
    starting = AttemptState.STARTING
    if move_attempt(session, attempt.id, starting, expected={starting}, is_prepared=True):
        bump_generations(session, appliances_of_gang(session, attempt.job))


def _staging_reason(attempt: Attempt, *, is_staging: bool) -> Reason | None:
    """Return the reason that an attempt gets as it begins or ends to wait for data, if any."""
    waits = attempt.job.reason is Reason.WAITING_FOR_DATA
    if waits is is_staging:
        return None
    return Reason.WAITING_FOR_DATA if is_staging else Reason.NONE


def _bounded(progress: StagingProgress) -> StagingProgress:
    """Return the progress with figures that make sense, whatever the agent reports."""
    total = min(max(progress.total_bytes, 0), _MAX_BYTES)
    remaining = progress.remaining_seconds
    is_known = remaining is not None and 0 <= remaining <= _MAX_REMAINING_SECONDS
    return StagingProgress(
        staged_bytes=min(max(progress.staged_bytes, 0), total),
        total_bytes=total,
        remaining_seconds=remaining if is_known else None,
    )


def _update_health(
    session: Session,
    attempt: Attempt,
    observation: AttemptObservation,
    message: str,
    *,
    now: datetime,
) -> None:
    # An agent that starts again counts from 0.
    restarts = max(attempt.restarts, min(observation.restarts, _MAX_EXIT_CODE))
    observed, stored = (observation.health, restarts), (attempt.health, attempt.restarts)
    is_service = attempt.job.kind is JobKind.SERVICE
    if not is_service or (observed == stored and message == attempt.message):
        return
    values: dict[str, Any] = {"message": message}
    health = {"health": observation.health, "restarts": restarts}
    running, job_running = AttemptState.RUNNING, JobState.RUNNING
    if not move_attempt(session, attempt.id, running, expected={running}, **values, **health):
        return
    move_job(session, attempt.job_id, job_running, expected={job_running}, **values)
    is_news = observed != stored and observation.health is not Health.STARTING
    if is_news and _has_room_for_event(session, attempt.job_id):
        session.refresh(attempt)
        text = message or (f"The service is {observed[0].value}." if observed[0] else "")
        record_event(session, attempt.job, message=text, now=now)


def _has_room_for_event(session: Session, job_id: str) -> bool:
    """Return whether the history is short enough for changes of the health, which may be many."""
    count = select(func.count()).select_from(JobEvent).where(JobEvent.job_id == job_id)
    return (session.scalar(count) or 0) < _MAX_EVENTS


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
    """Return the appliance's time, clamped between assignment and now: its clock may be wrong."""
    if time_ns is None:
        return now
    earliest_at = attempt.assigned_at or attempt.bound_at
    return from_ns(min(max(time_ns, to_ns(earliest_at)), to_ns(now)))
