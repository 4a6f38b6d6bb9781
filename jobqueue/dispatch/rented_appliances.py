"""The appliances that a tenant rents, as placement sees them, and as they are when it writes.

Of a rented appliance the tenant sees the resources, what others have of them without whose it is,
and the offer's name: never its own name, labels, site, or the words of its health.

When decisions are written, what other tenants have of appliances is compared with the snapshot. The
caller has locked the appliances, as every transaction does that places jobs on them. So what is
read then stays true until its end.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.dispatch.appliance_views import APPLIANCE_COLUMNS, is_host, own_views, views_of
from jobqueue.dispatch.running_jobs import Running, jobs_of_others, running_jobs
from jobqueue.executors.abilities import Need
from jobqueue.models import Attempt
from jobqueue.partitions.orders import policies_of
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import ApplianceView, GPUView, ReservationView, RunningJob
from jobqueue.reservations.views import PROVIDER, booked_views, read_grants, reservation_views
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import PartitionMode
from tenants.models import Appliance
from tenants.models.rentals import Grant, OfferedAppliance

_MISSING: Mapping[Need, str] = {
    Need.DATASETS: "fetches no datasets",
    Need.OUTPUTS: "keeps no results",
}


def usable_views(session: Session, tenant_id: str, *, now: datetime | None) -> list[ApplianceView]:
    """Return the tenant's own appliances, and those that it rents or has rented for running jobs.

    A tenant without contracts pays one statement for it, and one for bookings of others.
    """
    running = running_jobs(session, tenant_id, now=now)
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
    others = jobs_of_others(session, tenant_id, [row.id for row in rows])
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
