"""Charge what of a contract's commitment was not used in a month.

The commitment of a month counts for the part of the month in which the terms applied, by the
millisecond; what is missing costs the usual price of the last terms of the month, less the
discount. Time that was charged, minimum times included, counts as used. Where the ledger is
corrected later, the difference is another line of that month.
"""

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError
from core.money import exact
from jobqueue.usage.measuring import Period
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import MILLISECONDS_PER_HOUR, Rate, charge
from marketplace.charges.service import add_line
from marketplace.invoices.items import month_name
from marketplace.models import Contract, ContractVersion
from marketplace.months import next_month

_MILLISECOND = timedelta(milliseconds=1)
_LAST_MILLISECOND = timedelta(milliseconds=1)


def contracts_of(session: Session, month_at: datetime) -> list[tuple[str, str, str]]:
    """Return the contracts that were in force in a part of a month, each with its sides."""
    statement = select(Contract.id, Contract.customer_id, Contract.provider_id).where(
        Contract.starts_at < next_month(month_at),
        or_(Contract.ends_at.is_(None), Contract.ends_at > month_at),
    )
    rows = session.execute(statement.order_by(Contract.id))
    return [(row[0], row[1], row[2]) for row in rows]


def add_commitment(
    session: Session, contract_id: str, month_at: datetime, *, now: datetime
) -> BillingLine | None:
    """Add the line of a month's commitment, or of what differs from the lines before.

    Raises:
        ConflictError: its use is not charged, because its terms can't be read.
    """
    contract = session.get_one(Contract, contract_id)
    month = Period(month_at, next_month(month_at))
    if contract.uncharged_since is not None and contract.uncharged_since < month.until:
        raise ConflictError(f"The use of contract {contract_id} waits for its charge.")
    committed, version = _committed(contract, month)
    if version is None:
        return None
    before = session.execute(
        select(func.count(), func.sum(BillingLine.gpu_milliseconds), func.sum(BillingLine.amount))
        .where(*_of_month(contract_id, month))
        .where(BillingLine.kind == LineKind.COMMITMENT)
    ).one()
    count, milliseconds = int(before[0]), int(before[1] or 0)
    amount = before[2] if count else Decimal(0)
    used = session.scalar(
        select(func.sum(BillingLine.gpu_milliseconds))
        .where(*_of_month(contract_id, month))
        .where(BillingLine.kind.in_((LineKind.USAGE, LineKind.MINIMUM, LineKind.RESERVATION)))
    )
    missing = max(0, committed - int(used or 0))
    terms = version.decoded_terms
    rate = Rate(exact(terms.price), version.number, terms.discount_percent)
    if missing == milliseconds:
        return None
    return add_line(
        session,
        kind=LineKind.COMMITMENT,
        tenant_id=contract.customer_id,
        provider_id=contract.provider_id,
        contract_id=contract_id,
        at=month.until - _LAST_MILLISECOND,
        amount=charge(rate.net_price, missing) - amount,
        source_id=f"commitment:{contract_id}:{month_name(month_at)}:{count}",
        note=f"{terms.commitment_gpu_hours:,} GPU-hours a month",
        now=now,
        version_number=version.number,
        gpu_milliseconds=missing - milliseconds,
        unit_price=rate.net_price,
    )


def _of_month(contract_id: str, month: Period) -> tuple[ColumnElement[bool], ...]:
    return (
        BillingLine.contract_id == contract_id,
        BillingLine.at >= month.since,
        BillingLine.at < month.until,
    )


def _committed(contract: Contract, month: Period) -> tuple[int, ContractVersion | None]:
    """Return the milliseconds of GPUs that a month's part of commitments is, and its last terms."""
    begins = [version for version in contract.versions if version.applies_from is not None]
    end_at = min(contract.ends_at or month.until, month.until)
    whole = (month.until - month.since) // _MILLISECOND
    committed, last = 0, None
    for number, version in enumerate(begins):
        later = [at for other in begins[number + 1 :] if (at := other.applies_from)]
        since = max(version.applies_from or month.until, month.since)
        until = min([end_at, *later])
        hours = version.decoded_terms.commitment_gpu_hours
        if since < until and hours:
            part = (until - since) // _MILLISECOND
            committed += hours * MILLISECONDS_PER_HOUR * part // whole
            last = version
    return committed, last
