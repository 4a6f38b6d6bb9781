"""The appliances that a tenant can use, own and rented ones, with what runs on them.

Of a rented appliance the tenant sees the resources, what others have of them without whose it is,
and the offer's name: never its own name, labels, site, or the words of its health.

When decisions are written, what other tenants have of appliances is compared with the snapshot. The
caller has locked the appliances, as every transaction does that places jobs on them. So what is
read then stays true until its end.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, Select, or_, select, union_all
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.dispatch.appliance_views import (
    APPLIANCE_COLUMNS,
    Running,
    hosts_of,
    is_host,
    own_views,
    views_of,
)
from jobqueue.dispatch.waiting_jobs import partitions_of
from jobqueue.executors.abilities import Need
from jobqueue.models import Attempt, Job
from jobqueue.partitions.orders import policies_of
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import ApplianceView, GPUView, ReservationView, RunningJob
from jobqueue.reservations.views import PROVIDER, booked_views, read_grants, reservation_views
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, PartitionMode
from tenants.models import Appliance
from tenants.models.rentals import Grant, OfferedAppliance

_MISSING: Mapping[Need, str] = {
    Need.DATASETS: "fetches no datasets",
    Need.OUTPUTS: "keeps no results",
}


def tenant_views(
    session: Session,
    tenant_id: str,
    *,
    only: Collection[str] | None = None,
    now: datetime | None = None,
) -> list[ApplianceView]:
    """Return the tenant's appliances in service, or only those with some ids or names.

    Fenced ones are left out: they get no updates; so are the nodes of clusters: their connector
    stands for them. Without `now`, no trial is due on quarantined ones.
    """
    on_them: list[ColumnElement[bool]] = []
    if only is not None:
        is_named = or_(Appliance.id.in_(only), Appliance.name.in_(only))
        ids = select(Appliance.id).where(*hosts_of(tenant_id), is_named)
        on_them = [Attempt.appliance_id.in_(ids)]
    running = _running_jobs(session, tenant_id, on_them, now=now)
    return own_views(session, tenant_id, running, only=only, now=now)


def usable_views(session: Session, tenant_id: str, *, now: datetime | None) -> list[ApplianceView]:
    """Return the tenant's own appliances, and those that it rents or has rented for running jobs.

    A tenant without contracts pays one statement for it, and one for bookings of others.
    """
    running = _running_jobs(session, tenant_id, now=now)
    own = own_views(session, tenant_id, running, now=now)
    grants = read_grants(session, tenant_id, now=now)
    in_use = {
        ident: jobs[0].contract_id
        for ident, jobs in running.items()
        if any(job.contract_id for job in jobs)
    }
    if not grants and not in_use:
        return own
    return [*own, *_rented(session, tenant_id, grants, running, in_use)]


def reservations_of_others(
    session: Session, tenant_id: str, views: Iterable[ApplianceView], *, now: datetime
) -> list[ReservationView]:
    """Return what others keep of a tenant's appliances and of those it rents, without its names.

    That is what customers have booked, and what providers keep for themselves.
    """
    providers = {view.rental.provider_id for view in views if view.rental}
    booked = booked_views(session, {tenant_id, *providers}, now=now, customer_id=tenant_id)
    return booked + [
        replace(reservation, name="", project="", holder=PROVIDER)
        for provider_id in sorted(providers)
        for reservation in reservation_views(session, provider_id, now=now)
    ]


def occupants_of(views: Iterable[ApplianceView]) -> dict[str, frozenset[str]]:
    """Return the attempts of other tenants on appliances, by appliance."""
    occupants = {
        view.id: frozenset(running.job_id for running in view.running if running.is_foreign)
        for view in views
    }
    return {ident: attempts for ident, attempts in occupants.items() if attempts}


def newly_occupied(
    session: Session,
    tenant_id: str,
    appliance_ids: Collection[str],
    occupants: Mapping[str, frozenset[str]],
) -> set[str]:
    """Return the appliances with attempts of other tenants that a snapshot doesn't have."""
    occupied: set[str] = set()
    for ids in chunked(sorted(appliance_ids)):
        there = select(Attempt.appliance_id, Attempt.id).where(
            Attempt.appliance_id.in_(ids),
            Attempt.state.in_(ALLOCATED_STATES),
            Attempt.tenant_id != tenant_id,
        )
        occupied.update(
            appliance_id
            for appliance_id, attempt_id in session.execute(there)
            if attempt_id not in occupants.get(appliance_id, ())
        )
    return occupied


