"""A recording of a tenant's own jobs, without names of users, projects and jobs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any

import numpy as np
from msgspec.structs import replace
from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.appliance_views import matching_models, models_of
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.fairshare.accounts import Projects, read_projects
from jobqueue.fairshare.settings import OrderPolicy
from jobqueue.jobs.settings import settings_of
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import ApplianceView
from jobqueue.projects.models import ProjectQuota
from jobqueue.projects.quotas import LIMITS, QuotaRequest
from jobqueue.reservations.models import Reservation
from jobqueue.reservations.periods import periods_until
from jobqueue.simulation.recording import (
    USUAL_ORDER,
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    RecordedProject,
    RecordedReservation,
    Recording,
)
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from protocol.gpu_slices import WHOLE_GPU
from tenants.permissions import Permission
from tenants.scope import Scope

DEFAULT_DAYS = 30
MAX_JOBS = 1_000_000
# In one answer of the portal, which holds them in memory meanwhile.
MAX_DOWNLOADED_JOBS = 100_000
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


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
        InvalidInputError: there are more than `MAX_DOWNLOADED_JOBS`.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    recording, _ = record(
        session,
        tenant_id,
        period,
        is_anonymous=is_anonymous,
        max_jobs=MAX_DOWNLOADED_JOBS,
        now=now,
    )
    return recording


def record(
    session: Session,
    tenant_id: str,
    period: Period,
    *,
    is_anonymous: bool = False,
    max_jobs: int = MAX_JOBS,
    now: datetime,
) -> tuple[Recording, dict[str, int]]:
    """Return a tenant's recording, and the numbers of its projects by name.

    With `max_jobs` 0, it is all but the jobs.

    Raises:
        InvalidInputError: there are more jobs than that.
    """
    # No job was submitted outside of these limits, and adding to a time of the year 9999 fails.
    period = Period(*(min(max(moment, _EARLIEST), now) for moment in (period.since, period.until)))
    views = sorted(tenant_views(session, tenant_id), key=lambda view: view.name)
    names = {
        view.id: f"appliance-{number}" if is_anonymous else view.name
        for number, view in enumerate(views, 1)
    }
    appliances = [appliance for view in views for appliance in _appliances(view, names[view.id])]
    # A simulation places jobs on the nodes themselves, so none can request a connector.
    names = {view.id: names[view.id] for view in views if view.cluster is None}
    reader = _Reader(period.since, names, models_of(views), now)
    rows = islice(_rows(session, tenant_id, period), max_jobs + 1) if max_jobs else iter(())
    jobs = [reader.job(attempts) for attempts in rows]
    if len(jobs) > max_jobs:
        raise InvalidInputError(
            f"More than {max_jobs:,} jobs were submitted then. Choose a shorter period."
        )
    projects = read_projects(session, tenant_id)
    recording = Recording(
        appliances=appliances,
        rules=_rules(session, tenant_id),
        watts_by_model=_watts_by_model(session, tenant_id),
        projects=_projects(session, tenant_id, projects, reader),
        reservations=_reservations(session, projects, period, reader, tenant_id=tenant_id),
        jobs=_gangs_together(jobs),
    )
    return recording, {
        project.name: _number(reader.projects, ident) for ident, project in projects.rows.items()
    }


class _Reader:
    """Turns rows into recorded jobs, and numbers users and projects."""

    def __init__(
        self, start: datetime, names: dict[str, str], models: set[str], now: datetime
    ) -> None:
        self.projects: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.start, self.names, self._models, self._now = start, names, models, now

    def job(self, rows: Sequence[Row[*tuple[Any, ...]]]) -> tuple[str | None, RecordedJob]:
        """Return the gang of a job, None if it is none, and the job."""
        row = rows[0]
        runs = [(attempt.ended_at or self._now) - attempt.began_at for attempt in rows]
        return row.array_id if row.nodes > 1 else None, RecordedJob(
            submitted_seconds=(row.submitted_at - self.start).total_seconds(),
            run_seconds=max(0.0, sum(runs, timedelta()).total_seconds()),
            time_limit_seconds=row.time_limit_seconds,
            # A job for a part of a GPU is recorded with what it got.
            gpus=row.gpus or len(rows[-1].gpu_uuids),
            gpu_milli=rows[-1].gpu_slice["share_milli"] if rows[-1].gpu_slice else WHOLE_GPU,
            gpu_memory_bytes=row.gpu_memory_bytes if row.gpus else 0,
            gpu_models=tuple(sorted(matching_models(row.gpu_models, self._models)))
            if row.gpu_models
            else (),
            cpus=row.cpus,
            memory_bytes=row.memory_bytes,
            appliance=self.names.get(row.appliance_id or "", ""),
            priority=row.priority,
            is_preemptible=row.is_preemptible,
            user=_number(self.users, row.user_id),
            project=_number(self.projects, row.project_id),
        )


def _gangs_together(jobs: Iterable[tuple[str | None, RecordedJob]]) -> list[RecordedJob]:
    """Return jobs with the members of each gang that ran as one, which ran as long as the longest.

    Members are submitted together; the gang is where its first one is.
    """
    listed: list[RecordedJob] = []
    gangs: dict[str, int] = {}
    for gang_id, job in jobs:
        place = None if gang_id is None else gangs.setdefault(gang_id, len(listed))
        if place is None or place == len(listed):
            listed.append(job)
            continue
        first = listed[place]
        run_seconds = max(first.run_seconds, job.run_seconds)
        listed[place] = replace(first, nodes=first.nodes + 1, run_seconds=run_seconds)
    return listed


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
            Job.array_id,
            func.coalesce(Job.nodes, 1).label("nodes"),
            Attempt.gpu_uuids,
            Attempt.gpu_slice,
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
    )
    rows = session.execute(statement).yield_per(1000)
    return (list(group) for _, group in groupby(rows, key=lambda row: row.id))


def _appliances(view: ApplianceView, name: str) -> Iterator[RecordedAppliance]:
    """Yield an appliance; of a cluster, the nodes that are up, each as one."""
    cluster = view.cluster
    if cluster is None:
        gpus = [RecordedGPU(model=gpu.model, memory_bytes=gpu.memory_bytes) for gpu in view.gpus]
        yield RecordedAppliance(
            name=name, cpus=view.cpus, memory_bytes=view.memory_bytes, gpus=tuple(gpus)
        )
        return
    nodes = list(cluster.places) if name == view.name else []
    for place in np.flatnonzero(cluster.is_up).tolist():
        memory_bytes = int(cluster.gpu_memory_bytes[place])
        gpu = RecordedGPU(model=cluster.models[place], memory_bytes=memory_bytes)
        yield RecordedAppliance(
            name=f"{nodes[place]}.{name}" if nodes else f"{name}-node-{place + 1}",
            cpus=float(cluster.cpus[place]),
            memory_bytes=int(cluster.memory_bytes[place]),
            gpus=(gpu,) * int(cluster.gpus[place]),
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


def _rules(session: Session, tenant_id: str) -> QueueRules:
    settings = settings_of(session, tenant_id)
    ordering = settings.ordering
    is_usual = ordering.policy is OrderPolicy.FIFO
    return QueueRules(
        policy=settings.placement_policy,
        order=USUAL_ORDER if is_usual else ordering.policy.value,
        ordering=ordering,
        allows_preemption=settings.allows_preemption,
        max_gpus_per_user=settings.max_gpus_per_user,
        max_gpus=settings.max_gpus,
    )


def _projects(
    session: Session, tenant_id: str, projects: Projects, reader: _Reader
) -> list[RecordedProject]:
    """Return the projects of a tenant; those without jobs have the last numbers."""
    quotas: defaultdict[str, list[QuotaRequest]] = defaultdict(list)
    stored = select(ProjectQuota).where(ProjectQuota.tenant_id == tenant_id)
    for quota in session.scalars(stored.order_by(ProjectQuota.id)).unique():
        limits = {name: getattr(quota, name) for name in LIMITS}
        request = QuotaRequest(resource=quota.resource, gpu_model=quota.gpu_model, **limits)
        quotas[quota.project_id].append(request)
    members: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for account, shares in projects.member_shares.items():
        members[account.project_id][_number(reader.users, account.user_id)] = shares
    return [
        RecordedProject(
            project=_number(reader.projects, ident),
            parent=_number(reader.projects, project.parent_id),
            shares=project.shares,
            member_shares=members[ident],
            quotas=tuple(quotas[ident]),
        )
        for ident, project in projects.rows.items()
    ]


def _reservations(
    session: Session, projects: Projects, period: Period, reader: _Reader, *, tenant_id: str
) -> list[RecordedReservation]:
    """Return when today's reservations apply in a period, and as long again after it.

    Those for an archived project keep nothing.
    """
    archived = {ident for ident, row in projects.rows.items() if row.archived_at is not None}
    until = period.until + (period.until - period.since)
    stored = session.scalars(select(Reservation).where(Reservation.tenant_id == tenant_id))
    listed = []
    for reservation in stored:
        periods = periods_until(reservation, until, now=period.since)
        seconds = [
            ((begin - reader.start).total_seconds(), (end - reader.start).total_seconds())
            for begin, end in periods
            if begin < until
        ]
        appliances = [
            reader.names[ident] for ident in reservation.appliance_ids if ident in reader.names
        ]
        if seconds and appliances and reservation.project_id not in archived:
            listed.append(
                RecordedReservation(
                    appliances=tuple(appliances),
                    periods=tuple(seconds),
                    project=_number(reader.projects, reservation.project_id),
                    gpus=reservation.gpus,
                )
            )
    return listed
