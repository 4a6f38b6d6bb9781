"""Commands and files of running jobs: who may use them, and the audit log's entries of sessions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from core.errors import ConflictError
from jobqueue.models import Job
from jobqueue.queue.service import get_job
from jobqueue.states import AttemptState
from tenants.auditing.recording import record
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_RECORDED_CHARACTERS = 500


class SessionKind(StrEnum):
    """The kind of a session in the audit log."""

    TERMINAL = "terminal"
    COMMAND = "command"
    FILES_OUT = "files_out"
    FILES_IN = "files_in"


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job, for what happens outside of transactions."""

    id: str
    name: str
    tenant_id: str
    appliance_id: str
    attempt_id: str


def require_shells(scope: Scope, job: Job) -> None:
    """Raise `ForbiddenError` unless the user may open the job: an own one, or any as an admin."""
    scope.require(Permission.OPEN_SHELLS)
    if job.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)


def running_job(session: Session, scope: Scope, job_id: str) -> RunningJob:
    """Return a running job that the user may open.

    Raises:
        NotFoundError: there is no such job.
        ForbiddenError: the role may not.
        ConflictError: the job does not run; code `job_not_running`.
    """
    job = get_job(session, scope, job_id)
    require_shells(scope, job)
    attempt = job.attempt
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        message = f"The job {job.name!r} is not running ({job.state.value})."
        raise ConflictError(message, code="job_not_running")
    return RunningJob(job.id, job.name, job.tenant_id, attempt.appliance_id, attempt.id)


def record_opened(
    session: Session, job: RunningJob, kind: SessionKind, detail: str, *, now: datetime
) -> None:
    """Record the beginning of a session; `detail` is its command or path."""
    values = {"kind": kind.value, "detail": detail[:MAX_RECORDED_CHARACTERS]}
    _record(session, job, "job.session_opened", values, now=now)


def record_closed(
    session: Session,
    job: RunningJob,
    kind: SessionKind,
    *,
    reason: str,
    seconds: float,
    now: datetime,
) -> None:
    """Record the end of a session and why it ended."""
    values = {"kind": kind.value, "seconds": round(seconds, 1)}
    _record(session, job, "job.session_closed", values, reason=reason, now=now)


def _record(
    session: Session,
    job: RunningJob,
    action: str,
    values: Mapping[str, object],
    *,
    reason: str = "",
    now: datetime,
) -> None:
    record(
        session,
        action=action,
        target_kind="job",
        target_id=job.id,
        target_name=job.name,
        tenant_id=job.tenant_id,
        after=values,
        reason=reason,
        now=now,
    )
