"""Which appliances offers cover now, and what is free there: rows of `OfferedAppliance`.

An offer covers appliances while it is published, and as long as contracts use it. An appliance is
in one offer: the first that covers it keeps it. Covered appliances run jobs of an agent of their
own: clusters, their nodes and hosts without an agent can't be offered.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing, chunked
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.models import Attempt
from jobqueue.placement.views import ApplianceView, ReservationView
from jobqueue.reservations.views import booked_views, reservation_views
from jobqueue.states import ALLOCATED_STATES
from marketplace.accounts import account_of
from marketplace.models import Contract, Offer
from marketplace.offers.calendar import is_open, windows_of
from marketplace.states import USABLE, AccountState, OfferState
from marketplace.terms import Terms
from marketplace.verification.gate import begin, kept_out
from protocol.gpu_slices import WHOLE_GPU
from tenants.models import Appliance, ApplianceState
from tenants.models.appliances import MAX_MODEL_LENGTH
from tenants.models.rentals import OfferedAppliance

Row = dict[str, Any]


def covering_offers(session: Session, provider_id: str) -> list[Offer]:
    """Return the offers of a provider that cover appliances now, the oldest first."""
    in_use = select(Contract.offer_id).where(
        Contract.provider_id == provider_id, Contract.state.in_(USABLE)
    )
    statement = select(Offer).where(
        Offer.tenant_id == provider_id,
        or_(Offer.state == OfferState.PUBLISHED, Offer.id.in_(in_use)),
    )
    return list(session.scalars(statement.order_by(Offer.created_at, Offer.id)))


def covered_ids(offer: Offer, views: Iterable[ApplianceView]) -> list[str]:
    """Return the ids of those appliances of its provider that an offer covers."""
    labels, named = frozenset(offer.labels.items()), frozenset(offer.appliance_ids)
    return [view.id for view in views if view.id in named or (labels and labels <= view.labels)]


def offerable_views(
    session: Session, provider_id: str, *, now: datetime | None = None
) -> list[ApplianceView]:
    """Return the appliances of a tenant that may be in an offer, as placement sees them."""
    return [
        view
        for view in tenant_views(session, provider_id, now=now)
        if view.cluster is None and view.gpus and view.executors
    ]


def refresh_provider(
    session: Session, provider_id: str, *, now: datetime, requires_verification: bool = False
) -> int:
    """Write which appliances of a provider are on offer, and what is free; return their number.

    What did not change is not written, so that a large fleet costs little each minute. Appliances
    that failed their verification are left out; where it is required, also those that did not pass.
    """
    covered = _rows(session, provider_id, now=now)
    left_out = kept_out(session, covered, requires=requires_verification, now=now)
    rows = {ident: row for ident, row in covered.items() if ident not in left_out}
    begin_writing(session)
    begin(session, provider_id, covered, now=now)
    columns = OfferedAppliance.__table__.c
    own = select(*columns).where(OfferedAppliance.provider_id == provider_id)
    stored = {row.appliance_id: row for row in session.execute(own)}
    # What was published meanwhile stays for the next time.
    gone = [ident for ident, row in stored.items() if ident not in rows and row.refreshed_at <= now]
    for part in chunked(gone):
        session.execute(
            delete(OfferedAppliance).where(OfferedAppliance.appliance_id.in_(part)),
            execution_options={"synchronize_session": False},
        )
    added = [row for ident, row in rows.items() if ident not in stored]
    changed = [
        row
        for ident, row in rows.items()
        if ident in stored and any(getattr(stored[ident], name) != row[name] for name in row)
    ]
    stamp = {"refreshed_at": now}
    if added:
        session.execute(insert(OfferedAppliance), [row | stamp for row in added])
    if changed:
        session.execute(update(OfferedAppliance), [row | stamp for row in changed])
    return len(rows)


def _rows(session: Session, provider_id: str, *, now: datetime) -> dict[str, Row]:
    """Return what the rows of a provider's appliances must be, by appliance."""
    account = account_of(session, provider_id)
    offers = covering_offers(session, provider_id)
    if not offers:
        return {}
    views = {view.id: view for view in offerable_views(session, provider_id, now=now)}
    taken = _taken(session, provider_id)
    reservations = reservation_views(session, provider_id, now=now)
    reservations += booked_views(session, {provider_id}, now=now)
    reserved = _reserved(reservations, now=now)
    accepts = account.provider_state is AccountState.ACTIVE
    regions = dict(
        session.execute(
            select(Appliance.id, Appliance.region).where(Appliance.tenant_id == provider_id)
        ).all()
    )
    former = dict(
        session.execute(
            select(OfferedAppliance.appliance_id, OfferedAppliance.offer_id).where(
                OfferedAppliance.provider_id == provider_id
            )
        ).all()
    )
    rows: dict[str, Row] = {}
    for offer in offers:
        terms = offer.decoded_terms
        shared = _of_offer(offer, terms, now=now)
        shared["is_open"] = shared["is_open"] and accepts
        for ident in covered_ids(offer, views.values()):
            if ident not in rows or former.get(ident) == offer.id:
                view = views[ident]
                figures = _figures(view, taken, reserved.get(ident))
                region = terms.region or regions.get(ident, "")
                rows[ident] = {"appliance_id": ident, "region": region, **shared, **figures}
    return rows


