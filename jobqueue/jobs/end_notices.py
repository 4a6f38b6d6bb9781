"""Notices of a job's end, to its submitter or to receivers of the tenant: off by default.

A job that asks for them is marked when it is submitted; of an array or a service, the first job is,
and it counts when all of them have ended. The scheduler takes each mark once, in the transaction
that adds the notices to the outbox of `alerting`, which this package doesn't know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import column, exists, func, select, table, update
from sqlalchemy.orm import Session, aliased, joinedload

from core.db import changed_one
from core.quantities import format_duration
from jobqueue.jobs.preemptions import lost_text, why_text
from jobqueue.models import Attempt, Job
from jobqueue.states import JobState, Reason
from protocol.job_spec import JobKind

EMAIL = "email"
MAX_NOTIFIED = 5
# Notices that one run of the scheduler adds; the next goes on.
BATCH = 500
# Alerting is beside this package: read its table by name, without its models. An Alertmanager
# takes alerts only.
_RECEIVERS = table("receivers", column("tenant_id"), column("name"), column("kind"))
_FINAL = [state for state in JobState if state.is_final]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNotice:
    """A notice to one receiver: an email `address`, or the name of a receiver of the tenant."""

    tenant_id: str
    address: str = ""
    receiver: str = ""
    subject: str
    text: str
    path: str


def receiver_names(session: Session, tenant_id: str) -> list[str]:
    """Return the names of the receivers that a tenant's jobs may notify."""
    statement = select(_RECEIVERS.c.name).where(
        _RECEIVERS.c.tenant_id == tenant_id, _RECEIVERS.c.kind != "alertmanager"
    )
    return list(session.scalars(statement.order_by(_RECEIVERS.c.name)))


def notify_errors(
    session: Session, tenant_id: str, notify: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with whom a job notifies, by field."""
    if len(notify) > MAX_NOTIFIED or len(set(notify)) < len(notify):
        yield "notify", f"notify has {len(notify)} entries; name up to {MAX_NOTIFIED}, each once."
    unknown = set(notify) - {EMAIL}
    for name in sorted(unknown - set(receiver_names(session, tenant_id)) if unknown else ()):
        yield "notify", f"There is no receiver {name[:100]!r}; use {EMAIL!r} or a receiver's name."


def take_end_notices(session: Session) -> list[EndNotice]:
    """Return the notices of jobs that have ended, each only once."""
    other = aliased(Job)
    is_going_on = exists().where(other.array_id == Job.array_id, other.state.not_in(_FINAL))
    ended = select(Job).where(Job.is_notice_due.is_(True), Job.state.in_(_FINAL), ~is_going_on)
    ended = ended.options(joinedload(Job.user)).order_by(Job.id)
    notices: list[EndNotice] = []
    for job in session.scalars(ended.limit(BATCH)).unique().all():
        taken = (
            update(Job)
            .where(Job.id == job.id, Job.is_notice_due.is_(True))
            .values(is_notice_due=False)
        )
        if changed_one(session, taken, synchronize_session=False):
            notices += _notices(job, *(_array_text(session, job) if job.array_id else _text(job)))
    return notices


def take_preemption_notices(session: Session, *, now: datetime) -> list[EndNotice]:
    """Return the notices of jobs that were preempted, each only once; tasks of arrays have none."""
    ended = select(Attempt).where(Attempt.is_notice_due.is_(True), Attempt.finished_at.is_not(None))
    notices: list[EndNotice] = []
    for attempt in session.scalars(ended.order_by(Attempt.id).limit(BATCH)).unique().all():
        taken = (
            update(Attempt)
            .where(Attempt.id == attempt.id, Attempt.is_notice_due.is_(True))
            .values(is_notice_due=False)
        )
        is_taken = changed_one(session, taken, synchronize_session=False)
        if is_taken and (why := _why_preempted(attempt)):
            subject = f"Job {attempt.job.name} was preempted"
            lost = f"Lost since its start: {lost_text(attempt, now=now)}."
            text = _joined(f"{subject}.", why, lost, "The job is queued again.")
            notices += _notices(attempt.job, subject, text)
    return notices


def _why_preempted(attempt: Attempt) -> str:
    if attempt.preemption and attempt.reason is Reason.PREEMPTED:
        return f"Attempt {attempt.number} stopped {why_text(attempt.preemption)}."
    return attempt.message if attempt.reason is Reason.PREEMPTED_BY_CLUSTER else ""


def _text(job: Job) -> tuple[str, str]:
    """Return the subject and the text of a job's notice."""
    subject = f"Job {job.name} {_WORDS[job.state]}"
    facts = [f"{subject}.", job.message]
    if job.exit_code:
        facts.append(f"Exit code {job.exit_code}.")
    return subject, _joined(*facts, _duration(job.started_at, job.finished_at))


def _array_text(session: Session, first: Job) -> tuple[str, str]:
    """Return the same of an array, or of all instances of a service."""
    of_array = Job.array_id == first.array_id
    counted = select(
        Job.state, func.count(), func.min(Job.started_at), func.max(Job.finished_at)
    ).where(of_array)
    rows = session.execute(counted.group_by(Job.state)).all()
    counts = {state: count for state, count, _, _ in rows}
    kind, tasks = ("Service", "instances") if first.kind is JobKind.SERVICE else ("Array", "tasks")
    end = _WORDS[first.state] if len(counts) == 1 else "ended"
    subject = f"{kind} {first.name} {end}"
    shown = ", ".join(f"{counts[state]:,} {state.value}" for state in _FINAL if state in counts)
    facts = [f"{subject}.", f"{sum(counts.values()):,} {tasks}: {shown}."]
    failed = select(Job).where(of_array, Job.state == JobState.FAILED).order_by(Job.array_index)
    worst = session.scalars(failed.limit(1)).unique().first()
    if worst is not None:
        facts.append(f"The first that failed is {worst.title}: {worst.message}")
    started = min((at for _, _, at, _ in rows if at), default=None)
    return subject, _joined(*facts, _duration(started, max(at for *_, at in rows if at)))


def _duration(start: datetime | None, end: datetime | None) -> str:
    return f"It ran for {format_duration((end - start).total_seconds())}." if start and end else ""


def _joined(*facts: str) -> str:
    return " ".join(fact for fact in facts if fact)


def _notices(job: Job, subject: str, text: str) -> Iterator[EndNotice]:
    path = f"/jobs?array_id={job.array_id}" if job.array_id else f"/jobs/{job.id}"
    common = {"tenant_id": job.tenant_id, "subject": subject, "text": text, "path": path}
    for name in job.notify:
        if name != EMAIL:
            yield EndNotice(receiver=name, **common)
        elif job.user is not None and job.user.is_active:
            yield EndNotice(address=job.user.email, **common)


_WORDS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.STOPPED: "was stopped",
    JobState.LOST: "was lost",
}
