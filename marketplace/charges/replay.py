"""Compute the lines of a period again from the usage ledger, the terms and the price lists.

What is computed is compared with what was charged, row by row and to the last place. Only hours
that are charged are compared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import and_, exists, func, select
from sqlalchemy.orm import aliased

from core.db import SessionFactory, chunked, transaction
from core.money import ZERO, format_amount
from jobqueue.usage.ledger import floor_hour
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry, UsageHour
from marketplace.charges.minimums import first_rate, missing_milliseconds, read_charged, read_ended
from marketplace.charges.models import BillingLine, ChargedHour, LineKind
from marketplace.charges.pricing import HOUR, Pricing, Use, charge
from marketplace.charges.reserved import rate_of, read_charged_places, reserved_in

BATCH = 5000
HOURS_AT_ONCE = 48
MAX_SHOWN = 20


class Difference(NamedTuple):
    """A row, or an attempt, whose lines are others than its price is."""

    hour_at: datetime
    source: str
    expected: Decimal
    charged: Decimal

    def text(self, currency: str) -> str:
        """Return a line about it."""
        expected, charged = (format_amount(part, currency) for part in self[2:])
        return (
            f"{self.hour_at:%Y-%m-%d %H:%M} {self.source}: {expected} expected, {charged} charged"
        )


@dataclass(slots=True)
class Replay:
    """What a period should cost, and what was charged.

    Attributes:
        rows: of the ledger.
        expected: what they cost, with minimum times.
        charged: the sum of the lines that they have.
        waiting_hours: that are not charged yet.
        orphans: lines of rows that were deleted with their tenant.
        difference_count: how many rows and attempts differ.
        differences: the first of them.
    """

    rows: int = 0
    expected: Decimal = ZERO
    charged: Decimal = ZERO
    waiting_hours: int = 0
    orphans: int = 0
    difference_count: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether every row was charged what it costs."""
        return self.difference_count == 0

    def add(self, hour_at: datetime, source: str, expected: Decimal, charged: Decimal) -> None:
        """Count what something should cost, and what was charged for it."""
        self.expected += expected
        self.charged += charged
        if expected != charged:
            self.difference_count += 1
            if len(self.differences) < MAX_SHOWN:
                self.differences.append(Difference(hour_at, source, expected, charged))


def replay(sessions: SessionFactory, period: Period) -> Replay:
    """Compare a period's lines with the ledger, hour by hour in short transactions."""
    result, pricing = Replay(), Pricing()
    with transaction(sessions) as session:
        statement = (
            select(UsageHour.hour_at, UsageHour.appends, ChargedHour.appends)
            .outerjoin(ChargedHour, ChargedHour.hour_at == UsageHour.hour_at)
            .where(UsageHour.hour_at >= period.since, UsageHour.hour_at < period.until)
        )
        hours = session.execute(statement.order_by(UsageHour.hour_at)).all()
    charged = [row.hour_at for row in hours if row[1] == row[2]]
    result.waiting_hours = len(hours) - len(charged)
    for part in chunked([row.hour_at for row in hours], HOURS_AT_ONCE):
        result.orphans += _orphans(sessions, part)
    for part in chunked(charged, HOURS_AT_ONCE):
        rented = _replay_rows(sessions, pricing, part, result)
        _replay_minimums(sessions, pricing, part, rented, result)
        _replay_reserved(sessions, pricing, part, result)
    return result


def _orphans(sessions: SessionFactory, hours: list[datetime]) -> int:
    """Return how many lines of hours are of rows that were deleted."""
    lost = select(func.count()).where(
        BillingLine.kind == LineKind.USAGE,
        BillingLine.at.in_(hours),
        ~exists().where(UsageEntry.id == BillingLine.usage_entry_id),
    )
    with transaction(sessions) as session:
        return session.scalar(lost) or 0


