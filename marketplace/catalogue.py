"""The catalogue: what published offers have, filtered and sorted; and the capacity that is free.

An *entry* is what an offer has of a GPU model in a region. The catalogue needs no scope: it has
only what is published, of providers that the operator admitted.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.paging import MAX_PAGE_NUMBER, MAX_PAGE_SIZE, sort_terms
from marketplace.models import Account, Offer
from marketplace.offers.coverage import providers, refresh_provider
from marketplace.states import AccountState, Listing, OfferState
from marketplace.terms import Terms, terms_hash
from tenants.models import Tenant, TenantState
from tenants.models.rentals import OfferedAppliance

_O = OfferedAppliance
_IS_LISTED = and_(
    Offer.state == OfferState.PUBLISHED,
    Account.provider_state == AccountState.ACTIVE,
    Account.listing != Listing.HIDDEN,
    Tenant.state == TenantState.ACTIVE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueFilter:
    """What a customer looks for; what is empty, None or 0 is any.

    Attributes:
        gpu_model: a word of the model, such as `H100`.
        min_gpu_memory_bytes: of each GPU.
        min_free_gpus: free now on one appliance.
        max_price: of a GPU for an hour now.
        region: the exact region.
        facts: of compliance, all of which hold.
        min_availability_percent: the promised availability.
        text: a part of the name or description of the offer, or of the provider's name.
        allows_slices: whether jobs may have parts of GPUs.
        is_open: whether jobs may start now.
    """

    gpu_model: str = ""
    min_gpu_memory_bytes: int = 0
    min_free_gpus: int = 0
    max_price: Decimal | None = None
    region: str = ""
    facts: tuple[str, ...] = ()
    min_availability_percent: float = 0.0
    text: str = ""
    allows_slices: bool | None = None
    is_open: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """What an offer has of a GPU model in a region.

    Attributes:
        gpus: of all its appliances.
        free_gpus: of these, those that are free now.
        most_free_gpus: on one appliance.
        price: of a GPU for an hour now, after the discount.
        lowest_price: of the week.
        highest_price: of the week.
        max_seconds: the longest time limit of a job; 0 is any.
        availability_percent: the promised one; 0 for none.
        reputation: what the provider is ranked by, 0 to 1.
        reputation_low: of the interval in which it is.
        reputation_high: likewise.
    """

    offer_id: str
    offer_name: str
    description: str
    provider_name: str
    gpu_model: str
    gpu_memory_bytes: int
    region: str
    appliances: int
    gpus: int
    free_gpus: int
    most_free_gpus: int
    is_open: bool
    price: Decimal
    lowest_price: Decimal
    highest_price: Decimal
    currency: str
    allows_slices: bool
    min_seconds: int
    max_seconds: int
    availability_percent: float
    facts: tuple[str, ...]
    reputation: float
    reputation_low: float
    reputation_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What all offers have of a GPU model in a region; the price is that of an hour now."""

    gpu_model: str
    region: str
    gpus: int
    free_gpus: int
    lowest_price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOffer:
    """An offer as customers see it, with the terms that they accept by their hash."""

    offer_id: str
    name: str
    description: str
    provider_id: str
    provider_name: str
    reputation: float
    reputation_low: float
    reputation_high: float
    needs_approval: bool
    calendar: list[dict[str, Any]]
    terms: Terms
    terms_hash: str
    entries: list[CatalogueEntry]


_FREE, _MOST_FREE, _PRICE = func.sum(_O.free_gpus), func.max(_O.free_gpus), func.min(_O.price)
CATALOGUE_SORTS: dict[str, ColumnElement[Any]] = {
    "price": _PRICE,
    "gpu_model": _O.gpu_model.expression,
    "region": _O.region.expression,
    "free_gpus": _FREE,
    "availability_percent": func.max(_O.availability_percent),
    "reputation": select(Account.reputation)
    .where(Account.tenant_id == _O.provider_id)
    .scalar_subquery(),
    "offer_name": select(Offer.name).where(Offer.id == _O.offer_id).scalar_subquery(),
}

