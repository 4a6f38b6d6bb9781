"""Costs that have no billing lines yet.

Lines follow the usage ledger, which has an hour some minutes after its end. What runs now, the
hours that the ledger lacks, and its rows that are not accrued yet are priced here by the same
prices, so that costs and budgets count up to now. Minimum times and commitments are not in it:
they have lines once an attempt, or a month, has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.money import ZERO, exact
from jobqueue.models import Attempt
from jobqueue.usage.ledger import (
    HOUR,
    LedgerAttempt,
    floor_hour,
    read_attempts,
    read_models,
    recorded_until,
    use_by_model,
)
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine, LineKind
from marketplace.models import Contract
from marketplace.prices.service import price_of

MILLISECONDS_PER_HOUR = 3_600_000
# Rows of the ledger that are older have their lines, or no price.
ACCRUED_WITHIN = timedelta(hours=48)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbilledCost:
    """What an attempt's use of one GPU model in an hour, or a part of it, will cost."""

    tenant_id: str
    user_id: str | None
    project_id: str | None
    job_id: str
    job_name: str
    appliance_id: str
    contract_id: str | None
    gpu_model: str
    hour_at: datetime
    amount: Decimal


class Pricing:
    """Prices of a GPU for an hour, each looked up once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prices: dict[tuple[str, str | None, str, datetime], Decimal | None] = {}

    def price(
        self, tenant_id: str, contract_id: str | None, gpu_model: str, at: datetime
    ) -> Decimal | None:
        """Return the price of an hour by a contract, or the tenant's own; None without one."""
        key = tenant_id, contract_id, "" if contract_id else gpu_model, floor_hour(at)
        if key not in self._prices:
            self._prices[key] = (
                self._by_contract(contract_id, key[3])
                if contract_id
                else price_of(self._session, tenant_id, gpu_model, key[3])
            )
        return self._prices[key]

    def cost(
        self,
        tenant_id: str,
        contract_id: str | None,
        gpu_model: str,
        at: datetime,
        gpu_milliseconds: int,
    ) -> Decimal:
        """Return what GPU time costs; 0 without a price."""
        price = self.price(tenant_id, contract_id, gpu_model, at)
        return ZERO if price is None else exact(price * gpu_milliseconds / MILLISECONDS_PER_HOUR)

    def _by_contract(self, contract_id: str, hour_at: datetime) -> Decimal | None:
        contract = self._session.get(Contract, contract_id)
        # A contract may have begun within the hour.
        terms = contract and (contract.terms_at(hour_at) or contract.terms_at(hour_at + HOUR))
        if not terms:
            return None
        return terms.price_at(hour_at) * (100 - terms.discount_percent) / 100


def unbilled_costs(
    session: Session,
    tenant_id: str | None,
    period: Period,
    *,
    now: datetime,
    job_id: str | None = None,
) -> list[UnbilledCost]:
    """Return the costs of a period that have no billing lines, up to now.

    Args:
        session: the session.
        tenant_id: who pays; None for all tenants.
        period: the time.
        now: the time.
        job_id: only those of a job.
    """
    pricing = Pricing(session)
    until = min(period.until, now)
    costs = _of_ledger(session, pricing, tenant_id, Period(period.since, until), job_id)
    return [*costs, *_of_attempts(session, pricing, tenant_id, Period(period.since, until), job_id)]


def _of_ledger(
    session: Session, pricing: Pricing, tenant_id: str | None, period: Period, job_id: str | None
) -> Iterator[UnbilledCost]:
    """Yield the costs of rows of the ledger without a line."""
    since = max(period.since, period.until - ACCRUED_WITHIN)
    if tenant_id is not None:
        last_at = session.scalar(
            select(func.max(BillingLine.at)).where(
                BillingLine.tenant_id == tenant_id,
                BillingLine.at < period.until,
                BillingLine.kind == LineKind.USAGE,
            )
        )
        since = max(since, last_at or since)
    statement = select(UsageEntry).where(
        UsageEntry.hour_at >= floor_hour(since),
        UsageEntry.hour_at >= period.since,
        UsageEntry.hour_at < period.until,
        ~exists().where(BillingLine.usage_entry_id == UsageEntry.id),
    )
    if tenant_id is not None:
        statement = statement.where(UsageEntry.tenant_id == tenant_id)
    if job_id is not None:
        statement = statement.where(UsageEntry.job_id == job_id)
    for row in session.scalars(statement.execution_options(yield_per=1000)):
        amount = pricing.cost(
            row.tenant_id, row.contract_id, row.gpu_model, row.hour_at, row.allocated_milliseconds
        )
        if amount:
            yield _cost(row, row.contract_id, row.gpu_model, row.hour_at, amount)


def _of_attempts(
    session: Session, pricing: Pricing, tenant_id: str | None, period: Period, job_id: str | None
) -> Iterator[UnbilledCost]:
    """Yield the costs of hours that the ledger lacks."""
    recorded_at = recorded_until(session)
    since = period.since if recorded_at is None else max(period.since, recorded_at)
    if since >= period.until:
        return
    conditions: list[ColumnElement[bool]] = []
    if tenant_id is not None:
        conditions.append(Attempt.tenant_id == tenant_id)
    if job_id is not None:
        conditions.append(Attempt.job_id == job_id)
    attempts = read_attempts(session, Period(since, period.until), *conditions)
    if not attempts:
        return
    starts = [attempt.charged_from for attempt in attempts if attempt.charged_from is not None]
    since = max(since, min(starts, default=period.until))
    models = read_models(session, {attempt.site_id for attempt in attempts})
    contracts = _contracts_of(session, attempts)
    while since < period.until:
        end = min(floor_hour(since) + HOUR, period.until)
        for attempt in attempts:
            yield from _in_hour(attempt, pricing, models, contracts, Period(since, end))
        since = end


def _in_hour(
    attempt: LedgerAttempt,
    pricing: Pricing,
    models: Mapping[str, Mapping[str, str]],
    contracts: Mapping[str, str],
    period: Period,
) -> Iterator[UnbilledCost]:
    contract_id = contracts.get(attempt.id)
    uses = use_by_model(attempt, {}, models.get(attempt.site_id, {}), period)
    for model, use in uses.items():
        milliseconds = use.allocated_milliseconds
        amount = pricing.cost(attempt.tenant_id, contract_id, model, period.since, milliseconds)
        if amount:
            yield _cost(attempt, contract_id, model, floor_hour(period.since), amount)


def _contracts_of(session: Session, attempts: Sequence[LedgerAttempt]) -> dict[str, str]:
    """Return the contracts of rented attempts by the ids of these."""
    contracts: dict[str, str] = {}
    for chunk in chunked([attempt.id for attempt in attempts]):
        rented = select(Attempt.id, Attempt.contract_id).where(
            Attempt.id.in_(chunk), Attempt.contract_id.is_not(None)
        )
        contracts |= {ident: contract_id or "" for ident, contract_id in session.execute(rented)}
    return contracts


def _cost(
    row: Any,  # noqa: ANN401 - a row of the ledger, or an attempt
    contract_id: str | None,
    gpu_model: str,
    hour_at: datetime,
    amount: Decimal,
) -> UnbilledCost:
    return UnbilledCost(
        tenant_id=row.tenant_id,
        user_id=row.user_id,
        project_id=row.project_id,
        job_id=row.job_id,
        job_name=row.job_name,
        appliance_id=row.appliance_id,
        contract_id=contract_id,
        gpu_model=gpu_model,
        hour_at=hour_at,
        amount=amount,
    )
