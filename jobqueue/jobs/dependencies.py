"""Dependencies: jobs that wait until other jobs have ended.

A job may wait for others *to succeed* (`ok`) or *to end* (`any`). What it still waits for are rows
of `job_dependencies`; placement leaves it out while there are any. A job whose dependency can never
be met is stopped with the reason, and so are those that depend on it in turn.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.orm import Session, aliased

from core.db import chunked
from jobqueue.jobs.transitions import move_all, record_events, shorten
from jobqueue.models import Job, JobDependency
from jobqueue.states import WAITING, DependencyCondition, JobState, Reason
from tenants.scope import Scope

# Dependencies that one placement cycle resolves for a tenant; the next one goes on.
MAX_RESOLVED = 100
_FINAL = [state for state in JobState if state.is_final]
_FIELDS = {"after_ok": DependencyCondition.OK, "after_any": DependencyCondition.ANY}

Dependencies = list[tuple[Job, DependencyCondition]]


def find_dependencies(
    session: Session, scope: Scope, wanted: dict[str, Sequence[str]]
) -> tuple[Dependencies, list[tuple[str, str]]]:
    """Return the jobs that a new one waits for, and the errors by field.

    Args:
        session: the session.
        scope: of the user.
        wanted: names or ids by the field `after_ok` or `after_any`. A name stands for the newest
            job with it; the name or id of an array for all of its tasks.
    """
    dependencies: Dependencies = []
    errors: list[tuple[str, str]] = []
    for field, condition in _FIELDS.items():
        for name in dict.fromkeys(wanted[field]):
            job, error = _find(session, scope, name, condition)
            if error or job is None:
                errors.append((field, error))
            elif job.id not in {other.id for other, _ in dependencies}:
                dependencies.append((job, condition))
    return dependencies, errors


def stored_dependencies(dependencies: Dependencies) -> list[dict[str, str]]:
    """Return dependencies as a job shows them."""
    return [
        {"job_id": job.id, "name": job.name, "condition": condition.value}
        for job, condition in dependencies
    ]


def waiting_message(dependencies: Dependencies) -> str:
    """Return for what a job waits."""
    parts = [
        f"{job.name!r} {'succeeds' if condition is DependencyCondition.OK else 'ends'}"
        for job, condition in dependencies
    ]
    return shorten(f"Waiting until {' and '.join(parts)}.")


def add_dependencies(session: Session, job: Job, dependencies: Dependencies) -> None:
    """Let a new job, or the array with this first task, wait for others."""
    session.add_all(
        JobDependency(job_id=job.id, on_job_id=on.id, tenant_id=job.tenant_id, condition=condition)
        for on, condition in dependencies
    )


def is_blocked() -> ColumnElement[bool]:
    """Return the condition that a job still waits for others."""
    own = exists().where(JobDependency.job_id == Job.id)
    return or_(own, exists().where(JobDependency.job_id == Job.array_id))


def resolve_dependencies(session: Session, tenant_id: str, *, now: datetime) -> int:
    """Release the jobs whose dependencies are met, and stop those whose never will be.

    Returns:
        How many dependencies were resolved.
    """
    resolved = 0
    for dependency, on, is_met in _decided(session, tenant_id):
        if not is_met:
            _stop(session, dependency.job_id, on, now=now)
        row = delete(JobDependency).where(
            JobDependency.job_id == dependency.job_id,
            JobDependency.on_job_id == dependency.on_job_id,
        )
        session.execute(row, execution_options={"synchronize_session": False})
        resolved += 1
    session.expire_all()
    return resolved


def _decided(session: Session, tenant_id: str) -> Iterator[tuple[Any, Job, bool]]:
    task = aliased(Job)

    def has_task(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        # The job itself, or a task of its array: two conditions, so that both use an index.
        itself = exists().where(task.id == JobDependency.on_job_id, *conditions)
        return or_(itself, exists().where(task.array_id == JobDependency.on_job_id, *conditions))

    is_open = has_task(task.state.not_in(_FINAL))
    missed = has_task(task.state.in_(_FINAL), task.state != JobState.SUCCEEDED)
    never = and_(JobDependency.condition == DependencyCondition.OK, missed)
    statement = (
        select(JobDependency.job_id, JobDependency.on_job_id, Job, never.label("is_missed"))
        .join(Job, Job.id == JobDependency.on_job_id)
        .where(JobDependency.tenant_id == tenant_id, or_(~is_open, never))
        .limit(MAX_RESOLVED)
    )
    for row in session.execute(statement).unique().all():
        yield row, row[2], not row.is_missed


def _stop(session: Session, job_id: str, on: Job, *, now: datetime) -> None:
    message = f"{on.name!r} did not succeed ({_outcome(on)}), so this job can't start."
    is_task = or_(Job.id == job_id, Job.array_id == job_id)
    waiting = select(Job.id, Job.tenant_id).where(is_task, Job.state.in_(WAITING))
    jobs = session.execute(waiting.with_for_update()).all()
    values = {"reason": Reason.DEPENDENCY_FAILED, "message": shorten(message)}
    for chunk in chunked(jobs):
        stopped = Job.id.in_([job.id for job in chunk])
        move_all(session, Job, stopped, JobState.STOPPED, finished_at=now, **values)
    event = {"state": JobState.STOPPED, **values}
    record_events(
        session, [{"job_id": job.id, "tenant_id": job.tenant_id, **event} for job in jobs], now=now
    )


def _outcome(on: Job) -> str:
    return "in a task" if on.array_id and on.state is JobState.SUCCEEDED else on.state.value


def _find(
    session: Session, scope: Scope, name: str, condition: DependencyCondition
) -> tuple[Job | None, str]:
    statement = scope.select(select(Job), Job).where(or_(Job.id == name, Job.name == name))
    job = session.scalars(statement.order_by(Job.id.desc()).limit(1)).unique().first()
    if job is None:
        return None, f"There is no job {name!r}. Enter the name or the ID of a job."
    if job.array_id and job.name == name:
        job = session.get_one(Job, job.array_id)
    is_over = job.state.is_final and job.state is not JobState.SUCCEEDED
    if is_over and condition is DependencyCondition.OK:
        return None, f"The job {name!r} has already ended ({job.state.value}); it can't succeed."
    return job, ""