# Before any sort: those that the operator's policy lists last.
_IS_LAST = (
    select(Account.listing == Listing.LAST)
    .where(Account.tenant_id == _O.provider_id)
    .scalar_subquery()
)


def search(
    session: Session,
    wanted: CatalogueFilter,
    *,
    sort: str = "price",
    page: int = 1,
    page_size: int = 50,
) -> tuple[list[CatalogueEntry], int]:
    """Return a page of the entries that match, and the number of all that do.

    Raises:
        InvalidInputError: the sort is none of `CATALOGUE_SORTS`.
    """
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    number = max(1, min(page, MAX_PAGE_NUMBER))
    orders = [
        CATALOGUE_SORTS[name].desc() if is_descending else CATALOGUE_SORTS[name].asc()
        for name, is_descending in sort_terms(sort or "price", CATALOGUE_SORTS)
    ]
    entries = _entries(wanted)
    last = (_O.offer_id, _O.gpu_model, _O.region)
    rows = session.execute(
        entries.order_by(_IS_LAST, *orders, *last).limit(size).offset((number - 1) * size)
    ).all()
    if rows or number == 1:
        total = rows[0].total if rows else 0
    else:
        total = session.scalar(select(func.count()).select_from(entries.subquery())) or 0
    offers = _offers(session, {row.offer_id for row in rows})
    return [_entry(row, *offers[row.offer_id]) for row in rows], total


def capacity(session: Session) -> list[Capacity]:
    """Return what can be rented now, by GPU model and region; closed offers are left out."""
    statement = (
        select(
            _O.gpu_model,
            _O.region,
            func.sum(_O.gpu_count).label("gpus"),
            _FREE.label("free_gpus"),
            _PRICE.label("lowest_price"),
        )
        .where(_O.is_open.is_(True), _O.offer_id.in_(listed_offers()))
        .group_by(_O.gpu_model, _O.region)
        .order_by(_O.gpu_model, _O.region)
    )
    return [
        Capacity(
            gpu_model=row.gpu_model,
            region=row.region,
            gpus=int(row.gpus),
            free_gpus=int(row.free_gpus),
            lowest_price=row.lowest_price,
        )
        for row in session.execute(statement)
    ]


def published_offer(session: Session, offer_id: str) -> PublishedOffer:
    """Return an offer of the catalogue.

    Raises:
        NotFoundError: it does not exist, or is not published; both look the same.
    """
    statement = (
        select(Offer, Account)
        .join(Account, Account.tenant_id == Offer.tenant_id)
        .join(Tenant, Tenant.id == Offer.tenant_id)
        .where(Offer.id == offer_id, _IS_LISTED)
    )
    row = session.execute(statement).one_or_none()
    if row is None:
        raise NotFoundError.of("offer", offer_id)
    offer, account = row
    terms = offer.decoded_terms
    rows = session.execute(
        _entries(CatalogueFilter()).where(_O.offer_id == offer_id).order_by(_O.gpu_model, _O.region)
    )
    return PublishedOffer(
        offer_id=offer.id,
        name=offer.name,
        description=offer.description,
        provider_id=offer.tenant_id,
        provider_name=account.public_name,
        reputation=account.reputation,
        reputation_low=account.reputation_low,
        reputation_high=account.reputation_high,
        needs_approval=offer.needs_approval,
        calendar=offer.calendar,
        terms=terms,
        terms_hash=terms_hash(terms),
        entries=[_entry(row, offer, terms, account) for row in rows],
    )


def refresh(session: Session, *, now: datetime) -> int:
    """Write what is on offer now, of all providers; return the number of appliances.

    The scheduler does so with a transaction for each provider.
    """
    return sum(refresh_provider(session, ident, now=now) for ident in providers(session))


