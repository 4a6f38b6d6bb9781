"""A market: acme offers appliances, globex rents them, with billing lines of two months."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from core.ids import new_id
from marketplace.accounts import account_of, admit
from marketplace.catalogue import refresh
from marketplace.charges.models import BillingLine, LineKind
from marketplace.contracts.service import take_offer
from marketplace.models import Contract, Offer
from marketplace.offers.requests import OfferRequest
from marketplace.offers.service import create_offer, set_offer_state
from marketplace.states import AccountState, OfferState, Side
from marketplace.terms import ComplianceFact, Credit, HourlyPrice, ServiceLevel, Terms, terms_hash
from tests.cast import Cast, make_appliance, scope_of

GIB = 1024**3
MODEL = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, slots=True)
class Market:
    """What is on it."""

    offer: Offer
    contract: Contract


def terms_of(**changes: Any) -> Terms:  # noqa: ANN401 - the terms' own fields
    """Return terms with a service level and prices by the hour."""
    values: dict[str, Any] = {
        "currency": "EUR",
        "price": Decimal("2.45"),
        "hourly_prices": (
            HourlyPrice(days=(0, 1, 2, 3, 4), from_hour=8, until_hour=20, price=Decimal("3.10")),
            HourlyPrice(days=(5, 6), from_hour=0, until_hour=24, price=Decimal("1.90")),
        ),
        "time_zone": "Europe/Paris",
        "region": "eu-west",
        "min_seconds": 60,
        "max_seconds": 86_400,
        "notice_days": 30,
        "service_level": ServiceLevel(
            availability_percent=99.5,
            start_within_seconds=120,
            credits=(Credit(below_percent=99.5, credit_percent=Decimal(10)),),
        ),
        "facts": (ComplianceFact(name="iso27001", valid_until="2027-03-31"),),
    }
    return Terms(**{**values, **changes})


def admit_both(session: Session, cast: Cast, *, now: datetime) -> None:
    """Admit acme and globex as providers and customers."""
    for tenant in (cast.acme, cast.globex):
        account_of(session, tenant.id)
        for side in Side:
            admit(session, scope_of(cast.olivia), tenant.id, side, AccountState.ACTIVE, now=now)


def gpus(count: int, model: str = MODEL) -> dict[str, Any]:
    """Return an inventory with GPUs of a model."""
    return {
        "hostname": "x",
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "executors": ["simulated"],
        "gpus": [
            {"index": index, "uuid": f"GPU-{new_id()}", "model": model, "memory_bytes": 80 * GIB}
            for index in range(count)
        ],
    }


def add_offer(session: Session, cast: Cast, name: str, terms: Terms, *, now: datetime) -> Offer:
    """Publish an offer of acme of an appliance with eight GPUs."""
    appliance = make_appliance(
        session, cast.acme, name.lower().replace(" ", "-"), now=now, inventory=gpus(8)
    )
    scope = scope_of(cast.alice)
    request = OfferRequest(
        name=name, description="Eight GPUs.", appliance_ids=[appliance.id], terms=terms
    )
    offer = create_offer(session, scope, request, now=now)
    set_offer_state(session, scope, offer.id, OfferState.PUBLISHED, now=now)
    refresh(session, now=now)
    return offer


def make_market(session: Session, cast: Cast, *, now: datetime) -> Market:
    """Make a market."""
    admit_both(session, cast, now=now)
    terms = terms_of()
    offer = add_offer(session, cast, "H100 in Lyon", terms, now=now)
    contract = take_offer(
        session, scope_of(cast.charlie), offer.id, terms_hash=terms_hash(terms), now=now
    )
    for days, amount in ((1, "12.25"), (40, "24.50")):
        add_line(session, contract, now - timedelta(days=days), Decimal(amount), now=now)
    add_line(
        session,
        contract,
        now - timedelta(days=1),
        Decimal("-1.25"),
        now=now,
        kind=LineKind.SERVICE_CREDIT,
    )
    session.flush()
    return Market(offer, contract)


def add_line(
    session: Session,
    contract: Contract,
    at: datetime,
    amount: Decimal,
    *,
    now: datetime,
    kind: LineKind = LineKind.USAGE,
) -> None:
    """Add a billing line of a contract; use is five GPU-hours."""
    hours = 5 if kind is LineKind.USAGE else 0
    session.add(
        BillingLine(
            tenant_id=contract.customer_id,
            provider_id=contract.provider_id,
            contract_id=contract.id,
            version_number=1,
            kind=kind,
            usage_entry_id=None,
            source_id=new_id(),
            at=at,
            recorded_at=now,
            user_id=None,
            project_id=None,
            job_id=None,
            attempt_id=None,
            appliance_id=None,
            gpu_model=MODEL,
            gpu_milliseconds=hours * 3_600_000,
            unit_price=Decimal("2.45"),
            amount=amount,
        )
    )
