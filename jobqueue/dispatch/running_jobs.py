"""What runs on appliances, as placement sees it: a tenant's own attempts, and those of others."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, Select, select, union_all
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import RunningJob
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import WHOLE_GPU, GPUSlice
from tenants.models import Appliance

# By appliance.
Running = Mapping[str, list[RunningJob]]


def running_jobs(
    session: Session,
    tenant_id: str,
    conditions: Iterable[ColumnElement[bool]] = (),
    *,
    now: datetime | None,
) -> Running:
    """Return a tenant's jobs with resources, and those of others on appliances that it rents out.

    Args:
        session: the session.
        tenant_id: the tenant.
        conditions: on the attempts.
        now: the time; None for views that nobody plans with.
    """
    # Two statements in one, each with an index of its own.
    both = union_all(
        _allocated(Attempt.tenant_id == tenant_id, *conditions),
        _allocated(Attempt.provider_id == tenant_id, *conditions),
    ).order_by("assigned_at", "attempt_id")
    rows = session.execute(both).all()
    nodes = _node_names(session, {row.node_id for row in rows if row.node_id})
    partitions = _partitions(session, {row.id for row in rows if row.is_on_cluster})
    jobs: dict[str, list[RunningJob]] = {}
    for row in rows:
        if row.tenant_id == tenant_id:
            running = _own(row, now, node=nodes.get(row.node_id, ""), partitions=partitions)
        else:
            is_stopping, ends_at = _is_stopping(row), _end(_limit_from(row, now), row)
            running = _foreign(row, is_stopping=is_stopping, ends_at=ends_at)
        jobs.setdefault(row.appliance_id, []).append(running)
    return jobs


def jobs_of_others(session: Session, tenant_id: str, appliance_ids: Collection[str]) -> Running:
    """Return what other tenants run on appliances, without when it ends."""
    jobs: dict[str, list[RunningJob]] = {}
    for ids in chunked(sorted(appliance_ids)):
        there = Attempt.appliance_id.in_(ids)
        for row in session.execute(_allocated(there, Attempt.tenant_id != tenant_id)):
            jobs.setdefault(row.appliance_id, []).append(_foreign(row))
    return jobs


def _allocated(*conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Attempt.id.label("attempt_id"),
            Attempt.tenant_id,
            Attempt.contract_id,
            Attempt.appliance_id,
            Attempt.gpu_uuids,
            Attempt.gpu_slice,
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
            Attempt.assigned_at.label("assigned_at"),
            Attempt.started_at,
            Attempt.staging,
            Attempt.is_on_cluster,
            Attempt.node_id,
        )
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state.in_(ALLOCATED_STATES), *conditions)
    )


def _own(
    row: Row[*tuple[Any, ...]],
    now: datetime | None,
    *,
    node: str,
    partitions: Mapping[str, frozenset[str]],
) -> RunningJob:
    return RunningJob(
        job_id=row.id,
        name=row.name,
        user_id=row.user_id,
        project_id=row.project_id,
        gpu_uuids=row.gpu_uuids,
        gpu_milli=row.gpu_slice["share_milli"] if row.gpu_slice else WHOLE_GPU,
        gpu_slice=msgspec.convert(row.gpu_slice, GPUSlice | None),
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        priority=row.priority,
        is_preemptible=row.is_preemptible,
        is_stopping=_is_stopping(row),
        array_id=row.array_id,
        assigned_at=row.assigned_at,
        started_at=row.started_at,
        ends_at=_end(_limit_from(row, now), row),
        node=node,
        partitions=partitions.get(row.id, frozenset()),
        contract_id=row.contract_id or "",
    )


def _foreign(
    row: Row[*tuple[Any, ...]], *, is_stopping: bool = False, ends_at: datetime | None = None
) -> RunningJob:
    """Return what another tenant's attempt takes, and whose it is, which reservations ask."""
    return RunningJob(
        job_id=row.attempt_id,
        user_id=row.user_id,
        project_id=row.project_id,
        gpu_uuids=row.gpu_uuids,
        gpu_milli=row.gpu_slice["share_milli"] if row.gpu_slice else WHOLE_GPU,
        gpu_slice=msgspec.convert(row.gpu_slice, GPUSlice | None),
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        is_stopping=is_stopping,
        assigned_at=row.assigned_at,
        ends_at=ends_at,
        is_foreign=True,
    )


def _is_stopping(row: Row[*tuple[Any, ...]]) -> bool:
    return row.stop_requested_at is not None or row.stop_reason is not None


def _limit_from(row: Row[*tuple[Any, ...]], now: datetime | None) -> datetime | None:
    """Return when the time limit of a job begins.

    It is later for one that still waits for its data, or in the queue of a cluster.
    """
    waits = row.staging or row.is_on_cluster
    begin: datetime | None = row.started_at or (now if waits else None) or row.assigned_at
    return begin


def _node_names(session: Session, node_ids: Collection[str]) -> dict[str, str]:
    """Return the names that clusters give to their nodes, by id."""
    names: dict[str, str] = {}
    for ids in chunked(sorted(node_ids)):
        hostname = Appliance.inventory["hostname"].as_string()
        rows = session.execute(select(Appliance.id, hostname).where(Appliance.id.in_(ids)))
        names.update((ident, name or "") for ident, name in rows)
    return names


def _partitions(session: Session, job_ids: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the partitions of Slurm that jobs name, by job, where they name any."""
    named = {}
    for ids in chunked(sorted(job_ids)):
        options = Job.options["cluster_options"]
        for ident, stored in session.execute(select(Job.id, options).where(Job.id.in_(ids))):
            if partitions := partitions_of(stored or {}):
                named[ident] = partitions
    return named


def partitions_of(cluster_options: Mapping[str, str]) -> frozenset[str]:
    """Return the partitions of Slurm that a job may go to; empty for the default."""
    names = cluster_options.get("slurm.partition", "").split(",")
    return frozenset(filter(None, map(str.strip, names)))


def _end(start_at: datetime | None, row: Row[*tuple[Any, ...]]) -> datetime | None:
    if start_at is None or not row.time_limit_seconds:
        return None
    return start_at + timedelta(seconds=row.time_limit_seconds)
