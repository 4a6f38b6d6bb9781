"""The input of placement: one tenant's appliances, running and waiting jobs, from the database.

Read as plain columns: a fleet of 10,000 appliances and its jobs is read in each cycle, and a queue
of any length page by page. An appliance's report is read and parsed again only when it has changed.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, Text, and_, or_, select, type_coerce
from sqlalchemy.orm import Session

from jobqueue.executors.abilities import needs_of
from jobqueue.jobs.dependencies import is_blocked
from jobqueue.jobs.queue_settings import settings_of
from jobqueue.models import Attempt, Job
from jobqueue.placement.policies import LEAST_FRAGMENTATION
from jobqueue.placement.views import (
    ApplianceView,
    Caps,
    GPUView,
    JobShape,
    JobView,
    ProjectView,
    QuotaView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import QuotaKey
from jobqueue.projects.models import Project, ProjectQuota
from jobqueue.projects.quotas import LIMITS
from jobqueue.reservations.service import reservation_views
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState, Reason
from protocol.health import ApplianceHealth, GPUHealth, HealthReason, HealthState, advice_for
from protocol.job_spec import JobKind, OnMemberLoss
from tenants.fleet.reports import MAX_REPORTS, ReportCache
from tenants.fleet.states import in_service
from tenants.models import Appliance

# The latest jobs, as a sample of the usual ones.
WORKLOAD_JOBS = 1000
# Appliances with the same value are joined by NVLink.
NVLINK_DOMAIN_LABEL = "nvlink-domain"
# A job goes elsewhere first than where it has failed within this time.
FAILED_WITHIN = timedelta(hours=1)
WAITING = (JobState.SUBMITTED, JobState.QUEUED)


class WaitingJob(NamedTuple):
    """A waiting job's row, with its bound attempt if it has one; `view` is for placement.

    The first of a gang has all `members`, itself included.
    """

    id: str
    name: str
    state: JobState
    reason: Reason
    message: str
    attempt_id: str | None
    view: JobView
    members: "Sequence[WaitingJob]" = ()


def read_snapshot(session: Session, tenant_id: str, *, now: datetime) -> Snapshot:
    """Return the tenant's snapshot without its waiting jobs."""
    views = tenant_views(session, tenant_id, now=now)
    settings = settings_of(session, tenant_id)
    has_workload = settings.placement_policy == LEAST_FRAGMENTATION
    return Snapshot(
        now=now,
        appliances=views,
        jobs=(),
        policy=settings.placement_policy,
        caps=Caps(gpus_per_user=settings.max_gpus_per_user, gpus=settings.max_gpus),
        allows_preemption=settings.allows_preemption,
        workload=_workload(session, tenant_id, models_of(views)) if has_workload else (),
        reservations=reservation_views(session, tenant_id, now=now),
        projects=_projects(session, tenant_id),
    )


def _projects(session: Session, tenant_id: str) -> list[ProjectView]:
    """Return the projects of a tenant in which any has quotas; otherwise none."""
    quotas: dict[str, list[QuotaView]] = defaultdict(list)
    rows = select(ProjectQuota).where(ProjectQuota.tenant_id == tenant_id)
    for row in session.scalars(rows).unique():
        limits = {name: getattr(row, name) for name in LIMITS}
        view = QuotaView(key=QuotaKey(row.resource, row.gpu_model), **limits)
        quotas[row.project_id].append(view)
    if not quotas:
        return []
    projects = select(Project).where(Project.tenant_id == tenant_id)
    return [
        ProjectView(
            id=project.id,
            name=project.name,
            parent_id=project.parent_id,
            shares=project.shares,
            quotas=quotas[project.id],
        )
        for project in session.scalars(projects)
    ]


def models_of(views: Iterable[ApplianceView]) -> set[str]:
    """Return the models of the GPUs of appliances."""
    return {gpu.model for view in views for gpu in view.gpus}


def is_ready(tenant_id: str, *, now: datetime) -> list[ColumnElement[bool]]:
    """Return the conditions that a tenant's job waits for nothing but an appliance."""
    return [
        Job.tenant_id == tenant_id,
        Job.state.in_(WAITING),
        or_(Job.retry_at.is_(None), Job.retry_at <= now),
        ~is_blocked(),
    ]