def listed_offers(text: str = "") -> Select[*tuple[Any, ...]]:
    """Return the ids of published offers whose names or description have a text."""
    statement = (
        select(Offer.id)
        .join(Account, Account.tenant_id == Offer.tenant_id)
        .join(Tenant, Tenant.id == Offer.tenant_id)
        .where(_IS_LISTED)
    )
    columns = (Offer.name, Offer.description, Account.public_name)
    has_text = or_(*(column.icontains(text, autoescape=True) for column in columns))
    return statement.where(has_text) if text else statement


def _entries(wanted: CatalogueFilter) -> Select[*tuple[Any, ...]]:
    """Return the figures of the entries that match, one row for each."""
    statement = (
        select(
            _O.offer_id,
            _O.provider_id,
            _O.gpu_model,
            _O.region,
            func.min(_O.gpu_memory_bytes).label("gpu_memory_bytes"),
            func.count().label("appliances"),
            func.sum(_O.gpu_count).label("gpus"),
            _FREE.label("free_gpus"),
            _MOST_FREE.label("most_free_gpus"),
            func.max(_O.is_open).label("is_open"),
            func.max(_O.facts).label("facts"),
            _PRICE.label("price"),
            func.count().over().label("total"),
        )
    ).where(*_conditions(wanted), _O.offer_id.in_(listed_offers(wanted.text)))
    grouped = statement.group_by(_O.offer_id, _O.provider_id, _O.gpu_model, _O.region)
    if not wanted.min_free_gpus:
        return grouped
    return grouped.having(wanted.min_free_gpus <= _MOST_FREE)


def _conditions(wanted: CatalogueFilter) -> list[ColumnElement[bool]]:
    conditions = [_O.facts.contains(f",{fact},", autoescape=True) for fact in wanted.facts]
    if wanted.gpu_model:
        conditions.append(_O.gpu_model.icontains(wanted.gpu_model, autoescape=True))
    if wanted.min_gpu_memory_bytes:
        conditions.append(_O.gpu_memory_bytes >= wanted.min_gpu_memory_bytes)
    if wanted.max_price is not None:
        conditions.append(_O.price <= wanted.max_price)
    if wanted.region:
        conditions.append(_O.region == wanted.region)
    if wanted.min_availability_percent:
        conditions.append(_O.availability_percent >= wanted.min_availability_percent)
    if wanted.allows_slices is not None:
        conditions.append(_O.allows_slices.is_(wanted.allows_slices))
    if wanted.is_open is not None:
        conditions.append(_O.is_open.is_(wanted.is_open))
    return conditions


def _offers(session: Session, idents: set[str]) -> dict[str, tuple[Offer, Terms, Account]]:
    """Return offers by id, with their terms and their providers' accounts."""
    statement = (
        select(Offer, Account)
        .join(Account, Account.tenant_id == Offer.tenant_id)
        .where(Offer.id.in_(idents))
    )
    return {
        offer.id: (offer, offer.decoded_terms, account)
        for offer, account in session.execute(statement)
    }


def _entry(row: Any, offer: Offer, terms: Terms, account: Account) -> CatalogueEntry:  # noqa: ANN401 - a row
    lowest, highest = terms.net_prices()
    return CatalogueEntry(
        offer_id=offer.id,
        offer_name=offer.name,
        description=offer.description,
        provider_name=account.public_name,
        gpu_model=row.gpu_model,
        gpu_memory_bytes=row.gpu_memory_bytes,
        region=row.region,
        appliances=row.appliances,
        gpus=int(row.gpus),
        free_gpus=int(row.free_gpus),
        most_free_gpus=row.most_free_gpus,
        is_open=bool(row.is_open),
        price=row.price,
        lowest_price=lowest,
        highest_price=highest,
        currency=terms.currency,
        allows_slices=terms.allows_slices,
        min_seconds=terms.min_seconds,
        max_seconds=terms.max_seconds,
        availability_percent=terms.service_level.availability_percent,
        facts=tuple(filter(None, row.facts.split(","))),
        reputation=account.reputation,
        reputation_low=account.reputation_low,
        reputation_high=account.reputation_high,
    )
