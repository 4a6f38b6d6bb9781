"""Explain from the database why a job is pending, where a new one would go, and when they start.

Now and then, the expected starts of the jobs at the front of a queue are stored. When such a job
has started, the forecast is settled: by how much later or earlier it was. The errors of a tenant
are shown beside each new forecast, so that users know what it is worth.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_rows
from core.ids import new_id
from jobqueue.dispatch.appliance_views import matching_models, models_of
from jobqueue.dispatch.snapshot import (
    cached_copies,
    placement_order,
    queue_order,
    read_snapshot,
    with_jobs,
)
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.dispatch.waiting_jobs import job_view, partitions_of, slice_need
from jobqueue.executors.abilities import Need, needs_of
from jobqueue.fairshare.models import StartForecast
from jobqueue.fairshare.points import QueueOrder
from jobqueue.jobs.relations import parse_array
from jobqueue.jobs.settings import settings_of
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.placement.explanation import Explanation, ForecastErrors, explain_jobs
from jobqueue.placement.filters import FEASIBLE, FREE, Filter, apply_filters
from jobqueue.placement.plan import Planner
from jobqueue.placement.plan_state import sized
from jobqueue.placement.views import JobView, Snapshot
from jobqueue.projects.models import Project
from jobqueue.queue.service import checked_job, get_job
from jobqueue.states import WAITING, DependencyCondition
from protocol.job_spec import JobKind, JobRequest
from tenants.permissions import Permission
from tenants.scope import Scope

# Jobs at the front of the queue that an explanation places first; of a longer queue, the rest
# between them and the job is left out.
MAX_BEFORE = 1000
# Of a queue, so many jobs at its front get forecasts: at most one in each interval.
MAX_FRONT = 100
MAX_MADE = 20
INTERVAL = timedelta(hours=1)
SHOWN_FOR = timedelta(days=30)
# The latest ones of each tenant are stored.
MAX_STORED = 5000


def explain_job(
    session: Session, scope: Scope, job_id: str, *, now: datetime
) -> Explanation | None:
    """Return why a job waits; None if it doesn't, or waits for other jobs or a retry."""
    job = get_job(session, scope, job_id)
    if job.state not in WAITING:
        return None
    snapshot = read_snapshot(session, job.tenant_id, now=now)
    order = placement_order(session, job.tenant_id, snapshot)
    # A gang waits as its first member.
    gang_id = job.array_id if job.nodes > 1 else None
    waiting_id = gang_id if gang_id is not None and gang_id in order.ids else job.id
    if waiting_id not in order.ids:
        return None
    place = order.ids.index(waiting_id)
    ids = [*order.ids[: min(place, MAX_BEFORE)], waiting_id]
    snapshot = with_jobs(session, job.tenant_id, snapshot, ids, order)
    explanation = explain_jobs(snapshot, [waiting_id]).get(waiting_id)
    if explanation is None:
        return None  # it was placed meanwhile
    return replace(
        explanation,
        position=place + 1,
        queue_length=len(order.ids),
        **_points(order, waiting_id),
        past_errors=forecast_errors(session, job.tenant_id, now=now),
    )


def explain_new(
    session: Session, scope: Scope, jobs: Sequence[Job], *, now: datetime
) -> dict[str, Explanation]:
    """Return where new jobs would go and when, by id; they needn't be in the database."""
    tenant_id = scope.require_tenant()
    new = {job.id: job for job in jobs}
    snapshot = read_snapshot(session, tenant_id, now=now)
    order = queue_order(session, tenant_id, snapshot, new=jobs)
    ids = [ident for ident in order.ids if ident not in new]
    snapshot = with_jobs(session, tenant_id, snapshot, ids[:MAX_BEFORE], order)
    models = models_of(snapshot.appliances)
    views = [_new_view(job, models, order.points.get(job.id, 0.0)) for job in jobs]
    copies = {**snapshot.copies, **cached_copies(session, tenant_id, views)}
    queue = replace(snapshot, jobs=[*snapshot.jobs, *views], copies=copies)
    explanations = explain_jobs(queue, list(new))
    unread = len(ids) - len(snapshot.jobs)
    errors = forecast_errors(session, tenant_id, now=now)
    last = snapshot.jobs[-1].order if unread and snapshot.jobs else None
    return {
        view.id: replace(
            explanations[view.id],
            position=explanations[view.id].position + (unread if last and view.order > last else 0),
            queue_length=len(ids) + len(new),
            assumption=_assumption(new[view.id]),
            past_errors=errors,
            **_points(order, view.id),
        )
        for view in views
    }