def waiting_ids(session: Session, tenant_id: str, *, now: datetime) -> list[str]:
    """Return the ids of the jobs that wait for an appliance, in the order of the queue.

    A gang is in it once, by its first member.
    """
    ready = select(Job.id).where(*is_ready(tenant_id, now=now))
    ids = list(session.scalars(ready.order_by(Job.queue_at, Job.id)))
    hidden = hidden_members(session, tenant_id, now=now)
    return [ident for ident in ids if ident not in hidden] if hidden else ids


def hidden_members(session: Session, tenant_id: str, *, now: datetime) -> set[str]:
    """Return the waiting members of gangs that aren't placed by themselves.

    They start with the first member; or when all have stopped, if the gang starts anew.
    """
    statement = select(Job).where(*is_ready(tenant_id, now=now), Job.nodes > 1)
    members = session.execute(
        statement.with_only_columns(Job.id, Job.array_id, Job.nodes, Job.on_member_loss)
    ).all()
    sizes = Counter(member.array_id for member in members)
    return {
        member.id
        for member in members
        if (
            member.id != member.array_id
            if sizes[member.array_id] == member.nodes
            else member.on_member_loss != OnMemberLoss.CONTINUE
        )
    }


def read_waiting(
    session: Session,
    tenant_id: str,
    ids: Sequence[str],
    models: Iterable[str],
    *,
    now: datetime,
    points: Mapping[str, float] | None = None,
) -> list[WaitingJob]:
    """Return the jobs of these that wait for an appliance, in the order of the queue.

    The first member of a gang comes with the others, as long as all of them wait; otherwise, of a
    gang that starts as a whole, it is left out.

    Args:
        session: the session.
        tenant_id: whose jobs they are.
        ids: the jobs.
        models: those of the tenant's GPUs.
        now: the time.
        points: by which the queue is ordered; see `jobqueue.fairshare.points`.
    """
    waiting = _read_rows(session, tenant_id, Job.id.in_(ids), models, now=now, points=points or {})
    gangs = [job.id for job in waiting if job.view.nodes > 1]
    if not gangs:
        return waiting
    members = _read_rows(session, tenant_id, Job.array_id.in_(gangs), models, now=now, points={})
    of_gang: dict[str, list[WaitingJob]] = {}
    for member in members:
        of_gang.setdefault(member.view.array_id or "", []).append(member)
    whole = [_with_members(job, of_gang.get(job.id, ())) for job in waiting]
    # While a long queue is placed, some members may have been stopped.
    parts = [job.id for job in whole if job.view.nodes > 1 and not job.members]
    stuck = select(Job.id).where(Job.id.in_(parts), Job.on_member_loss != OnMemberLoss.CONTINUE)
    left_out = set(session.scalars(stuck)) if parts else set[str]()
    return [job for job in whole if job.id not in left_out]


def _with_members(job: WaitingJob, members: Sequence[WaitingJob]) -> WaitingJob:
    if not 1 < len(members) == job.view.nodes:
        return job
    ids = [member.id for member in members]
    return job._replace(view=msgspec.structs.replace(job.view, members=ids), members=members)


def _read_rows(
    session: Session,
    tenant_id: str,
    condition: ColumnElement[bool],
    models: Iterable[str],
    *,
    now: datetime,
    points: Mapping[str, float],
) -> list[WaitingJob]:
    bound = and_(Attempt.job_id == Job.id, Attempt.state == AttemptState.BOUND)
    statement = (
        select(
            *_JOB_COLUMNS, Attempt.id.label("attempt_id"), Attempt.appliance_id.label("bound_to")
        )
        .outerjoin(Attempt, bound)
        .where(condition, *is_ready(tenant_id, now=now))
        .order_by(Job.queue_at, Job.array_index, Job.id)
    )
    rows = session.execute(statement).all()
    failed_on = _failed_on(session, [row.id for row in rows if row.retry_at is not None], now=now)
    jobs = [
        WaitingJob(
            row.id,
            row.name,
            row.state,
            row.reason,
            row.message,
            row.attempt_id,
            job_view(
                row,
                models,
                bound_to=row.bound_to,
                failed_on=failed_on.get(row.id),
                points=points.get(row.id, 0.0),
            ),
        )
        for row in rows
    ]
    return sorted(jobs, key=lambda job: job.view.order) if points else jobs


