"""Why a job is pending, and where a new one would go: explanations from the database."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.models import Job
from jobqueue.placement.explanation import Explanation, explain
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


def try_job(session: Session, scope: Scope, request: JobRequest, *, now: datetime) -> Explanation:
    """Return where a new job would go and when, without submitting it.

    Raises:
        InvalidInputError: as `submit_job` does.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job: Job = checked_job(session, scope, request, now=now)
    job.id = new_id()
    snapshot = read_tenant(session, scope.require_tenant(), now=now).snapshot
    models = {gpu.model for view in snapshot.appliances for gpu in view.gpus}
    with_it = replace(snapshot, jobs=[*snapshot.jobs, job_view(job, models)])
    return explain(with_it, job.id)
