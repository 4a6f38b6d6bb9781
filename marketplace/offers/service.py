"""Offers: list, create, change, publish, pause and withdraw them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

import msgspec
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError, InvalidInputError
from core.paging import Columns, Page, Paging, list_page
from marketplace.accounts import require_provider
from marketplace.models import Offer
from marketplace.offers.checks import offer_errors
from marketplace.offers.coverage import (
    covered_ids,
    covering_offers,
    offerable_views,
    refresh_provider,
)
from marketplace.offers.requests import OfferRequest
from marketplace.states import OFFER_TRANSITIONS, OfferState
from marketplace.terms import stored
from tenants.fleet.states import in_service
from tenants.models import Appliance, Tenant
from tenants.models.rentals import OfferedAppliance
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_OFFERS = 500
MAX_ALL_OFFERS = 5000
OFFER_SORTS: Columns = {
    "name": Offer.name,
    "state": Offer.state,
    "created_at": Offer.created_at,
    "updated_at": Offer.updated_at,
}
COVERAGE_SORTS: Columns = {
    "name": Appliance.name,
    "gpu_model": OfferedAppliance.gpu_model,
    "free_gpus": OfferedAppliance.free_gpus,
}


def list_offers(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[Offer]:
    """Return the offers of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Offer), Offer).order_by(Offer.name, Offer.id)
    return list_page(session, statement, OFFER_SORTS, last=Offer.id, **paging)


def get_offer(session: Session, scope: Scope, ident: str) -> Offer:
    """Return an offer of the scope; what others see of it is in the catalogue."""
    scope.require(Permission.VIEW)
    return scope.get(session, Offer, ident, kind="offer")


def list_offered(session: Session, scope: Scope, ident: str, **paging: Unpack[Paging]) -> Page[Any]:
    """Return the appliances that an offer of the scope covers now, and what is free there."""
    offer = get_offer(session, scope, ident)
    columns = ("region", "gpu_model", "gpu_count", "free_gpus", "is_open", "price")
    statement = (
        select(
            OfferedAppliance.appliance_id,
            Appliance.name,
            *(getattr(OfferedAppliance, name) for name in columns),
        )
        .join(Appliance, Appliance.id == OfferedAppliance.appliance_id)
        .where(OfferedAppliance.offer_id == offer.id)
        .order_by(Appliance.name, Appliance.id)
    )
    return list_page(session, statement, COVERAGE_SORTS, last=Appliance.id, **paging)


def create_offer(
    session: Session, scope: Scope, request: OfferRequest, *, now: datetime, currency: str = ""
) -> Offer:
    """Add a draft of an offer to the scope's tenant.

    Args:
        session: the session.
        scope: the provider's.
        request: the offer.
        now: the time.
        currency: that of the portal, which its prices must have; "" for any.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the tenant has `MAX_OFFERS`, or had `MAX_ALL_OFFERS`.
    """
    scope.require(Permission.MANAGE_OFFERS)
    tenant_id = scope.require_tenant()
    own = select(func.count()).where(Offer.tenant_id == tenant_id)
    in_use = own.where(Offer.state != OfferState.WITHDRAWN)
    if (session.scalar(in_use) or 0) >= MAX_OFFERS:
        raise ConflictError(f"There are {MAX_OFFERS} offers. Withdraw one that you don't use.")
    if (session.scalar(own) or 0) >= MAX_ALL_OFFERS:
        raise ConflictError(f"There were {MAX_ALL_OFFERS:,} offers. Change one instead.")
    offer = Offer(tenant_id=tenant_id, state=OfferState.DRAFT, created_at=now)
    return _save(session, offer, request, now=now, currency=currency)


def change_offer(
    session: Session,
    scope: Scope,
    ident: str,
    request: OfferRequest,
    *,
    now: datetime,
    currency: str = "",
    requires_verification: bool = False,
) -> Offer:
    """Change an offer; contracts that exist keep the terms that were accepted.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the offer is withdrawn.
    """
    scope.require(Permission.MANAGE_OFFERS)
    offer = get_offer(session, scope, ident)
    if offer.state is OfferState.WITHDRAWN:
        raise ConflictError(f"The offer {offer.name!r} is withdrawn. Create a new one.")
    _save(session, offer, request, now=now, currency=currency)
    if offer.state is not OfferState.DRAFT:
        refresh_provider(
            session, offer.tenant_id, now=now, requires_verification=requires_verification
        )
    return offer