def _failed_on(
    session: Session, job_ids: Sequence[str], *, now: datetime
) -> dict[str, frozenset[str]]:
    """Return the appliances where attempts of jobs have failed lately, by job."""
    failed = (
        select(Attempt.job_id, Attempt.appliance_id)
        .where(
            Attempt.job_id.in_(job_ids),
            Attempt.state.in_((AttemptState.FAILED, AttemptState.LOST)),
            Attempt.finished_at > now - FAILED_WITHIN,
        )
        .order_by(Attempt.job_id)
    )
    rows = session.execute(failed).all() if job_ids else ()
    of_job = groupby(rows, key=lambda row: row.job_id)
    return {job_id: frozenset(row.appliance_id for row in group) for job_id, group in of_job}


def tenant_views(
    session: Session,
    tenant_id: str,
    *,
    only: Collection[str] | None = None,
    now: datetime | None = None,
) -> list[ApplianceView]:
    """Return the tenant's appliances in service, or only those with some ids or names.

    Fenced ones are left out: they get no updates. Without `now`, no trial is due on quarantined
    ones.
    """
    wanted = [Appliance.tenant_id == tenant_id, in_service(), Appliance.fenced_at.is_(None)]
    if only is not None:
        wanted.append(or_(Appliance.id.in_(only), Appliance.name.in_(only)))
    on_them = Attempt.appliance_id.in_(select(Appliance.id).where(*wanted))
    running = _running_jobs(session, tenant_id, () if only is None else (on_them,))
    statement = select(
        Appliance.id,
        Appliance.name,
        Appliance.state,
        Appliance.drained_at,
        Appliance.last_placed_at,
        Appliance.quarantined_at,
        Appliance.quarantine_reason,
        Appliance.probe_at,
        Appliance.report_id,
        Appliance.site,
        type_coerce(Appliance.labels, Text).label("labels"),
    ).where(*wanted)
    rows = session.execute(statement).all()
    reports = _REPORTS.read(session, {row.id: row.report_id for row in rows})
    views = []
    for row in rows:
        report = reports.get(row.id)
        if report is None:
            continue  # deleted a moment ago
        views.append(
            ApplianceView(
                id=row.id,
                name=row.name,
                state=row.state,
                is_drained=row.drained_at is not None,
                executors=report.executors,
                cpus=report.cpus,
                memory_bytes=report.memory_bytes,
                gpus=report.gpus,
                failure=report.failure,
                quarantine=row.quarantine_reason if row.quarantined_at else "",
                is_trial_due=_is_trial_due(row, report, running.get(row.id, ()), now=now),
                labels=_pairs(row.labels),
                running=running.get(row.id, ()),
                last_used_at=row.last_placed_at,
                site=row.site,
                nvlink_domain=dict(_pairs(row.labels)).get(NVLINK_DOMAIN_LABEL, ""),
            )
        )
    return views


def job_view(
    job: Job | Row[*tuple[Any, ...]],
    models: Iterable[str] = (),
    *,
    bound_to: str | None = None,
    failed_on: frozenset[str] | None = None,
    points: float = 0.0,
) -> JobView:
    """Return a waiting job, or a row with its columns, as placement sees it.

    `models` are those of the tenant's GPUs.
    """
    return JobView(
        id=job.id,
        name=job.name,
        submitted_at=job.submitted_at,
        user_id=job.user_id,
        gpus=job.gpus,
        gpu_memory_bytes=job.gpu_memory_bytes,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        requested=job.appliance_id,
        needs=needs_of(job, is_service=job.kind is JobKind.SERVICE),
        bound_to=bound_to,
        failed_on=failed_on or frozenset(),
        gpu_models=matching_models(job.gpu_models, models) if job.gpu_models else frozenset(),
        labels=_pairs(job.required_labels)
        if isinstance(job.required_labels, str)
        else frozenset(job.required_labels.items()),
        priority=job.priority,
        queue_at=job.queue_at,
        points=points,
        is_preemptible=job.is_preemptible,
        time_limit=timedelta(seconds=job.time_limit_seconds) if job.time_limit_seconds else None,
        array_id=job.array_id,
        array_limit=job.array_limit or 0,
        project_id=job.project_id,
        nodes=job.nodes or 1,
    )


