"""Jobs after a backup was restored: what happened to them since the backup is unknown.

No job runs twice because of a restore. A job that waited in the backup may have run since: it
stops, and its user submits it again if it did not. Of an attempt that ran in the backup, the
appliance says what became of it: until it has reported, it gets no desired state, because an agent
that has forgotten an attempt would start it again. An attempt that it does not report is lost. What
runs on an appliance and is not in the backup is stopped by its agent, as it is not desired.

Services go on: two instances are no harm, and the one that is not in the backup is stopped.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from core.schedule_times import next_time
from jobqueue.jobs.retries import end_job
from jobqueue.jobs.transitions import move_all, move_attempt, record_events
from jobqueue.models import Attempt, Job, JobSchedule
from jobqueue.states import ALLOCATED_STATES, WAITING, AttemptState, JobState, Reason
from protocol.attempts import AttemptObservation
from protocol.job_spec import JobKind
from tenants.models import Appliance

# No agent has seen so many changes of its desired state since a backup.
_GENERATIONS = 1_000_000


def settle_restored(session: Session, *, data_at: datetime, now: datetime) -> int:
    """Stop what may have run since the backup; return how many jobs were stopped.

    Args:
        session: of the restored database, which no server uses yet.
        data_at: the time of the backup.
        now: the time.
    """
    session.execute(
        update(Appliance).values(desired_generation=Appliance.desired_generation + _GENERATIONS)
    )
    allocated = Attempt.state.in_(ALLOCATED_STATES)
    session.execute(update(Attempt).where(allocated).values(awaits_report=True))
    waiting = (Job.state.in_(WAITING), Job.kind != JobKind.SERVICE)
    jobs = session.execute(select(Job.id, Job.tenant_id).where(*waiting)).all()
    message = (
        f"The portal was restored from a backup of {data_at:%Y-%m-%d %H:%M} UTC, in which this job "
        "was waiting. It may have run since: submit it again if it did not."
    )
    values = {"reason": Reason.RESTORED, "message": message, "finished_at": now}
    ids = select(Job.id).where(*waiting)
    bound = Attempt.job_id.in_(ids) & (Attempt.state == AttemptState.BOUND)
    move_all(session, Attempt, bound, AttemptState.STOPPED, **values)
    move_all(session, Job, Job.id.in_([job.id for job in jobs]), JobState.STOPPED, **values)
    event = {"state": JobState.STOPPED, "reason": Reason.RESTORED, "message": message}
    record_events(
        session, [{"job_id": job.id, "tenant_id": job.tenant_id, **event} for job in jobs], now=now
    )
    _skip_past_runs(session, now=now)
    return len(jobs)


def _skip_past_runs(session: Session, *, now: datetime) -> None:
    """Let schedules go on with their next time: the portal has run them until it was lost."""
    for schedule in session.scalars(select(JobSchedule).where(JobSchedule.next_run_at <= now)):
        try:
            schedule.next_run_at = next_time(schedule.schedule, schedule.time_zone, after=now)
        except ValueError:
            schedule.next_run_at = None  # its time zone is gone from the database of time zones


def awaits_report(session: Session, appliance_id: str) -> bool:
    """Return whether an appliance must report before it may get a desired state."""
    unclear = exists().where(Attempt.appliance_id == appliance_id, Attempt.awaits_report)
    return bool(session.scalar(select(unclear)))


def settle_unreported(
    session: Session,
    attempts: Collection[Attempt],
    observations: Iterable[AttemptObservation],
    *,
    now: datetime,
) -> bool:
    """Take the first report after a restore; return whether any attempt was unclear.

    Those that the appliance does not report are lost.
    """
    unclear = [attempt for attempt in attempts if attempt.awaits_report]
    reported = {observation.attempt_id for observation in observations} if unclear else set()
    message = "The portal was restored from a backup, and this attempt has ended since."
    for attempt in unclear:
        attempt.awaits_report = False
        session.flush()
        if attempt.id in reported:
            continue
        values: dict[str, Any] = {"reason": Reason.RESTORED, "message": message, "finished_at": now}
        if move_attempt(session, attempt.id, AttemptState.LOST, **values):
            end_job(session, attempt, JobState.LOST, values, now=now)
    return bool(unclear)
