"""State changes of jobs, attempts and updates: the only code that writes their `state`.

Portal, scheduler and agent API change the same rows concurrently, so every change is a guarded
update: the row changes only while it is in an expected state, and the caller learns whether it did.
A move that the tables of `jobqueue.states` don't allow raises `TransitionError`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, cast

from sqlalchemy import Column, ColumnElement, MetaData, Table, delete, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.util import identity_key
from sqlalchemy.schema import CreateTable

from core.changes import ANY, Topic, note_change
from core.db import changed_one, chunked
from jobqueue.models import Attempt, Job, JobEvent, ServiceUpdate
from jobqueue.states import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    UPDATE_TRANSITIONS,
    AttemptState,
    JobState,
    Reason,
    UpdateState,
)
from tenants.fleet.appliances import bump_generations

MAX_MESSAGE_LENGTH = 2000
_FINAL = frozenset(state for state in JobState if state.is_final)

S = TypeVar("S", bound=StrEnum)


class TransitionError(Exception):
    """The code tried to move a job or an attempt in a way that its state machine doesn't have."""


def move_job(
    session: Session,
    job_id: str,
    to: JobState,
    *,
    expected: Collection[JobState] | None = None,
    **values: object,
) -> bool:
    """Move a job to a state; return whether it was in one of the expected states.

    By default from every state that has this transition. A move to the present state is allowed and
    updates the other columns, such as `reason` and `message`.

    Raises:
        TransitionError: `JOB_TRANSITIONS` doesn't have the move.
    """
    sources = _checked_sources(JOB_TRANSITIONS, to, expected)
    return _update(session, Job, job_id, sources, {"state": to, **values})


def move_attempt(
    session: Session,
    attempt_id: str,
    to: AttemptState,
    *,
    expected: Collection[AttemptState] | None = None,
    **values: object,
) -> bool:
    """Move an attempt to a state, as `move_job` does with `ATTEMPT_TRANSITIONS`."""
    sources = _checked_sources(ATTEMPT_TRANSITIONS, to, expected)
    return _update(session, Attempt, attempt_id, sources, {"state": to, **values})


def change_job(session: Session, job: Job, **values: object) -> bool:
    """Write columns of a job that is still in its state; return whether it was."""
    return move_job(session, job.id, job.state, expected={job.state}, **values)


def change_attempt(session: Session, attempt: Attempt, **values: object) -> bool:
    """Write columns of an attempt that is still in its state; return whether it was."""
    return move_attempt(session, attempt.id, attempt.state, expected={attempt.state}, **values)


def stop_attempts(
    session: Session,
    attempts: Iterable[Attempt],
    reason: Reason,
    message: Callable[[Attempt], str],
    *,
    now: datetime,
) -> int:
    """Let agents stop attempts for a reason of the queue; return how many had not ended.

    Args:
        session: the session.
        attempts: with resources.
        reason: why they stop.
        message: returns what the history of an attempt's job says.
        now: the time.
    """
    stopping = [
        attempt for attempt in attempts if change_attempt(session, attempt, stop_reason=reason)
    ]
    for attempt in stopping:
        record_event(session, attempt.job, message=message(attempt), now=now)
    bump_generations(session, {attempt.appliance_id for attempt in stopping})
    return len(stopping)


def move_all(
    session: Session,
    model: type[Job | Attempt],
    condition: ColumnElement[bool],
    to: JobState | AttemptState,
    **values: object,
) -> None:
    """Move the rows that meet a condition to a state, from every state that has this transition."""
    transitions: Mapping[Any, Collection[Any]] = (
        JOB_TRANSITIONS if model is Job else ATTEMPT_TRANSITIONS
    )
    sources = _checked_sources(transitions, to, None)
    session.execute(
        update(model).where(condition, model.state.in_(sources)).values(state=to, **values),
        execution_options={"synchronize_session": False},
    )


def move_update(
    session: Session, service_update: ServiceUpdate, to: UpdateState, **values: object
) -> bool:
    """Move a service's update to a state, unless another update has replaced it."""
    sources = _checked_sources(UPDATE_TRANSITIONS, to, None)
    guarded = update(ServiceUpdate).where(
        ServiceUpdate.service_id == service_update.service_id,
        ServiceUpdate.revision == service_update.revision,
        ServiceUpdate.state.in_(sources),
    )
    return changed_one(session, guarded.values(state=to, **values))


def lock_jobs(
    session: Session, job_ids: Collection[str], *, expected: Collection[JobState]
) -> set[str]:
    """Lock jobs until the transaction ends; return those that are in one of the expected states."""
    locked_ids: set[str] = set()
    for chunk in chunked(job_ids):
        locked = select(Job.id).where(Job.id.in_(chunk), Job.state.in_(expected))
        locked_ids.update(session.scalars(locked.with_for_update()))
    return locked_ids


