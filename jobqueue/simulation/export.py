"""A recording of a tenant's own jobs, without names of users, projects and jobs."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.appliance_views import matching_models, models_of, tenant_views
from jobqueue.jobs.queue_settings import settings_of
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import ApplianceView
from jobqueue.projects.models import Project
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    Recording,
)
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from tenants.permissions import Permission
from tenants.scope import Scope

DEFAULT_DAYS = 30
MAX_JOBS = 1_000_000


def recorded_jobs(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    is_anonymous: bool = False,
    now: datetime,
) -> Recording:
    """Return the jobs that were submitted in a period and ran, with today's hardware and rules.

    What still runs is recorded as long as it has run so far. Users and projects are numbers in the
    order of their first job.

    Args:
        session: the database session.
        scope: of a user who manages appliances.
        period: the time of submission.
        is_anonymous: whether appliances are numbered, too, instead of named.
        now: the current time.

    Raises:
        InvalidInputError: there are more than `MAX_JOBS` jobs.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    views = sorted(tenant_views(session, tenant_id), key=lambda view: view.name)
    names = {
        view.id: f"appliance-{number}" if is_anonymous else view.name
        for number, view in enumerate(views, 1)
    }
    reader = _Reader(period.since, names, models_of(views), now)
    jobs = [reader.job(rows) for rows in _rows(session, tenant_id, period)]
    if len(jobs) > MAX_JOBS:
        raise InvalidInputError(
            f"More than {MAX_JOBS:,} jobs were submitted then. Choose a shorter period."
        )
    settings = settings_of(session, tenant_id)
    return Recording(
        appliances=[_appliance(view, names[view.id]) for view in views],
        rules=QueueRules(
            policy=settings.placement_policy,
            allows_preemption=settings.allows_preemption,
            max_gpus_per_user=settings.max_gpus_per_user,
            max_gpus=settings.max_gpus,
        ),
        watts_by_model=_watts_by_model(session, tenant_id),
        shares=_shares(session, tenant_id, reader.projects),
        jobs=jobs,
    )


class _Reader:
    """Turns rows into recorded jobs, and numbers users and projects."""

    def __init__(
        self, start: datetime, names: dict[str, str], models: set[str], now: datetime
    ) -> None:
        self.projects: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._start, self._names, self._models, self._now = start, names, models, now

    def job(self, rows: Sequence[Row[*tuple[Any, ...]]]) -> RecordedJob:
        row = rows[0]
        runs = [(attempt.ended_at or self._now) - attempt.began_at for attempt in rows]
        return RecordedJob(
            submitted_seconds=(row.submitted_at - self._start).total_seconds(),
            run_seconds=max(0.0, sum(runs, timedelta()).total_seconds()),
            time_limit_seconds=row.time_limit_seconds,
            gpus=row.gpus,
            gpu_memory_bytes=row.gpu_memory_bytes,
            gpu_models=tuple(sorted(matching_models(row.gpu_models, self._models)))
            if row.gpu_models
            else (),
            cpus=row.cpus,
            memory_bytes=row.memory_bytes,
            appliance=self._names.get(row.appliance_id or "", ""),
            priority=row.priority,
            is_preemptible=row.is_preemptible,
            user=_number(self._users, row.user_id),
            project=_number(self.projects, row.project_id),
        )


def _number(numbers: dict[str, int], ident: str | None) -> int:
    return numbers.setdefault(ident, len(numbers) + 1) if ident else 0


def _rows(
    session: Session, tenant_id: str, period: Period
) -> Iterator[list[Row[*tuple[Any, ...]]]]:
    """Yield the attempts of each job that ran, in the order of submission."""
    statement = (
        select(
            Job.id,
            Job.submitted_at,
            Job.time_limit_seconds,
            Job.gpus,
            Job.gpu_memory_bytes,
            Job.gpu_models,
            Job.cpus,
            Job.memory_bytes,
            Job.appliance_id,
            Job.priority,
            Job.is_preemptible,
            Job.user_id,
            Job.project_id,
            Attempt.started_at.label("began_at"),
            Attempt.finished_at.label("ended_at"),
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .where(
            Job.tenant_id == tenant_id,
            Job.submitted_at >= period.since,
            Job.submitted_at < period.until,
            Attempt.started_at.is_not(None),
        )
        .order_by(Job.submitted_at, Job.id, Attempt.number)
        .limit(2 * MAX_JOBS)
    )
    rows = session.execute(statement).yield_per(1000)
    return (list(group) for _, group in groupby(rows, key=lambda row: row.id))


def _appliance(view: ApplianceView, name: str) -> RecordedAppliance:
    return RecordedAppliance(
        name=name,
        cpus=view.cpus,
        memory_bytes=view.memory_bytes,
        gpus=tuple(
            RecordedGPU(model=gpu.model, memory_bytes=gpu.memory_bytes) for gpu in view.gpus
        ),
    )


def _watts_by_model(session: Session, tenant_id: str) -> dict[str, float]:
    """Return the mean power of an allocated GPU by model, from the usage ledger."""
    joules, milliseconds = (
        func.sum(UsageEntry.energy_joules),
        func.sum(UsageEntry.allocated_milliseconds),
    )
    statement = (
        select(UsageEntry.gpu_model, joules, milliseconds)
        .where(UsageEntry.tenant_id == tenant_id)
        .group_by(UsageEntry.gpu_model)
        .having(joules > 0, milliseconds > 0)
    )
    rows = session.execute(statement).all()
    return {model: round(float(energy) * 1000 / float(time), 1) for model, energy, time in rows}


def _shares(session: Session, tenant_id: str, projects: dict[str, int]) -> dict[int, float]:
    """Return the shares of projects by their numbers."""
    statement = select(Project.id, Project.shares).where(Project.tenant_id == tenant_id)
    return {
        projects[ident]: float(shares)
        for ident, shares in session.execute(statement)
        if ident in projects
    }
