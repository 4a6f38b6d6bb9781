"""A ledger written by hand: contracts of Globex, which Acme rents from, and rows of use."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.ids import new_id
from jobqueue.models import Attempt
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry, UsageHour
from marketplace.charges.models import BillingLine
from marketplace.charges.service import accrue
from marketplace.models import Contract, ContractVersion
from marketplace.states import ContractState, Side, VersionState
from marketplace.terms import Terms, terms_hash
from tests.cast import Cast

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
MAY = datetime(2026, 5, 1, tzinfo=UTC)
ALL = Period(datetime(2025, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
HOUR = timedelta(hours=1)
H100, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA A10"
GPU_HOUR = 3_600_000


def terms(price: str = "2.00", **changes: Any) -> Terms:  # noqa: ANN401 - of terms
    return Terms(**{"currency": "EUR", "price": Decimal(price), **changes})


def add_contract(
    session: Session,
    cast: Cast,
    first: Terms,
    *,
    starts_at: datetime = MARCH,
    ends_at: datetime | None = None,
    name: str = "H100 in Oslo",
) -> Contract:
    """Add an active contract of Acme with Globex."""
    contract = Contract(
        offer_id=new_id(),
        offer_name=name,
        provider_id=cast.globex.id,
        provider_name=cast.globex.name,
        customer_id=cast.acme.id,
        customer_name=cast.acme.name,
        state=ContractState.ACTIVE,
        created_at=starts_at,
        starts_at=starts_at,
        ends_at=ends_at,
    )
    session.add(contract)
    session.flush()
    add_version(session, contract, first, applies_from=starts_at)
    return contract


def add_version(
    session: Session, contract: Contract, accepted: Terms, *, applies_from: datetime
) -> None:
    contract.versions.append(
        ContractVersion(
            contract_id=contract.id,
            number=len(contract.versions) + 1,
            state=VersionState.ACCEPTED,
            terms=msgspec.to_builtins(accepted),
            terms_hash=terms_hash(accepted),
            proposed_side=Side.PROVIDER,
            proposed_by="charlie@globex.example",
            proposed_at=applies_from,
            accepted_by="alice@acme.example",
            accepted_at=applies_from,
            applies_from=applies_from,
        )
    )
    session.flush()


def add_use(
    session: Session,
    tenant_id: str,
    hour_at: datetime,
    milliseconds: int = GPU_HOUR,
    *,
    contract: Contract | None = None,
    attempt_id: str = "",
    gpu_model: str = H100,
    now: datetime | None = None,
    **changes: Any,  # noqa: ANN401 - columns
) -> UsageEntry:
    """Append a row as the ledger does: with the count of its hour in the same transaction."""
    attempt_id = attempt_id or new_id()
    last = session.scalar(
        select(func.max(UsageEntry.revision)).where(
            UsageEntry.attempt_id == attempt_id,
            UsageEntry.hour_at == hour_at,
            UsageEntry.gpu_model == gpu_model,
        )
    )
    values: dict[str, Any] = {
        "user_id": None,
        "project_id": None,
        "job_id": new_id(),
        "job_name": "train",
        "appliance_id": new_id(),
        **changes,
    }
    entry = UsageEntry(
        hour_at=hour_at,
        tenant_id=tenant_id,
        attempt_id=attempt_id,
        contract_id=None if contract is None else contract.id,
        gpu_model=gpu_model,
        revision=0 if last is None else last + 1,
        allocated_milliseconds=milliseconds,
        used_milliseconds=0,
        idle_milliseconds=0,
        energy_joules=0,
        recorded_at=now or hour_at + HOUR,
        **values,
    )
    session.add(entry)
    record_hour(session, hour_at)
    return entry


def record_hour(session: Session, hour_at: datetime) -> None:
    hour = session.get(UsageHour, hour_at)
    if hour is None:
        session.add(UsageHour(hour_at=hour_at, recorded_at=hour_at + HOUR, appends=1))
    else:
        session.execute(
            update(UsageHour)
            .where(UsageHour.hour_at == hour_at)
            .values(appends=UsageHour.appends + 1)
        )
    session.flush()


def accrue_all(sessions: SessionFactory, *, now: datetime = APRIL) -> int:
    """Accrue until nothing is left."""
    return sum(iter(lambda: accrue(sessions, now=now), 0))


def lines(session: Session, *conditions: Any) -> list[BillingLine]:  # noqa: ANN401 - expressions
    statement = select(BillingLine).where(*conditions).order_by(BillingLine.at, BillingLine.id)
    return list(session.scalars(statement))


def total(session: Session) -> Decimal:
    return session.scalar(select(func.sum(BillingLine.amount))) or Decimal(0)


def hours(since: datetime, count: int) -> Iterator[datetime]:
    return (since + number * HOUR for number in range(count))


def shorten(attempt: Attempt, *, begun_at: datetime, seconds: float) -> None:
    attempt.assigned_at = begun_at
    attempt.finished_at = begun_at + timedelta(seconds=seconds)
