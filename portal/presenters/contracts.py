"""Contracts as pages show them: their versions, and what they come to by month."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.money import PLACES, cents
from marketplace.charges.models import BillingLine, LineKind
from marketplace.invoices.fees import fee_percents
from marketplace.models import Contract, ContractVersion
from marketplace.states import ContractState, VersionState
from marketplace.terms import Terms
from portal.context import portal
from portal.presenters.market import Difference, differences, month_of

MONTHS = 12
MILLISECONDS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, and how it differs from the terms before it; None for the first."""

    version: ContractVersion
    changes: Sequence[Difference] | None


@dataclass(frozen=True, slots=True)
class Month:
    """What lines of a month come to.

    Attributes:
        start: of the month, in UTC.
        amounts: by kind of lines.
        gpu_hours: that were used.
    """

    start: datetime
    amounts: dict[LineKind, Decimal]
    gpu_hours: float

    def sum_of(self, *kinds: str) -> Decimal:
        """Return the sum of the lines of these kinds."""
        return sum((self.amounts.get(LineKind(kind), Decimal(0)) for kind in kinds), Decimal(0))

    @property
    def total(self) -> Decimal:
        """The sum of all lines."""
        return sum(self.amounts.values(), Decimal(0))


def open_contracts(session: Session, tenant_id: str) -> dict[str, Contract]:
    """Return the contracts of a customer that have not ended, by offer: one for each at most."""
    states = [state for state in ContractState if not state.is_final]
    statement = select(Contract).where(
        Contract.customer_id == tenant_id, Contract.state.in_(states)
    )
    return {row.offer_id: row for row in session.scalars(statement)}


def version_rows(contract: Contract, offered: Terms | None) -> list[VersionRow]:
    """Return the versions of a contract, newest first.

    Args:
        contract: the contract.
        offered: the terms of its offer now, which an open first version is compared with.
    """
    rows: list[VersionRow] = []
    accepted: ContractVersion | None = None
    for version in contract.versions:
        base = accepted or (contract.versions[0] if version.number > 1 else None)
        earlier = None if base is None else base.decoded_terms
        if version.number == 1 and version.state is VersionState.PROPOSED:
            earlier = offered
        changes = None if earlier is None else differences(earlier, version.decoded_terms)
        rows.append(VersionRow(version, changes))
        if version.state is VersionState.ACCEPTED:
            accepted = version
    return rows[::-1]


def monthly_lines(
    session: Session,
    contract_id: str | None = None,
    *,
    provider_id: str | None = None,
    now: datetime | None = None,
) -> list[Month]:
    """Return what the last months come to, newest first, without empty ones.

    Args:
        session: the session.
        contract_id: of a contract.
        provider_id: of a provider, all its contracts together.
        now: the current time, for the last twelve months; None for those that have lines.
    """
    months: list[Month] = []
    condition = (
        BillingLine.contract_id == contract_id
        if contract_id is not None
        else BillingLine.provider_id == provider_id
    )
    newest_at = now or session.scalar(select(func.max(BillingLine.at)).where(condition))
    if newest_at is None:
        return months
    start, end = month_of(newest_at)
    for _ in range(MONTHS):
        statement = (
            select(
                BillingLine.kind,
                func.coalesce(func.sum(BillingLine.amount), 0),
                func.coalesce(func.sum(BillingLine.gpu_milliseconds), 0),
            )
            .where(condition, BillingLine.at >= start, BillingLine.at < end)
            .group_by(BillingLine.kind)
        )
        rows = session.execute(statement).all()
        if rows:
            hours = sum(int(row[2]) for row in rows if row[0] is LineKind.USAGE)
            months.append(
                Month(
                    start,
                    {row[0]: as_amount(row[1]) for row in rows},
                    hours / MILLISECONDS_PER_HOUR,
                )
            )
        start, end = month_of(start - timedelta(days=1))
    return months


def as_amount(value: Decimal | int) -> Decimal:
    """Return a sum of amounts, which some databases return as the stored integer."""
    return value if isinstance(value, Decimal) else Decimal(value).scaleb(-PLACES)


@dataclass(frozen=True, slots=True)
class Turnover:
    """What customers paid providers in a month, and the share of the platform."""

    start: datetime
    amount: Decimal
    fee: Decimal


def platform_turnover(session: Session, *, now: datetime) -> list[Turnover]:
    """Return the turnover of the last months, newest first, without empty ones.

    Fees are computed with the present rates; statements have the exact ones.
    """
    default = Decimal(str(portal().settings.marketplace_fee_percent))
    earliest = now - timedelta(days=31 * MONTHS)
    percent_of = fee_percents(session, since=earliest, default=default)
    months: list[Turnover] = []
    start, end = month_of(now)
    for _ in range(MONTHS):
        statement = (
            select(BillingLine.provider_id, func.sum(BillingLine.amount))
            .where(
                BillingLine.provider_id.is_not(None),
                BillingLine.at >= start,
                BillingLine.at < end,
            )
            .group_by(BillingLine.provider_id)
        )
        amounts = {str(row[0]): as_amount(row[1]) for row in session.execute(statement)}
        if amounts:
            fee = sum(
                (amount * percent_of(ident, start) / 100 for ident, amount in amounts.items()),
                Decimal(0),
            )
            months.append(Turnover(start, sum(amounts.values(), Decimal(0)), cents(fee)))
        start, end = month_of(start - timedelta(days=1))
    return months
