"""Why a job is pending, and where a new one would go: explanations from the database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.models import Job
from jobqueue.placement.explanation import Explanation, explain, explain_jobs
from jobqueue.requests import JobRequest
from jobqueue.service import checked_job, get_job
from jobqueue.snapshot import WAITING, job_view, read_tenant
from tenants.permissions import Permission
from tenants.scope import Scope


def explain_job(
    session: Session, scope: Scope, job_id: str, *, now: datetime
) -> Explanation | None:
    """Return why a job waits; None if it doesn't, or pauses before a retry."""
    job = get_job(session, scope, job_id)
    if job.state not in WAITING or (job.retry_at and job.retry_at > now):
        return None
    snapshot = read_tenant(session, job.tenant_id, now=now).snapshot
    return explain(snapshot, job.id) if any(one.id == job.id for one in snapshot.jobs) else None


def explain_new(
    session: Session, scope: Scope, jobs: Sequence[Job], *, now: datetime
) -> dict[str, Explanation]:
    """Return where new jobs would go and when, by id; they needn't be in the database."""
    snapshot = read_tenant(session, scope.require_tenant(), now=now).snapshot
    models = {gpu.model for view in snapshot.appliances for gpu in view.gpus}
    new = {job.id: job_view(job, models) for job in jobs}
    others = [one for one in snapshot.jobs if one.id not in new]
    return explain_jobs(replace(snapshot, jobs=[*others, *new.values()]), list(new))


def try_job(session: Session, scope: Scope, request: JobRequest, *, now: datetime) -> Explanation:
    """Return where a new job would go and when, without submitting it.

    Raises:
        InvalidInputError: as `submit_job` does.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job, _ = checked_job(session, scope, request, now=now)
    job.id = new_id()
    return explain_new(session, scope, [job], now=now)[job.id]
