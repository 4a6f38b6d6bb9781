"""Texts about a preempted job: for which job it stops and why, what it lost, and when it goes on.

An attempt that must stop records it as JSON; its job's history and page, webhooks and notices show
it. `rule` is `reclaim` for the guarantee of a project, else `priority`.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.quantities import format_duration
from jobqueue.models import Attempt, Job
from jobqueue.partitions.measures import gpu_amount
from jobqueue.placement.views import queue_time
from jobqueue.states import WAITING

RECLAIM, PRIORITY = "reclaim", "priority"


def preemption_of(job: Job, *, is_reclaim: bool, guarantor: str) -> dict[str, Any]:
    """Return the record of an attempt that stops for a job.

    `guarantor` is the project whose guarantee covers the job in a reclaim.
    """
    return {
        "rule": RECLAIM if is_reclaim else PRIORITY,
        "job_id": job.id,
        "job_name": job.title,
        "project": job.project_name,
        "guarantor": guarantor if is_reclaim else None,
    }


def why_text(preemption: dict[str, Any]) -> str:
    """Return why an attempt stops, such as `for job 'train' of project 'vision', ...`."""
    project = preemption["project"]
    owner = f" of project {project!r}" if project else ""
    beneficiary = f"for job {preemption['job_name']!r}{owner}"
    if preemption["rule"] == RECLAIM:
        return f"{beneficiary}, which the guarantee of {preemption['guarantor']!r} covers"
    return f"{beneficiary}, as it is preemptible and of no higher priority"


def lost_text(attempt: Attempt, *, now: datetime) -> str:
    """Return what an attempt had run for, such as `2 h of run time, 8.0 GPU-hours`."""
    end_at = attempt.finished_at or now
    start_at = attempt.started_at or attempt.charged_from or end_at
    seconds = max((end_at - start_at).total_seconds(), 0.0)
    gpu_hours = seconds * gpu_amount(attempt.gpu_uuids, attempt.gpu_slice) / 3600
    gpus = f", {gpu_hours:.1f} GPU-hours" if attempt.gpu_uuids else ""
    return f"{format_duration(seconds)} of run time{gpus}"


def end_text(session: Session, attempt: Attempt, *, now: datetime) -> str:
    """Return the message of a job whose preempted attempt has ended: it is queued again."""
    if not attempt.preemption:
        return ""
    job = attempt.job
    ahead = select(func.count()).where(
        Job.tenant_id == job.tenant_id,
        Job.state.in_(WAITING),
        Job.queue_at < queue_time(now, job.priority),
        Job.id != job.id,
    )
    position = (session.scalar(ahead) or 0) + 1
    why = why_text(attempt.preemption)
    return (
        f"Attempt {attempt.number} stopped {why}. Lost since its start: "
        f"{lost_text(attempt, now=now)}. The job is queued again at about position {position}."
    )