def _of_offer(offer: Offer, terms: Terms, *, now: datetime) -> Row:
    """Return the columns that all appliances of an offer have in common."""
    today = now.date().isoformat()
    facts = sorted(
        fact.name for fact in terms.facts if not fact.valid_until or fact.valid_until >= today
    )
    return {
        "provider_id": offer.tenant_id,
        "offer_id": offer.id,
        "is_open": is_open(windows_of(offer.calendar), terms.time_zone, now),
        "allows_slices": terms.allows_slices,
        "price": terms.net_price_at(now),
        "availability_percent": terms.service_level.availability_percent,
        "facts": f",{','.join(facts)}," if facts else "",
    }


def _figures(view: ApplianceView, taken: Mapping[str, int], reserved: int | None) -> Row:
    """Return the GPUs of an appliance, and what of them is free.

    Args:
        view: the appliance.
        taken: thousandths of GPUs that jobs of any tenant have, by UUID.
        reserved: GPUs that a reservation keeps now; None for none.
    """
    accepts = view.state is ApplianceState.ONLINE and not (
        view.is_drained or view.failure or view.quarantine
    )
    free, free_milli = 0, 0
    for gpu in view.gpus if accepts else ():
        if gpu.is_failed or gpu.is_used_outside or gpu.is_switching:
            continue
        left = max(0, WHOLE_GPU - taken.get(gpu.uuid, 0))
        free_milli += left
        free += gpu.kind is None and left == WHOLE_GPU
    if reserved is not None:
        left = max(0, len(view.gpus) - (reserved or len(view.gpus)))
        free, free_milli = min(free, left), min(free_milli, left * WHOLE_GPU)
    models = sorted({gpu.model for gpu in view.gpus if gpu.model})
    return {
        "gpu_model": ", ".join(models)[:MAX_MODEL_LENGTH],
        "gpu_memory_bytes": min((gpu.memory_bytes for gpu in view.gpus), default=0),
        "gpu_count": len(view.gpus),
        "free_gpus": free,
        "free_gpu_milli": free_milli,
    }


def _taken(session: Session, provider_id: str) -> dict[str, int]:
    """Return the thousandths of a provider's GPUs that jobs of any tenant have, by UUID."""
    statement = (
        select(Attempt.gpu_uuids, Attempt.gpu_slice)
        .join(Appliance, Appliance.id == Attempt.appliance_id)
        .where(Appliance.tenant_id == provider_id, Attempt.state.in_(ALLOCATED_STATES))
    )
    taken: dict[str, int] = defaultdict(int)
    for uuids, gpu_slice in session.execute(statement):
        for uuid in uuids:
            taken[uuid] += gpu_slice["share_milli"] if gpu_slice else WHOLE_GPU
    return taken


def _reserved(reservations: Sequence[ReservationView], *, now: datetime) -> dict[str, int]:
    """Return the GPUs that reservations keep now, by appliance; 0 is the whole appliance."""
    reserved: dict[str, int] = {}
    for reservation in reservations:
        if any(begin <= now < end for begin, end in reservation.periods):
            for ident in reservation.appliance_ids:
                gpus, before = reservation.gpus, reserved.get(ident)
                reserved[ident] = 0 if gpus is None or before == 0 else (before or 0) + gpus
    return reserved


def providers(session: Session) -> list[str]:
    """Return the tenants that have offers, or rows of appliances on offer."""
    listed = select(Offer.tenant_id).union(select(OfferedAppliance.provider_id))
    return sorted(session.scalars(listed))