# A command may be long, and placement needs to know only whether there is one.
_EMPTY_LIST = "[]"
_JOB_COLUMNS = (
    Job.id,
    Job.name,
    Job.state,
    Job.reason,
    Job.message,
    Job.submitted_at,
    Job.queue_at,
    Job.user_id,
    Job.project_id,
    Job.gpus,
    Job.gpu_memory_bytes,
    Job.gpu_models,
    Job.cpus,
    Job.memory_bytes,
    type_coerce(Job.required_labels, Text).label("required_labels"),
    Job.appliance_id,
    Job.priority,
    Job.is_preemptible,
    Job.time_limit_seconds,
    Job.array_id,
    Job.array_limit,
    Job.nodes,
    Job.kind,
    Job.working_dir,
    Job.shared_memory_bytes,
    Job.options["stop_grace_seconds"].as_integer().label("stop_grace_seconds"),
    (type_coerce(Job.ports, Text) != _EMPTY_LIST).label("ports"),
    (type_coerce(Job.command, Text) != _EMPTY_LIST).label("command"),
    Job.retry_at,
)


@lru_cache(MAX_REPORTS)
def _pairs(stored: str) -> frozenset[tuple[str, str]]:
    """Return stored labels."""
    return frozenset(msgspec.json.decode(stored, type=dict[str, str]).items())


class _Report(NamedTuple):
    """The part of an appliance's report that placement needs."""

    executors: tuple[str, ...]
    cpus: float
    memory_bytes: int
    gpus: tuple[GPUView, ...]
    failure: str
    can_probe: bool


class _GPU(msgspec.Struct):
    """A GPU of the inventory, without what placement doesn't need: that is most of it."""

    uuid: str
    memory_bytes: int
    model: str = ""


class _Hardware(msgspec.Struct):
    """An inventory, likewise."""

    cpu_count: int = 1
    memory_bytes: int = 0
    gpus: list[_GPU] = []
    executors: list[str] = []
    can_probe: bool = False


def _parse(inventory: str, health: str | None) -> _Report:
    """Return a stored report; an invalid inventory has no executors, so it gets no jobs."""
    try:
        hardware = msgspec.json.decode(inventory, type=_Hardware)
    except msgspec.ValidationError:
        hardware = _Hardware()
    try:
        state = msgspec.json.decode(health, type=ApplianceHealth) if health else None
    except msgspec.ValidationError:
        state = None
    return _report(hardware, state)


def _report(inventory: _Hardware, health: ApplianceHealth | None) -> _Report:
    has_failed = health is not None and health.state is HealthState.FAILED
    return _Report(
        executors=tuple(inventory.executors),
        cpus=float(inventory.cpu_count),
        memory_bytes=inventory.memory_bytes,
        gpus=_gpu_views(inventory, health),
        failure=(_cause(health) or "failed") if has_failed else "",
        can_probe=inventory.can_probe,
    )


def _is_trial_due(
    row: Row[*tuple[Any, ...]],
    report: _Report,
    running: Sequence[RunningJob],
    *,
    now: datetime | None,
) -> bool:
    """Return whether a job may try a quarantined appliance, whose agent can't run probes."""
    if row.quarantined_at is None or report.can_probe or now is None:
        return False
    is_due = row.probe_at is None or row.probe_at <= now
    return is_due and all((job.assigned_at or now) <= row.quarantined_at for job in running)


_REPORTS = ReportCache(_parse)


def _workload(
    session: Session, tenant_id: str, models: Iterable[str]
) -> list[tuple[JobShape, float]]:
    """Return the shapes of the tenant's latest jobs with their numbers."""
    latest = (
        select(Job.gpus, Job.gpu_memory_bytes, Job.gpu_models, Job.cpus, Job.memory_bytes)
        .where(Job.tenant_id == tenant_id)
        .order_by(Job.id.desc())
        .limit(WORKLOAD_JOBS)
    )
    shapes = Counter(
        JobShape(
            gpus=gpus,
            gpu_memory_bytes=gpu_memory_bytes,
            gpu_models=matching_models(words, models),
            cpus=cpus,
            memory_bytes=memory_bytes,
        )
        for gpus, gpu_memory_bytes, words, cpus, memory_bytes in session.execute(latest)
    )
    return [(shape, float(count)) for shape, count in shapes.items()]


