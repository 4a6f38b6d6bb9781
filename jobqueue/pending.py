"""Why a job is pending, and where a new one would go: explanations from the database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.models import Job
from jobqueue.placement.explanation import Explanation, explain, explain_jobs
from jobqueue.placement.filters import FEASIBLE, FREE, apply_filters
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.views import JobShape
from jobqueue.requests import JobRequest
from jobqueue.service import checked_job, get_job
from jobqueue.snapshot import (
    MAX_CONSIDERED,
    WAITING,
    job_view,
    matching_models,
    read_tenant,
    tenant_views,
)
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


def pending_reason(session: Session, job: Job, *, considered: int = MAX_CONSIDERED) -> str:
    """Return the message of a job, or that it is too far back in the queue to be considered."""
    if job.message or job.state not in WAITING:
        return job.message
    is_before = or_(
        Job.queue_at < job.queue_at, and_(Job.queue_at == job.queue_at, Job.id < job.id)
    )
    before = select(Job.id).where(Job.tenant_id == job.tenant_id, Job.state.in_(WAITING), is_before)
    if session.scalar(before.offset(considered - 1).limit(1)) is None:
        return ""
    return (
        f"More than {considered:,} jobs are before it in the queue. It is considered when they "
        "have started."
    )


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


def appliance_problems(
    session: Session, scope: Scope, appliance: str, request: JobRequest, *, now: datetime
) -> tuple[list[str], list[str]]:
    """Return why an appliance, by id or name, can't run a job, and what it must wait for there.

    Only the resources of the request count; the rest of it needn't be valid.
    """
    scope.require(Permission.SUBMIT_JOBS)
    views = tenant_views(session, scope.require_tenant(), only=appliance)
    if not views:
        return [f"There is no appliance {appliance!r}."], []
    models = {gpu.model for gpu in views[0].gpus}
    shape = JobShape(
        gpus=request.gpus,
        gpu_memory_bytes=request.gpu_memory_bytes,
        gpu_models=matching_models(request.gpu_models, models)
        if request.gpu_models
        else frozenset(),
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
        labels=frozenset(request.required_labels.items()),
    )
    ledger = Ledger(views[:1], now=now)
    feasible, never = apply_filters(FEASIBLE, ledger, shape, np.ones(1, np.bool_))
    _, busy = apply_filters(FREE, ledger, shape, feasible)
    return [str(rejection) for rejection in never], [str(rejection) for rejection in busy]