def _replay_rows(
    sessions: SessionFactory, pricing: Pricing, hours: list[datetime], result: Replay
) -> set[str]:
    """Compare the rows of hours; return the attempts on rented appliances."""
    rented: set[str] = set()
    for rows in _rows(sessions, pricing, hours):
        result.rows += len(rows)
        for row in rows:
            rate = pricing.rate(Use(row.tenant_id, row.contract_id, row.gpu_model, row.hour_at))
            amount = ZERO if rate is None else charge(rate.price, row.allocated_milliseconds)
            discount = rate.discount_of(amount) if rate and rate.discount_percent else ZERO
            charged = (row.amount or ZERO) + (row.discount or ZERO)
            result.add(row.hour_at, f"row {row.id}", amount + discount, charged)
            if row.contract_id is not None:
                rented.add(row.attempt_id)
    return rented


def _rows(sessions: SessionFactory, pricing: Pricing, hours: list[datetime]) -> Iterator[list[Any]]:
    discount = aliased(BillingLine)
    statement = (
        select(
            UsageEntry.id,
            UsageEntry.hour_at,
            UsageEntry.tenant_id,
            UsageEntry.contract_id,
            UsageEntry.attempt_id,
            UsageEntry.gpu_model,
            UsageEntry.allocated_milliseconds,
            BillingLine.amount,
            discount.amount.label("discount"),
        )
        .outerjoin(BillingLine, BillingLine.usage_entry_id == UsageEntry.id)
        .outerjoin(
            discount,
            and_(discount.source_id == UsageEntry.id, discount.kind == LineKind.DISCOUNT),
        )
        .where(UsageEntry.hour_at.in_(hours))
        .order_by(UsageEntry.hour_at, UsageEntry.id)
        .limit(BATCH)
    )
    count = BATCH
    while count == BATCH:
        with transaction(sessions) as session:
            rows = list(session.execute(statement))
            pricing.read(session, ((row.tenant_id, row.contract_id) for row in rows))
        count = len(rows)
        if rows:
            yield rows
            last = rows[-1]
            is_later = (UsageEntry.hour_at > last.hour_at) | (UsageEntry.id > last.id)
            rest = statement.where(UsageEntry.hour_at >= last.hour_at, is_later)
            statement = rest


def _replay_minimums(
    sessions: SessionFactory,
    pricing: Pricing,
    hours: list[datetime],
    attempt_ids: Iterable[str],
    result: Replay,
) -> None:
    """Compare the minimum times of attempts that ended in hours, as long as they are stored."""
    for idents in chunked(sorted(attempt_ids)):
        with transaction(sessions) as session:
            ended = [
                row
                for row in read_ended(session, idents, by=max(hours) + HOUR)
                if row.finished_at > min(hours)
            ]
            charged = read_charged(session, [row.attempt_id for row in ended])
        for row in ended:
            rate = first_rate(pricing, row)
            expected = (
                ZERO if rate is None else charge(rate.net_price, missing_milliseconds(row, rate))
            )
            before = charged.get((row.attempt_id, row.gpu_model))
            amount = ZERO if before is None else before[0].amount
            result.add(floor_hour(row.begun_at), f"minimum of {row.attempt_id}", expected, amount)


def _replay_reserved(
    sessions: SessionFactory, pricing: Pricing, hours: list[datetime], result: Replay
) -> None:
    """Compare what reservations kept and no job used."""
    with transaction(sessions) as session:
        places = reserved_in(session, hours)
        charged = read_charged_places(session, hours)
        pricing.read(session, (("", place.contract_id) for place in places))
    for place in sorted(places.keys() | charged.keys()):
        reserved = places.get(place)
        rate = None if reserved is None else rate_of(pricing, place, reserved)
        expected = ZERO
        if reserved is not None and rate is not None:
            expected = charge(rate.net_price, reserved.unused_milliseconds)
        amount = charged[place].amount if place in charged else ZERO
        result.add(place.hour_at, f"reservation on {place.appliance_id}", expected, amount)
