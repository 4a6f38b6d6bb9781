"""Builders for tests of the marketplace: acme offers appliances, globex rents them."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from marketplace.accounts import admit
from marketplace.contracts.service import take_offer
from marketplace.models import Contract, Offer
from marketplace.offers.requests import OfferRequest
from marketplace.offers.service import create_offer, set_offer_state
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.states import AccountState, OfferState, Side
from marketplace.terms import Terms, terms_hash
from tests.cast import NOON, Cast, scope_of


def terms(**changes: Any) -> Terms:
    """Terms at EUR 2 for an hour of a GPU."""
    fields: dict[str, Any] = {"currency": "EUR", "price": Decimal(2)}
    return Terms(**(fields | changes))


def request(*appliances: str, **changes: Any) -> OfferRequest:
    """An offer of appliances by name."""
    fields: dict[str, Any] = {
        "name": "H100s in Oslo",
        "terms": terms(),
        "appliance_ids": list(appliances),
    }
    return OfferRequest(**(fields | changes))


def admit_sides(session: Session, cast: Cast) -> None:
    """Let olivia admit acme as a provider, and globex as a customer."""
    olivia = scope_of(cast.olivia)
    for tenant, side in ((cast.acme, Side.PROVIDER), (cast.globex, Side.CUSTOMER)):
        admit(session, olivia, tenant.id, side, AccountState.ACTIVE, now=NOON)


def publish(session: Session, cast: Cast, *appliances: str, **changes: Any) -> Offer:
    """Let alice publish an offer of appliances of acme."""
    alice = scope_of(cast.alice)
    offer = create_offer(session, alice, request(*appliances, **changes), now=NOON)
    return set_offer_state(session, alice, offer.id, OfferState.PUBLISHED, now=NOON)


def take(session: Session, cast: Cast, offer: Offer, *, now: datetime = NOON) -> Contract:
    """Let charlie take an offer for globex as it is."""
    accepted = terms_hash(offer.decoded_terms)
    return take_offer(session, scope_of(cast.charlie), offer.id, terms_hash=accepted, now=now)


def add_late_starts(session: Session, contract: Contract, *days: datetime) -> None:
    """Add a late start of a contract at each time."""
    for number, at in enumerate(days):
        session.add(
            ServiceBreach(
                contract_id=contract.id,
                provider_id=contract.provider_id,
                customer_id=contract.customer_id,
                version_number=1,
                kind=BreachKind.LATE_START,
                subject=f"attempt-{at:%m%d%H%M}-{number}",
                since=at,
                until=at + timedelta(seconds=900),
                promised=300.0,
                measured=900.0,
                detected_at=at + timedelta(minutes=20),
            )
        )
    session.flush()