def withdraw_data(session: Session, job_ids: Collection[str]) -> None:
    """Let the appliances that jobs are bound to fetch no data for them. Call it before they end."""
    for chunk in chunked(sorted(job_ids)):
        fetching = (
            select(Attempt.appliance_id)
            .join(Job, Job.id == Attempt.job_id)
            .where(
                Attempt.job_id.in_(chunk),
                Attempt.state == AttemptState.BOUND,
                Job.options["datasets"].as_string().is_not(None),
            )
        )
        bump_generations(session, session.scalars(fetching.distinct()).all())


def move_locked(
    session: Session, model: type[Job | Attempt], rows: Sequence[Mapping[str, object]]
) -> None:
    """Write rows by their ids, of jobs that the caller has locked, or of their attempts.

    They go through a temporary table: PyMySQL inserts many rows at once, but updates them one by
    one, which takes five times as long.
    """
    if not rows:
        return
    table, moved = cast("Table", model.__table__), _MOVED[model]
    session.execute(CreateTable(moved, if_not_exists=True))
    session.execute(insert(moved), rows)
    # The ids stand in the condition too, so that MySQL never scans, and locks, further rows.
    if model is Job:
        note_change(session, Topic.JOB, *(str(row["id"]) for row in rows))
    joined = update(table).where(
        table.c.id == moved.c.id, table.c.id.in_([row["id"] for row in rows])
    )
    session.execute(joined.values({name: moved.c[name] for name in moved.c.keys()[1:]}))
    session.execute(delete(moved))


def _moved_rows(model: type[Job | Attempt], *names: str) -> Table:
    columns = cast("Table", model.__table__).c
    return Table(
        f"moved_{model.__tablename__}",
        MetaData(),
        Column("id", columns["id"].type, primary_key=True),
        *(Column(name, columns[name].type) for name in names),
        prefixes=["TEMPORARY"],
    )


_MOVED = {
    Job: _moved_rows(Job, "state", "reason", "message"),
    Attempt: _moved_rows(
        Attempt,
        *("appliance_id", "state", "gpu_uuids", "gpu_slice", "placement", "assigned_at"),
        *("is_on_cluster", "contract_id", "provider_id"),
    ),
}


def record_event(session: Session, job: Job, *, now: datetime, message: str | None = None) -> None:
    """Add the job's state and reason to its history; the message is the job's by default."""
    session.add(
        JobEvent(
            job_id=job.id,
            tenant_id=job.tenant_id,
            state=job.state,
            reason=job.reason,
            message=shorten(job.message if message is None else message),
            at=now,
        )
    )
    _note_changes(session, [job.id], {job.state})


def record_events(
    session: Session, events: Sequence[Mapping[str, object]], *, now: datetime
) -> None:
    """Add many events, given as their columns without the time."""
    if not events:
        return
    session.execute(insert(JobEvent), [{**event, "at": now} for event in events])
    job_ids = [str(event["job_id"]) for event in events]
    _note_changes(session, job_ids, {event["state"] for event in events})


def _note_changes(session: Session, job_ids: Collection[str], states: Collection[object]) -> None:
    note_change(session, Topic.JOB, *job_ids)
    if any(state is JobState.SUBMITTED or state in _FINAL for state in states):
        note_change(session, Topic.PLACEMENT, ANY)


def note_attempt(session: Session, attempt_id: str) -> None:
    """Tell that the job of an attempt has changed, when the transaction is committed."""
    attempt = session.identity_map.get(identity_key(Attempt, attempt_id))
    if attempt is not None:
        note_change(session, Topic.JOB, attempt.job_id)
    else:
        job_ids = session.scalars(select(Attempt.job_id).where(Attempt.id == attempt_id))
        note_change(session, Topic.JOB, *job_ids)


def shorten(message: str) -> str:
    """Return the message, truncated to `MAX_MESSAGE_LENGTH` characters."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return message[: MAX_MESSAGE_LENGTH - 1] + "…"


def _checked_sources(
    transitions: Mapping[S, Collection[S]], to: S, expected: Collection[S] | None
) -> Collection[S]:
    if expected is None:
        return {source for source, targets in transitions.items() if to in targets}
    for source in expected:
        if to not in transitions[source] and (to is not source or not transitions[source]):
            raise TransitionError(f"{type(to).__name__} has no transition from {source} to {to}.")
    return expected


def _update(
    session: Session,
    model: type[Job | Attempt],
    ident: str,
    expected: Collection[StrEnum],
    values: Mapping[str, object],
) -> bool:
    statement = update(model).where(model.id == ident, model.state.in_(expected)).values(**values)
    if not changed_one(session, statement, synchronize_session=False):
        return False
    loaded = session.identity_map.get(identity_key(model, ident))
    if model is Job:
        note_change(session, Topic.JOB, ident)
    else:
        note_attempt(session, ident)
    if loaded is not None:
        for name, value in values.items():
            set_committed_value(loaded, name, value)
        if "appliance_id" in values and model is Attempt:
            session.expire(loaded, ["appliance"])
    return True
