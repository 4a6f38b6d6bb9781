"""Guarded updates: a row changes only while it is still in the state that was looked at.

Portal, scheduler and access change the same rows at once; whoever comes second sees `False` and
leaves the row as it is.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Update, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.util import identity_key

from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState


def move_job(
    session: Session, job_id: str, *, expected: Collection[JobState], **values: object
) -> bool:
    """Update a job that is in one of the expected states; return whether it was."""
    statement = update(Job).where(Job.id == job_id, Job.state.in_(expected)).values(**values)
    return _changed_one(session, statement, Job, job_id, values)


def move_attempt(
    session: Session, attempt_id: str, *, expected: Collection[AttemptState], **values: object
) -> bool:
    """Update an attempt that is in one of the expected states; return whether it was."""
    statement = (
        update(Attempt)
        .where(Attempt.id == attempt_id, Attempt.state.in_(expected))
        .values(**values)
    )
    return _changed_one(session, statement, Attempt, attempt_id, values)


def _changed_one(
    session: Session,
    statement: Update,
    model: type[Job | Attempt],
    ident: str,
    values: Mapping[str, object],
) -> bool:
    result = session.execute(statement, execution_options={"synchronize_session": False})
    if not result.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        return False
    loaded = session.identity_map.get(identity_key(model, ident))
    if loaded is not None:
        for name, value in values.items():
            set_committed_value(loaded, name, value)
        if "appliance_id" in values:
            session.expire(loaded, ["appliance"])
    return True
