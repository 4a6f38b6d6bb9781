"""The waiting jobs of a tenant as placement sees them, from the database.

A queue of any length is read page by page. A gang is in it once, by its first member.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, Text, and_, or_, select, type_coerce
from sqlalchemy.orm import Session

from jobqueue.dispatch.appliance_views import label_pairs, matching_models
from jobqueue.executors.abilities import needs_of
from jobqueue.jobs.relations import is_blocked
from jobqueue.models import Attempt, Job
from jobqueue.placement.rentals import rental_need
from jobqueue.placement.slices import SliceNeed
from jobqueue.placement.views import JobView
from jobqueue.states import WAITING, AttemptState, JobState, Reason
from protocol.job_spec import JobKind, JobRequest, OnMemberLoss

# A job goes elsewhere first than where it has failed within this time.
FAILED_WITHIN = timedelta(hours=1)


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
    hidden, _ = gang_members(session, tenant_id, now=now)
    return [ident for ident in ids if ident not in hidden] if hidden else ids


def gang_members(session: Session, tenant_id: str, *, now: datetime) -> tuple[set[str], set[str]]:
    """Return the waiting members of gangs that aren't placed by themselves, and those that are.

    The former start with the first member; or when all have stopped, if the gang starts anew. The
    latter were lost from a gang that goes on.
    """
    statement = select(Job).where(*is_ready(tenant_id, now=now), Job.nodes > 1)
    members = session.execute(
        statement.with_only_columns(Job.id, Job.array_id, Job.nodes, Job.on_member_loss)
    ).all()
    sizes = Counter(member.array_id for member in members)
    hidden, alone = set[str](), set[str]()
    for member in members:
        if sizes[member.array_id] == member.nodes:
            hidden |= {member.id} - {member.array_id}
        elif member.on_member_loss == OnMemberLoss.CONTINUE:
            alone.add(member.id)
        else:
            hidden.add(member.id)
    return hidden, alone


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
    places = [member.view.bound_to for member in members if member.view.bound_to]
    places = places if len(places) == len(ids) else []
    view = msgspec.structs.replace(job.view, members=ids, member_places=places)
    return job._replace(view=view, members=members)


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
            *_JOB_COLUMNS,
            Attempt.id.label("attempt_id"),
            Attempt.appliance_id.label("bound_to"),
            Attempt.placement["data_wait_since"].as_string().label("data_wait_since"),
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
                data_wait_since=row.data_wait_since,
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


def job_view(
    job: Job | Row[*tuple[Any, ...]],
    models: Iterable[str] = (),
    *,
    bound_to: str | None = None,
    data_wait_since: str | None = None,
    failed_on: frozenset[str] | None = None,
    points: float = 0.0,
) -> JobView:
    """Return a waiting job, or a row with its columns, as placement sees it.

    `models` are those of the tenant's GPUs.
    """
    need = slice_need(job)
    time_limit = timedelta(seconds=job.time_limit_seconds) if job.time_limit_seconds else None
    return JobView(
        id=job.id,
        name=job.name,
        submitted_at=job.submitted_at,
        user_id=job.user_id,
        gpus=1 if need else job.gpus,
        slice_need=need,
        gpu_memory_bytes=0 if need else job.gpu_memory_bytes,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        requested=job.appliance_id,
        needs=needs_of(job, is_service=job.kind is JobKind.SERVICE, has_slice=need is not None),
        bound_to=bound_to,
        data_wait_since=datetime.fromisoformat(data_wait_since) if data_wait_since else None,
        failed_on=failed_on or frozenset(),
        gpu_models=matching_models(job.gpu_models, models) if job.gpu_models else frozenset(),
        labels=label_pairs(job.required_labels)
        if isinstance(job.required_labels, str)
        else frozenset(job.required_labels.items()),
        priority=job.priority,
        queue_at=job.queue_at,
        points=points,
        is_preemptible=job.is_preemptible,
        time_limit=time_limit,
        array_id=job.array_id,
        array_limit=job.array_limit or 0,
        project_id=job.project_id,
        nodes=job.nodes or 1,
        datasets=versions_of(job.datasets or ()),
        partitions=partitions_of(job.cluster_options or {}),
        rental=rental_need(job.max_gpu_hour_price, job.rental or {}, time_limit),
    )


def versions_of(datasets: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Return the versions that a job reads, each once, with their bytes, of what it stores."""
    return tuple({stored["version_id"]: stored["total_bytes"] for stored in datasets}.items())


def slice_need(job: Job | Row[*tuple[Any, ...]] | JobRequest) -> SliceNeed | None:
    """Return the part of a GPU that a job needs; None for whole GPUs, or none."""
    if job.gpus or not (job.gpu_slice or job.gpu_memory_bytes or job.gpu_compute):
        return None
    return SliceNeed(job.gpu_slice, job.gpu_memory_bytes, job.gpu_compute)


# A command may be long, and placement needs to know only whether there is one.
_EMPTY_LIST = "[]"

SLICE_COLUMNS = (Job.gpus, Job.gpu_slice, Job.gpu_memory_bytes, Job.gpu_compute)
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
    *SLICE_COLUMNS,
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
    Job.mounts,
    (Job.image != "").label("image"),
    Job.options["datasets"].label("datasets"),
    Job.options["cluster_options"].label("cluster_options"),
    Job.options["max_gpu_hour_price"].as_string().label("max_gpu_hour_price"),
    Job.options["rental"].label("rental"),
    Job.options["stop_grace_seconds"].as_integer().label("stop_grace_seconds"),
    Job.options["framework"].as_string().label("framework"),
    Job.options["network"].as_string().label("network"),
    Job.options["uses_rdma"].as_boolean().label("uses_rdma"),
    Job.options["outputs"].as_string().is_not(None).label("outputs"),
    (type_coerce(Job.ports, Text) != _EMPTY_LIST).label("ports"),
    (type_coerce(Job.command, Text) != _EMPTY_LIST).label("command"),
    Job.retry_at,
)


def partitions_of(cluster_options: Mapping[str, str]) -> frozenset[str]:
    """Return the partitions of Slurm that a job may go to; empty for the default."""
    names = cluster_options.get("slurm.partition", "").split(",")
    return frozenset(filter(None, map(str.strip, names)))