def matching_models(words: Sequence[str], models: Iterable[str]) -> frozenset[str]:
    """Return the models that contain one of the words; the words where there is none."""
    lowered = [word.strip().lower() for word in words]
    matching = {model for model in models if any(word in model.lower() for word in lowered)}
    return frozenset(matching or lowered)


def _gpu_views(inventory: _Hardware, health: ApplianceHealth | None) -> tuple[GPUView, ...]:
    """Return the GPUs of the inventory, and missing ones as failed.

    A missing GPU comes back after a repair, so it counts towards the appliance's totals, with the
    memory of the largest GPU that is left.
    """
    reported = {gpu.uuid: gpu for gpu in health.gpus} if health else {}
    listed = {gpu.uuid: (gpu.memory_bytes, gpu.model) for gpu in inventory.gpus}
    largest = max(listed.values(), default=(0, ""))
    missing = [
        uuid
        for uuid, gpu in reported.items()
        if uuid not in listed and gpu.state is HealthState.FAILED
    ]
    views = []
    for uuid, (memory_bytes, model) in (listed | dict.fromkeys(missing, largest)).items():
        gpu_health = reported.get(uuid)
        state = gpu_health.state if gpu_health else HealthState.HEALTHY
        view = GPUView(
            uuid,
            memory_bytes,
            state,
            _cause(gpu_health),
            model=model,
            is_used_outside=_outside(gpu_health),
        )
        views.append(view)
    return tuple(views)


def _outside(health: GPUHealth | None) -> bool:
    """Return whether the agent sees programs on the GPU that belong to no job."""
    findings = health.findings if health else []
    return any(finding.reason == HealthReason.EXTERNAL_PROCESS for finding in findings)


def _cause(health: ApplianceHealth | GPUHealth | None) -> str:
    """Return the name of the first finding that explains the state, if any."""
    findings = health.findings if health else []
    return next(
        (
            advice_for(finding.reason).name
            for finding in findings
            if health and finding.state is health.state
        ),
        "",
    )


def _running_jobs(
    session: Session, tenant_id: str, conditions: Iterable[ColumnElement[bool]]
) -> dict[str, list[RunningJob]]:
    statement = (
        select(
            Attempt.appliance_id,
            Attempt.gpu_uuids,
            Job.id,
            Job.name,
            Job.user_id,
            Job.project_id,
            Job.cpus,
            Job.memory_bytes,
            Job.stop_requested_at,
            Job.priority,
            Job.is_preemptible,
            Job.time_limit_seconds,
            Job.array_id,
            Attempt.stop_reason,
            Attempt.assigned_at,
            Attempt.started_at,
        )
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.tenant_id == tenant_id, Attempt.state.in_(ALLOCATED_STATES), *conditions)
        .order_by(Attempt.assigned_at, Attempt.id)
    )
    jobs: dict[str, list[RunningJob]] = {}
    for row in session.execute(statement):
        jobs.setdefault(row.appliance_id, []).append(
            RunningJob(
                job_id=row.id,
                name=row.name,
                user_id=row.user_id,
                project_id=row.project_id,
                gpu_uuids=row.gpu_uuids,
                cpus=row.cpus,
                memory_bytes=row.memory_bytes,
                priority=row.priority,
                is_preemptible=row.is_preemptible,
                is_stopping=row.stop_requested_at is not None or row.stop_reason is not None,
                array_id=row.array_id,
                assigned_at=row.assigned_at,
                ends_at=_end(row.started_at or row.assigned_at, row.time_limit_seconds),
            )
        )
    return jobs


def _end(start_at: datetime | None, limit_seconds: int) -> datetime | None:
    if start_at is None or not limit_seconds:
        return None
    return start_at + timedelta(seconds=limit_seconds)