def no_longer_rented(
    session: Session, tenant_id: str, assigned: Mapping[str, RentalView | None]
) -> set[str]:
    """Return the rented appliances whose grant has ended, closed or changed its price.

    One that ends at this moment isn't waited for: its attempts are stopped anyway.

    Args:
        session: the session.
        tenant_id: the customer.
        assigned: appliances, and how they were rented; None for own ones, which are left out.
    """
    rented = {ident: rental for ident, rental in assigned.items() if rental is not None}
    valid: set[str] = set()
    for ids in chunked(sorted(rented)):
        granted = (
            select(OfferedAppliance.appliance_id, Grant.contract_id, Grant.price)
            .join(Grant, Grant.offer_id == OfferedAppliance.offer_id)
            .where(
                OfferedAppliance.appliance_id.in_(ids), Grant.tenant_id == tenant_id, Grant.is_open
            )
        )
        valid.update(
            ident
            for ident, contract_id, price in session.execute(granted)
            if (contract_id, price) == (rented[ident].contract_id, rented[ident].price)
        )
    return rented.keys() - valid


def _running_jobs(
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
            running = _own_job(row, now, node=nodes.get(row.node_id, ""), partitions=partitions)
        else:
            is_stopping, ends_at = _is_stopping(row), _end(_limit_from(row, now), row)
            running = _foreign_job(row, is_stopping=is_stopping, ends_at=ends_at)
        jobs.setdefault(row.appliance_id, []).append(running)
    return jobs


def _jobs_of_others(session: Session, tenant_id: str, appliance_ids: Collection[str]) -> Running:
    """Return what other tenants run on appliances, without when it ends."""
    jobs: dict[str, list[RunningJob]] = {}
    for ids in chunked(sorted(appliance_ids)):
        there = Attempt.appliance_id.in_(ids)
        for row in session.execute(_allocated(there, Attempt.tenant_id != tenant_id)):
            jobs.setdefault(row.appliance_id, []).append(_foreign_job(row))
    return jobs


def _rented(
    session: Session,
    tenant_id: str,
    grants: Mapping[str, RentalView],
    running: Running,
    in_use: Mapping[str, str],
) -> list[ApplianceView]:
    rentals: dict[str, RentalView] = {}
    for offer_ids in chunked(sorted(grants)):
        offered = select(OfferedAppliance.appliance_id, OfferedAppliance.offer_id).where(
            OfferedAppliance.offer_id.in_(offer_ids)
        )
        rentals |= {ident: grants[offer_id] for ident, offer_id in session.execute(offered)}
    rows: list[Row[*tuple[Any, ...]]] = []
    for ids in chunked(sorted({*rentals, *in_use})):
        wanted = select(*APPLIANCE_COLUMNS).where(Appliance.id.in_(ids), *is_host())
        rows += session.execute(wanted.where(Appliance.tenant_id != tenant_id)).all()
    policies = {ident: policies_of(session, ident) for ident in {row.tenant_id for row in rows}}
    others = _jobs_of_others(session, tenant_id, [row.id for row in rows])
    jobs = {row.id: [*running.get(row.id, ()), *others.get(row.id, ())] for row in rows}
    providers = {row.id: row.tenant_id for row in rows}
    rented = []
    for view in views_of(session, rows, jobs, policies, now=None):
        rental = rentals.get(view.id)
        if rental is None or rental.provider_id != providers[view.id]:
            # Its contract has ended, or its provider has taken it out of the offer.
            rental = RentalView(
                contract_id=in_use.get(view.id, ""),
                provider_id=providers[view.id],
                offer_name="",
                is_open=False,
            )
        if view.cluster is None:
            rented.append(_seen_by_customer(view, rental))
    return rented


def _seen_by_customer(view: ApplianceView, rental: RentalView) -> ApplianceView:
    gpus = [_as_rented(gpu) for gpu in view.gpus if rental.allows_slices or not _is_mig(gpu)]
    cut = {gpu.uuid for gpu in gpus if gpu.kind}
    return replace(
        view,
        name=rental.title,
        gpus=gpus,
        failure="failed" if view.failure else "",
        quarantine="its provider checks it" if view.quarantine else "",
        labels=frozenset(),
        running=[_on_rented(job, cut) for job in view.running],
        site="",
        nvlink_domain="",
        missing={need: _MISSING.get(need, "does not offer that") for need in view.missing},
        rental=rental,
    )


def _is_mig(gpu: GPUView) -> bool:
    return gpu.kind is not None and gpu.kind.mode is PartitionMode.MIG


def _as_rented(gpu: GPUView) -> GPUView:
    """Return a GPU as others may have it: only MIG separates tenants, else it is whole."""
    return replace(gpu, kind=gpu.kind if _is_mig(gpu) else None, failure="")


def _on_rented(job: RunningJob, cut: Collection[str]) -> RunningJob:
    """Return a running job; of a GPU that others have whole, it just takes a share."""
    if job.gpu_slice is None or job.gpu_slice.gpu_uuid in cut:
        return job
    return msgspec.structs.replace(job, gpu_slice=None)


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


def _own_job(
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


def _foreign_job(
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


def _end(start_at: datetime | None, row: Row[*tuple[Any, ...]]) -> datetime | None:
    if start_at is None or not row.time_limit_seconds:
        return None
    return start_at + timedelta(seconds=row.time_limit_seconds)
