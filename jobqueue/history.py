"""A job's history: one row per change, written in the transaction that makes the change."""

from datetime import datetime

from sqlalchemy.orm import Session

from jobqueue.models import JobEvent
from jobqueue.states import JobState, Reason

MAX_MESSAGE_LENGTH = 2000


def record_event(
    session: Session,
    job_id: str,
    *,
    tenant_id: str,
    state: JobState,
    now: datetime,
    reason: Reason = Reason.NONE,
    message: str = "",
) -> None:
    """Add a line to the job's history."""
    session.add(
        JobEvent(
            job_id=job_id, tenant_id=tenant_id, state=state, reason=reason,
            message=shorten(message), at=now,
        )
    )  # fmt: skip


def shorten(message: str) -> str:
    """Return the message, cut where it is longer than a page has room for."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return message[: MAX_MESSAGE_LENGTH - 1] + "…"
