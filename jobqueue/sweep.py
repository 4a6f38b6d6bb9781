"""The sweep: what an appliance's silence means for the attempts that it held."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, not_, or_, select
from sqlalchemy.orm import Session

from jobqueue.guarded import move_attempt, move_job
from jobqueue.history import record_event
from jobqueue.models import Attempt
from jobqueue.states import HOLDING, AttemptState, JobState, Reason
from tenants.fleet.appliances import bump_generation
from tenants.fleet.life import in_service, life_of
from tenants.models import Appliance, ApplianceState

_RUNNING_JOBS = (JobState.STARTING, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class AttemptSweep:
    """How many attempts were given up, put in doubt, and heard of again."""

    lost: int = 0
    doubtful: int = 0
    recovered: int = 0


def sweep_attempts(session: Session, *, now: datetime) -> AttemptSweep:
    """Give up attempts on lost, retired or revoked appliances and mark those on unreachable ones.

    A mark is taken away once the appliance is heard of again.
    """
    is_lost = or_(Appliance.state == ApplianceState.LOST, not_(in_service()))
    lost = _attempts_on(session, is_lost)
    for attempt in lost:
        _lose(session, attempt, now=now)
    unreachable = Appliance.state == ApplianceState.UNREACHABLE
    doubtful = [a for a in _attempts_on(session, unreachable) if not _is_doubtful(a)]
    for attempt in doubtful:
        message = f"{attempt.appliance.name} is unreachable; what it does now is unknown."
        _mark(session, attempt, Reason.APPLIANCE_UNREACHABLE, message, now=now)
    heard = Appliance.state.in_((ApplianceState.ONLINE, ApplianceState.STALE))
    recovered = [a for a in _attempts_on(session, heard) if _is_doubtful(a)]
    for attempt in recovered:
        _mark(session, attempt, Reason.NONE, f"{attempt.appliance.name} is back.", now=now)
    return AttemptSweep(len(lost), len(doubtful), len(recovered))


def _attempts_on(session: Session, condition: ColumnElement[bool]) -> list[Attempt]:
    statement = (
        select(Attempt)
        .join(Appliance, Appliance.id == Attempt.appliance_id)
        .where(Attempt.state.in_(HOLDING), condition)
        .order_by(Attempt.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement).unique())


def _is_doubtful(attempt: Attempt) -> bool:
    return attempt.reason is Reason.APPLIANCE_UNREACHABLE


def _lose(session: Session, attempt: Attempt, *, now: datetime) -> None:
    message = f"{attempt.appliance.name} is lost; whether it still ran there is unknown."
    life = life_of(attempt.appliance)
    if not life.is_in_service:
        message = f"{attempt.appliance.name} was {life.value} while it held this job."
    values = {"reason": Reason.APPLIANCE_LOST, "message": message, "finished_at": now}
    expected = {attempt.state}
    if move_attempt(session, attempt.id, expected=expected, state=AttemptState.LOST, **values):
        move_job(session, attempt.job_id, expected=_RUNNING_JOBS, state=JobState.LOST, **values)
        # Should the appliance come back, its agent finds the attempt gone and ends it.
        bump_generation(session, attempt.appliance_id)
        _record(session, attempt, JobState.LOST, Reason.APPLIANCE_LOST, message, now=now)


def _mark(
    session: Session, attempt: Attempt, reason: Reason, message: str, *, now: datetime
) -> None:
    shown = message if reason else ""
    expected = {attempt.state}
    if move_attempt(session, attempt.id, expected=expected, reason=reason, message=shown):
        move_job(session, attempt.job_id, expected=_RUNNING_JOBS, reason=reason, message=shown)
        _record(session, attempt, JobState(attempt.state.value), reason, message, now=now)


def _record(
    session: Session,
    attempt: Attempt,
    state: JobState,
    reason: Reason,
    message: str,
    *,
    now: datetime,
) -> None:
    record_event(
        session, attempt.job_id, tenant_id=attempt.tenant_id, state=state, reason=reason,
        message=message, now=now,
    )  # fmt: skip
