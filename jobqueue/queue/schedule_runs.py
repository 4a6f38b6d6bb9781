"""The runs of schedules: submit what is due, by the policies for overlaps and missed times."""

from datetime import datetime, timedelta

from msgspec import structs
from sqlalchemy import ColumnElement, and_, exists, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, VedetteError
from core.schedule_times import next_time, times_between
from core.secretbox import SecretBox
from jobqueue.jobs.job_secrets import decrypt_secrets
from jobqueue.jobs.transitions import shorten
from jobqueue.models import Job, JobSchedule, ScheduleRun
from jobqueue.queue.schedules import get_schedule
from jobqueue.queue.service import submit_job
from jobqueue.queue.stopping import stop_all
from jobqueue.queue.templates import load_request
from jobqueue.states import JobState, Missed, Overlap, RunOutcome
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

# A time counts as missed if it is submitted later than this.
GRACE = timedelta(minutes=5)
# Schedules of one transaction; the next one goes on.
BATCH = 50
# Times of an outage that are counted.
MAX_COUNTED = 1000
# Runs of a schedule that are stored.
MAX_RUNS = 500
_ACTIVE = [state for state in JobState if not state.is_final]


def submit_due(session: Session, *, box: SecretBox, now: datetime, limit: int = BATCH) -> int:
    """Submit the jobs of up to `limit` schedules that are due; return how many schedules were.

    A schedule's next time is moved by a guarded update, so that each time counts once.
    """
    due = select(JobSchedule).where(JobSchedule.next_run_at <= now)
    schedules = session.scalars(due.order_by(JobSchedule.next_run_at).limit(limit)).unique().all()
    for schedule in schedules:
        first, following = schedule.next_run_at, _following(schedule, now)
        statement = (
            update(JobSchedule)
            .where(JobSchedule.id == schedule.id, JobSchedule.next_run_at == first)
            .values(next_run_at=following)
        )
        if first is not None and changed_one(session, statement, synchronize_session=False):
            _run_due(session, schedule, first, box=box, now=now)
    session.expire_all()
    return len(schedules)


def run_now(
    session: Session, scope: Scope, schedule_id: str, *, box: SecretBox, now: datetime
) -> ScheduleRun:
    """Submit a job of a schedule now, whatever its times and policies.

    Raises:
        ForbiddenError: it is another user's: its jobs run as that user.
    """
    scope.require(Permission.SUBMIT_JOBS)
    schedule = get_schedule(session, scope, schedule_id)
    if schedule.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    return _submit(session, schedule, now, box=box, now=now)


def _following(schedule: JobSchedule, now: datetime) -> datetime | None:
    try:
        return next_time(schedule.schedule, schedule.time_zone, after=now)
    except ValueError:
        # Its time zone is gone from the database of time zones.
        return None


def _run_due(
    session: Session, schedule: JobSchedule, first: datetime, *, box: SecretBox, now: datetime
) -> None:
    times = list(
        times_between(
            schedule.schedule, schedule.time_zone, first=first, until=now, max_count=MAX_COUNTED
        )
    )
    last = times[-1]
    late = [at for at in times if now - at > GRACE]
    is_late = last in late
    if late and (not is_late or schedule.missed is Missed.SKIP):
        count = f"{len(late)}{' or more' if len(times) == MAX_COUNTED else ''}"
        message = f"{count} missed: the scheduler was down." if len(late) > 1 else "Missed."
        _record(session, schedule, late[-1], RunOutcome.MISSED, message)
    if is_late and schedule.missed is Missed.SKIP:
        return
    is_active = and_(_is_run(schedule), Job.state.in_(_ACTIVE))
    active = session.scalar(select(exists().where(is_active)))
    if active and schedule.overlap is Overlap.SKIP:
        _record(session, schedule, last, RunOutcome.OVERLAPPED, "The last run has not ended.")
        return
    if active and schedule.overlap is Overlap.REPLACE:
        while stop_all(session, _scope(session, schedule), [is_active], now=now):
            pass
    _submit(session, schedule, last, box=box, now=now)


def _submit(
    session: Session, schedule: JobSchedule, due_at: datetime, *, box: SecretBox, now: datetime
) -> ScheduleRun:
    try:
        with session.begin_nested():
            secrets = decrypt_secrets(box, schedule.secret_env)
            request = structs.replace(load_request(schedule.request), secrets=secrets)
            job = submit_job(session, _scope(session, schedule), request, box=box, now=now)
    except VedetteError as error:
        return _record(session, schedule, due_at, RunOutcome.FAILED, error.message)
    return _record(session, schedule, due_at, RunOutcome.SUBMITTED, "", job_id=job.id)


def _scope(session: Session, schedule: JobSchedule) -> Scope:
    """Return the scope of the schedule's user, whose role may have changed.

    Raises:
        ConflictError: the user was removed or deactivated.
        NotFoundError: the user has left the tenant.
    """
    user = session.get(User, schedule.user_id) if schedule.user_id else None
    if user is None or not user.is_active:
        raise ConflictError("The schedule's user was removed or deactivated. Create it again.")
    return Scope.of(user, schedule.tenant_id)


def _is_run(schedule: JobSchedule) -> ColumnElement[bool]:
    runs = select(ScheduleRun.job_id).where(ScheduleRun.schedule_id == schedule.id)
    first = select(Job.array_id).where(Job.id.in_(runs), Job.array_id.is_not(None))
    return Job.id.in_(runs) | Job.array_id.in_(first)


def _record(
    session: Session,
    schedule: JobSchedule,
    due_at: datetime,
    outcome: RunOutcome,
    message: str,
    *,
    job_id: str | None = None,
) -> ScheduleRun:
    run = ScheduleRun(
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        due_at=due_at,
        outcome=outcome,
        message=shorten(message),
        job_id=job_id,
    )
    session.add(run)
    session.flush()
    old = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id)
    for old_run in session.scalars(
        old.order_by(ScheduleRun.id.desc()).offset(MAX_RUNS).limit(BATCH)
    ):
        session.delete(old_run)
    session.refresh(run)
    return run