def set_offer_state(
    session: Session,
    scope: Scope,
    ident: str,
    state: OfferState,
    *,
    now: datetime,
    requires_verification: bool = False,
) -> Offer:
    """Publish, pause or withdraw an offer; the catalogue follows at once.

    Appliances that did not pass their verification follow once they do, if it is required.

    Raises:
        ConflictError: there is no such transition, or an appliance is in another offer.
        ForbiddenError: the tenant is not admitted as a provider; only then it can't be published.
    """
    scope.require(Permission.MANAGE_OFFERS)
    offer = get_offer(session, scope, ident)
    if state is OfferState.PUBLISHED:
        require_provider(session, scope)
    _lock(session, offer)
    if state is offer.state:
        return offer
    if state not in OFFER_TRANSITIONS[offer.state]:
        raise ConflictError(
            f"The offer {offer.name!r} is {offer.state.value}: it can't be {state.value}."
        )
    if state is OfferState.PUBLISHED:
        _check_coverage(session, offer)
    offer.state, offer.updated_at = state, now
    session.flush()
    refresh_provider(session, offer.tenant_id, now=now, requires_verification=requires_verification)
    return offer


def _save(
    session: Session, offer: Offer, request: OfferRequest, *, now: datetime, currency: str
) -> Offer:
    errors = offer_errors(request, currency=currency)
    name = request.name.strip()
    with session.no_autoflush:
        same = select(Offer.id).where(Offer.tenant_id == offer.tenant_id, Offer.name == name)
        if session.scalar(same) not in {None, offer.id}:
            errors["name"] = [f"An offer named {name[:100]!r} already exists."]
        appliance_ids, unknown = _appliances(session, offer.tenant_id, request.appliance_ids)
    if unknown:
        errors["appliance_ids"] = unknown
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The offer was not saved. {details}", errors=errors)
    _lock(session, offer)
    columns: Mapping[str, Any] = {
        "name": name,
        "description": request.description.strip(),
        "appliance_ids": appliance_ids,
        "labels": dict(request.labels),
        "calendar": msgspec.to_builtins(request.calendar),
        "needs_approval": request.needs_approval,
        "terms": stored(request.terms),
        "updated_at": now,
    }
    for field, value in columns.items():
        if getattr(offer, field) != value:
            setattr(offer, field, value)
    session.add(offer)
    session.flush()
    if offer.state is OfferState.PUBLISHED:
        _check_coverage(session, offer)
    return offer


def _lock(session: Session, offer: Offer) -> None:
    """Let the offers of a tenant change one at a time: no appliance may get into two.

    The offer is locked first, as where it is taken, whose grant then locks the tenant.
    """
    begin_writing(session)
    if offer.id is not None:
        session.refresh(offer, with_for_update=True)
    session.execute(select(Tenant.id).where(Tenant.id == offer.tenant_id).with_for_update())


def _check_coverage(session: Session, offer: Offer) -> None:
    """Refuse an offer that covers nothing, or what another one covers."""
    views = offerable_views(session, offer.tenant_id)
    idents = covered_ids(offer, views)
    if not idents:
        raise ConflictError(
            f"The offer {offer.name!r} covers no appliance with GPUs and an executor. "
            "Choose others, or change its labels."
        )
    offered = (
        select(OfferedAppliance.appliance_id, Offer.id, Offer.name)
        .join(Offer, Offer.id == OfferedAppliance.offer_id)
        .where(OfferedAppliance.provider_id == offer.tenant_id)
    )
    owners = {ident: (owner, name) for ident, owner, name in session.execute(offered).all()}
    # Those that wait for their verification are in no list yet.
    for other in covering_offers(session, offer.tenant_id):
        for ident in covered_ids(other, views):
            owners.setdefault(ident, (other.id, other.name))
    elsewhere = {ident: name for ident, (owner, name) in owners.items() if owner != offer.id}
    names = [
        f"{view.name} ({elsewhere[view.id]})"
        for view in views
        if view.id in idents and view.id in elsewhere
    ]
    if names:
        count = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - three are named
        listed = f"{', '.join(sorted(names)[:3])}{count}"
        raise ConflictError(f"Already in another offer: {listed}. An appliance can be in one only.")


def _appliances(
    session: Session, tenant_id: str, wanted: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the ids of appliances by id or name, and what is wrong with the list."""
    listed = select(Appliance).where(
        Appliance.tenant_id == tenant_id,
        in_service(),
        or_(Appliance.id.in_(wanted), Appliance.name.in_(wanted)),
    )
    appliances = list(session.scalars(listed.order_by(Appliance.name)).unique())
    names = {text for appliance in appliances for text in (appliance.id, appliance.name)}
    errors = [f"There is no appliance {text[:100]!r}." for text in wanted if text not in names][:5]
    for appliance in appliances:
        if appliance.connector_id is not None or appliance.cluster_kind:
            errors.append(f"{appliance.name!r} is part of a cluster, which can't be offered.")
    return [appliance.id for appliance in appliances], errors