def _new_view(job: Job, models: Collection[str], points: float) -> JobView:
    """Return a new job, or a whole gang, as placement sees it."""
    view = job_view(job, models, points=points)
    members = [job.id, *(f"{job.id}/{number}" for number in range(1, view.nodes))]
    return msgspec.structs.replace(view, members=members)


def _points(order: QueueOrder, job_id: str) -> dict[str, Any]:
    """Return the fields of an explanation about the points of a job."""
    if not order.points:
        return {}
    place = order.ids.index(job_id)
    rank = order.ranks[place] if order.ranks else None
    return {"parts": order.parts(place), "rank": rank, "user_count": order.user_count}


def try_job(session: Session, scope: Scope, request: JobRequest, *, now: datetime) -> Explanation:
    """Return where a new job would go and when, without submitting it.

    Raises:
        InvalidInputError: as `submit_job` does.
    """
    scope.require(Permission.SUBMIT_JOBS)
    job, _ = checked_job(session, scope, request, now=now)
    job.id = new_id()
    job.array_size = len(parse_array(request.array).indexes) if request.array else request.instances
    return explain_new(session, scope, [job], now=now)[job.id]


def _assumption(job: Job) -> str:
    ok = DependencyCondition.OK.value
    states = [
        f"{dependency['name']!r} has {'succeeded' if dependency['condition'] == ok else 'ended'}"
        for dependency in job.dependencies
    ]
    parts = [f"Assumes that {' and '.join(states)}."] if states else []
    if (job.array_size or 0) > 1 and (job.nodes or 1) == 1:
        unit = "instances" if job.kind is JobKind.SERVICE else "tasks"
        parts.append(f"This is for the first of {job.array_size} {unit}.")
    return " ".join(parts)


def appliance_problems(
    session: Session, scope: Scope, appliance: str, request: JobRequest, *, now: datetime
) -> tuple[list[str], list[str]]:
    """Return why an appliance, by id or name, can't run a job, and what it must wait for there.

    Only the resources of the request count; the rest of it needn't be valid.
    """
    scope.require(Permission.SUBMIT_JOBS)
    views = tenant_views(session, scope.require_tenant(), only=[appliance])
    if not views:
        return [f"There is no appliance {appliance!r}."], []
    job = view_of(scope, request, models_of(views[:1]), now=now)
    isolation = settings_of(session, scope.require_tenant()).isolation
    snapshot = Snapshot(now=now, appliances=views[:1], jobs=(), isolation=isolation)
    planner = Planner(snapshot)
    ledger = planner.ledger
    shape = sized(ledger, job).shape
    feasible, never = apply_filters(filters_for(request), ledger, shape, np.ones(1, np.bool_))
    _, busy = apply_filters(FREE, ledger, shape, feasible)
    return [str(rejection) for rejection in never], [str(rejection) for rejection in busy]


def filters_for(request: JobRequest) -> Sequence[Filter]:
    """Return the filters of feasible appliances for a request, which may lack its image yet."""
    if request.image:
        return FEASIBLE
    return [each for each in FEASIBLE if each.code != "cluster_images"]


def view_of(
    scope: Scope,
    request: JobRequest,
    models: Collection[str],
    *,
    now: datetime,
    project: Project | None = None,
) -> JobView:
    """Return a request as placement sees it, as far as resources and owners go.

    `models` are those of the GPUs that it may get.
    """
    need = slice_need(request)
    words = request.gpu_models
    needs = needs_of(
        request, is_service=request.kind is JobKind.SERVICE, has_slice=need is not None
    )
    return JobView(
        id="",
        name=request.name,
        submitted_at=now,
        user_id=scope.user_id,
        project_id=None if project is None else project.id,
        gpus=1 if need else request.gpus,
        slice_need=need,
        gpu_memory_bytes=0 if need else request.gpu_memory_bytes,
        gpu_models=matching_models(words, models) if words else frozenset(),
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
        labels=frozenset(request.required_labels.items()),
        # Its image may not be chosen yet.
        needs=needs - {Need.NO_IMAGE},
        partitions=partitions_of(request.cluster_options),
    )


