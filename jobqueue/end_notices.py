"""Notices of a job's end, to its submitter or to receivers of the tenant: off by default.

A job that asks for them is marked when it is submitted. The scheduler takes each mark once, in the
transaction that adds the notices to the outbox of `alerting`, which this package doesn't know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import column, select, table, update
from sqlalchemy.orm import Session

from core.guarded_update import changed_one
from core.quantities import format_duration
from jobqueue.models import Job
from jobqueue.states import JobState

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
    session: Session, tenant_id: str, notify: Sequence[str], *, array: str
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with whom a job notifies, by field."""
    if len(notify) > MAX_NOTIFIED or len(set(notify)) < len(notify):
        yield "notify", f"notify has {len(notify)} entries; name up to {MAX_NOTIFIED}, each once."
    if notify and array:
        yield "notify", "Tasks of an array end one by one; remove notify or array."
    unknown = set(notify) - {EMAIL}
    for name in sorted(unknown - set(receiver_names(session, tenant_id)) if unknown else ()):
        yield "notify", f"There is no receiver {name[:100]!r}; use {EMAIL!r} or a receiver's name."


def take_end_notices(session: Session) -> list[EndNotice]:
    """Return the notices of jobs that have ended, each only once."""
    ended = select(Job).where(Job.is_notice_due.is_(True), Job.state.in_(_FINAL))
    found: list[EndNotice] = []
    for job in session.scalars(ended.order_by(Job.id).limit(BATCH)).unique().all():
        taken = (
            update(Job)
            .where(Job.id == job.id, Job.is_notice_due.is_(True))
            .values(is_notice_due=False)
        )
        if changed_one(session, taken, synchronize_session=False):
            found += _notices(job)
    return found


def _notices(job: Job) -> Iterator[EndNotice]:
    subject = f"Job {job.name} {_WORDS[job.state]}"
    facts = [subject + ".", job.message]
    if job.exit_code:
        facts.append(f"Exit code {job.exit_code}.")
    if job.started_at and job.finished_at:
        seconds = (job.finished_at - job.started_at).total_seconds()
        facts.append(f"It ran for {format_duration(seconds)}.")
    common = {
        "tenant_id": job.tenant_id,
        "subject": subject,
        "text": " ".join(fact for fact in facts if fact),
        "path": f"/jobs/{job.id}",
    }
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
