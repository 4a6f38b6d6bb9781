"""Members of a gang that end: the others stop, start anew with it, or go on.

A gang that starts anew does so as a whole: the members that still run are stopped and queued again,
and placement waits until all of them are.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select
from sqlalchemy.orm import Session

from jobqueue.jobs.shown import with_attempts
from jobqueue.jobs.transitions import (
    change_attempt,
    move_all,
    move_job,
    record_event,
    record_events,
    shorten,
    withdraw_data,
)
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES, WAITING, AttemptState, JobState, Reason
from protocol.gangs import LED_BY_FIRST
from protocol.job_spec import OnMemberLoss
from tenants.fleet.appliances import bump_generations

_ENDED_BEFORE_START = "Another member of the gang ended before this one started."
ENDED_WITH_FIRST = "Ended with the first member, which succeeded."


def stands_together(job: Job) -> bool:
    """Return whether a job is a member of a gang that stops or starts as a whole."""
    return job.nodes > 1 and job.on_member_loss != OnMemberLoss.CONTINUE


def stops_together(session: Session, job: Job) -> bool:
    """Return whether a stop of a job is one of its gang, as it is before the gang has started."""
    has_started = exists().where(Attempt.job_id == Job.id, Job.array_id == job.array_id)
    return stands_together(job) or (job.nodes > 1 and not session.scalar(select(has_started)))


def is_led(job: Job) -> bool:
    """Return whether a job is a member of a gang whose other members serve the first one."""
    return job.nodes > 1 and job.framework in LED_BY_FIRST


def gang_members(session: Session, job: Job) -> Sequence[Job]:
    """Return the members of a job's gang by their rank; none if it is in no gang."""
    if job.nodes == 1:
        return ()
    members = select(Job).where(Job.tenant_id == job.tenant_id, Job.array_id == job.array_id)
    members = members.options(*with_attempts()).order_by(Job.array_index)
    return session.scalars(members).unique().all()


def is_first(job: Job) -> bool:
    """Return whether a job is the first member of a gang."""
    return job.nodes > 1 and job.array_id == job.id


def with_gang(job_id: str, *, rank: int | None = None) -> Select[str]:
    """Return the ids of a job and, of the first member of a gang, of the other members.

    With a rank, only of the member that has it. A job outside of gangs has rank 0.
    """
    is_member = and_(Job.array_id == job_id, Job.nodes > 1)
    if rank:
        return select(Job.id).where(is_member, Job.array_index == rank)
    own = Job.id == job_id
    return select(Job.id).where(own if rank == 0 else or_(own, is_member))


def attempts_to_count(session: Session, job: Job) -> Collection[Attempt]:
    """Return the attempts of a job; of a gang that stands together, those of all that failed.

    Members that were lost while they stopped with the others don't count: one lost appliance, or
    one failure that spreads, is one failure of the gang.
    """
    if not stands_together(job):
        return job.attempts
    of_gang = Job.id == Attempt.job_id, Job.array_id == job.array_id
    failed = Attempt.state.in_((AttemptState.FAILED, AttemptState.LOST))
    is_first = Attempt.stop_reason.is_distinct_from(Reason.GANG_RESTARTED)
    return session.scalars(select(Attempt).where(*of_gang, failed, is_first)).unique().all()


def settle_members(session: Session, attempt: Attempt, *, may_restart: bool, now: datetime) -> bool:
    """Let the other members of a gang follow one whose attempt has ended otherwise than well.

    Args:
        session: the session.
        attempt: the attempt.
        may_restart: whether its job would be queued again if it were alone.
        now: the time.

    Returns:
        Whether its job is queued again.
    """
    job = attempt.job
    others = session.scalars(
        select(Job)
        .where(Job.array_id == job.array_id, Job.id != job.id)
        .execution_options(populate_existing=True)
    ).unique()
    able = [other for other in others if not other.state.is_final and not other.stop_requested_at]
    # One that has ended may have been deleted since.
    restarts = may_restart and len(able) == job.nodes - 1
    reason = Reason.GANG_RESTARTED if restarts else Reason.MEMBER_ENDED
    is_other = Job.array_id == job.array_id, Job.id != job.id
    _stop_running(session, is_other, reason, end_of_member(attempt), now=now)
    if not restarts:
        _stop_waiting(session, is_other, now=now)
    return restarts


def note_end(session: Session, attempt: Attempt, *, now: datetime) -> None:
    """Add the end of a member, which the others go on without, to the history of the first."""
    job = attempt.job
    first = session.get(Job, job.array_id) if job.array_index else None
    if first is not None:
        record_event(session, first, message=end_of_member(attempt), now=now)


def stop_led(session: Session, job: Job, *, now: datetime) -> None:
    """Stop the members that served the first one, which has succeeded; they have so, too."""
    is_other = Job.array_id == job.array_id, Job.id != job.id
    reason = Reason.FIRST_MEMBER_ENDED
    _stop_running(session, is_other, reason, "The first member has succeeded.", now=now)
    _stop_waiting(session, is_other, now=now)


def end_of_member(attempt: Attempt) -> str:
    """Return how a member has ended, with its rank and appliance."""
    who = f"Member {attempt.job.array_index} ({attempt.place_name})"
    cause = attempt.message.rstrip(".")
    if attempt.reason is Reason.EXIT_CODE and attempt.exit_code is not None:
        cause = f"exit code {attempt.exit_code}"
    if attempt.state is AttemptState.FAILED:
        return f"{who} failed: {cause}."
    if attempt.state is AttemptState.LOST:
        return f"{who} was lost: {cause}."
    if cause.startswith("Stopped "):
        return f"{who} was s{cause[1:]}."
    return f"{who} ended."


def _stop_running(
    session: Session,
    is_other: Collection[ColumnElement[bool]],
    reason: Reason,
    cause: str,
    *,
    now: datetime,
) -> None:
    running = select(Attempt).where(
        Attempt.job_id == Job.id,
        Attempt.state.in_(ALLOCATED_STATES),
        Attempt.stop_reason.is_(None),
        *is_other,
    )
    message = shorten(f"Stopped: {cause[:1].lower()}{cause[1:]}")
    values = {"stop_reason": reason, "message": message}
    stopping = [
        other
        for other in session.scalars(running.order_by(Attempt.id)).unique().all()
        if change_attempt(session, other, **values)
    ]
    for other in stopping:
        # Pages show why while its container stops.
        state = JobState(other.state.value)
        if move_job(session, other.job_id, state, expected={state}, message=message):
            record_event(session, other.job, message=cause, now=now)
    bump_generations(session, {other.appliance_id for other in stopping})


def _stop_waiting(
    session: Session, is_other: Collection[ColumnElement[bool]], *, now: datetime
) -> None:
    waiting = select(Job.id, Job.tenant_id).where(Job.state.in_(WAITING), *is_other)
    rows = session.execute(waiting.with_for_update()).all()
    ids = [row.id for row in rows]
    withdraw_data(session, ids)
    values = {"reason": Reason.MEMBER_ENDED, "message": _ENDED_BEFORE_START}
    move_all(session, Job, Job.id.in_(ids), JobState.STOPPED, finished_at=now, **values)
    bound = Attempt.job_id.in_(ids) & (Attempt.state == AttemptState.BOUND)
    move_all(session, Attempt, bound, AttemptState.STOPPED, finished_at=now, **values)
    event = {"state": JobState.STOPPED, **values}
    events = [{"job_id": row.id, "tenant_id": row.tenant_id, **event} for row in rows]
    record_events(session, events, now=now)