def tenants_with_forecasts(session: Session) -> Sequence[str]:
    """Return the tenants with jobs that wait, or forecasts that are not settled."""
    waiting = select(Job.tenant_id).where(Job.state.in_(WAITING))
    unsettled = select(StartForecast.tenant_id).where(StartForecast.late_seconds.is_(None))
    return session.scalars(waiting.union(unsettled)).all()


def make_forecasts(session: Session, tenant_id: str, *, now: datetime) -> list[StartForecast]:
    """Return when jobs at the front of a tenant's queue are expected to start, to be stored."""
    snapshot = read_snapshot(session, tenant_id, now=now)
    order = queue_order(session, tenant_id, snapshot)
    front = order.ids[:MAX_FRONT]
    recent = select(StartForecast.job_id).where(
        StartForecast.job_id.in_(front), StartForecast.made_at > now - INTERVAL
    )
    fresh = set(session.scalars(recent))
    due = [ident for ident in front if ident not in fresh][:MAX_MADE]
    snapshot = with_jobs(session, tenant_id, snapshot, front, order)
    expected = {
        ident: explanation.expected_start_at
        for ident, explanation in explain_jobs(snapshot, due).items()
    }
    return [
        StartForecast(tenant_id=tenant_id, job_id=ident, made_at=now, expected_start_at=at)
        for ident, at in expected.items()
        if at is not None and at > now
    ]


def settle_forecasts(session: Session, tenant_id: str, *, now: datetime) -> int:
    """Compare forecasts with what happened; return how many were settled.

    Those of jobs that will never start are deleted, as are those that are too old or too many.
    """
    unsettled = (StartForecast.tenant_id == tenant_id, StartForecast.late_seconds.is_(None))
    started = (
        select(
            StartForecast.id,
            StartForecast.expected_start_at,
            func.min(CHARGED_FROM).label("started_at"),
        )
        .join(Attempt, Attempt.job_id == StartForecast.job_id)
        .where(*unsettled, StartForecast.made_at <= CHARGED_FROM)
        .group_by(StartForecast.id, StartForecast.expected_start_at)
    )
    settled = [
        {
            "forecast_id": row.id,
            "late": (row.started_at - row.expected_start_at).total_seconds(),
        }
        for row in session.execute(started)
    ]
    if settled:
        statement = update(StartForecast).where(StartForecast.id == bindparam("forecast_id"))
        session.connection().execute(statement.values(late_seconds=bindparam("late")), settled)
    still_waiting = select(Job.id).where(Job.tenant_id == tenant_id, Job.state.in_(WAITING))
    never = delete(StartForecast).where(*unsettled, StartForecast.job_id.not_in(still_waiting))
    changed_rows(session, never, synchronize_session=False)
    _drop_oldest(session, tenant_id, now=now)
    return len(settled)


def forecast_errors(session: Session, tenant_id: str, *, now: datetime) -> ForecastErrors | None:
    """Return how wrong the tenant's forecasts of the last 30 days were; None if none is settled."""
    late = select(StartForecast.late_seconds).where(
        StartForecast.tenant_id == tenant_id,
        StartForecast.made_at > now - SHOWN_FOR,
        StartForecast.late_seconds.is_not(None),
    )
    errors = np.abs(np.array(session.scalars(late).all(), np.float64))
    if not errors.size:
        return None
    median, p90 = np.percentile(errors, [50, 90]).tolist()
    return ForecastErrors(count=errors.size, median_seconds=median, p90_seconds=p90)


def _drop_oldest(session: Session, tenant_id: str, *, now: datetime) -> None:
    of_tenant = StartForecast.tenant_id == tenant_id
    newest = select(StartForecast.made_at).where(of_tenant)
    last = session.scalar(newest.order_by(StartForecast.made_at.desc()).offset(MAX_STORED).limit(1))
    before = max(now - SHOWN_FOR, last) if last is not None else now - SHOWN_FOR
    old = delete(StartForecast).where(of_tenant, StartForecast.made_at <= before)
    changed_rows(session, old, synchronize_session=False)
