"""Charge the minimum time of attempts on rented appliances that were shorter.

A minimum is a line for the time that is missing, at the price of the attempt's first hour less the
discount. It is compared again whenever the ledger changes, and what differs is another line: an
attempt whose end was reported late was longer, or shorter, than it seemed.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import Integer, cast, func, insert, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.ids import new_id
from jobqueue.models import CHARGED_FROM, Attempt
from jobqueue.usage.ledger import floor_hour, recorded_until
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import HOUR, Pricing, Rate, Use, charge

MILLI = 1000
_MILLISECOND = timedelta(milliseconds=1)


class Ended(NamedTuple):
    """An attempt that has ended, and its use of one GPU model by the ledger."""

    attempt_id: str
    contract_id: str
    gpu_model: str
    begun_at: datetime
    finished_at: datetime
    tenant_id: str
    appliance_id: str
    job_id: str
    job_name: str
    user_id: str | None
    project_id: str | None
    gpu_milliseconds: int


class Charged(NamedTuple):
    """What the minimum lines of an attempt and model come to."""

    gpu_milliseconds: int
    amount: Decimal


def add_minimums(
    session: Session, pricing: Pricing, hours: Collection[datetime], *, now: datetime
) -> int:
    """Charge the minimum of attempts in hours that have ended; return the lines added.

    Of one that ended after these hours, the ledger must have the hours until then.
    """
    rented = select(UsageEntry.attempt_id, UsageEntry.contract_id).where(
        UsageEntry.hour_at.in_(hours), UsageEntry.contract_id.is_not(None)
    )
    pairs = session.execute(rented.distinct()).all()
    pricing.read(session, (("", contract_id) for _, contract_id in pairs))
    lines = []
    by = max(max(hours) + HOUR, recorded_until(session) or max(hours))
    for attempt_ids in chunked(sorted({attempt_id for attempt_id, _ in pairs})):
        ended = read_ended(session, attempt_ids, by=by)
        charged = read_charged(session, [row.attempt_id for row in ended])
        counts: dict[str, int] = defaultdict(int)
        for attempt_id, _ in charged:
            counts[attempt_id] += charged[attempt_id, _][1]
        for row in ended:
            rate = first_rate(pricing, row)
            if rate is None:
                continue
            before = charged.get((row.attempt_id, row.gpu_model), (Charged(0, Decimal(0)), 0))[0]
            missing = missing_milliseconds(row, rate)
            amount = charge(rate.net_price, missing) - before.amount
            if not amount and missing == before.gpu_milliseconds:
                continue
            number = counts[row.attempt_id]
            counts[row.attempt_id] += 1
            lines.append(
                {
                    **_facts(row, rate),
                    "source_id": f"minimum:{row.attempt_id}:{number}",
                    "gpu_milliseconds": missing - before.gpu_milliseconds,
                    "amount": amount,
                    "recorded_at": now,
                }
            )
    if lines:
        session.execute(insert(BillingLine), lines)
    return len(lines)


def read_ended(session: Session, attempt_ids: list[str], *, by: datetime) -> list[Ended]:
    """Return the attempts on rented appliances that have ended by a time, by GPU model."""
    first = func.max
    statement = (
        select(
            UsageEntry.attempt_id,
            first(UsageEntry.contract_id),
            UsageEntry.gpu_model,
            first(CHARGED_FROM),
            first(Attempt.finished_at),
            first(UsageEntry.tenant_id),
            first(UsageEntry.appliance_id),
            first(UsageEntry.job_id),
            first(UsageEntry.job_name),
            first(UsageEntry.user_id),
            first(UsageEntry.project_id),
            cast(func.sum(UsageEntry.allocated_milliseconds), Integer),
        )
        .join(Attempt, Attempt.id == UsageEntry.attempt_id)
        .where(UsageEntry.attempt_id.in_(attempt_ids), Attempt.finished_at <= by)
        .where(UsageEntry.contract_id.is_not(None), CHARGED_FROM.is_not(None))
        .group_by(UsageEntry.attempt_id, UsageEntry.gpu_model)
        .order_by(UsageEntry.attempt_id, UsageEntry.gpu_model)
    )
    return [Ended(*row) for row in session.execute(statement)]


def read_charged(
    session: Session, attempt_ids: list[str]
) -> Mapping[tuple[str, str], tuple[Charged, int]]:
    """Return what was charged as minimum, and by how many lines, by attempt and model."""
    statement = (
        select(
            BillingLine.attempt_id,
            BillingLine.gpu_model,
            func.sum(BillingLine.gpu_milliseconds),
            func.sum(BillingLine.amount),
            func.count(),
        )
        .where(BillingLine.attempt_id.in_(attempt_ids), BillingLine.kind == LineKind.MINIMUM)
        .group_by(BillingLine.attempt_id, BillingLine.gpu_model)
    )
    return {
        (str(attempt_id), model): (Charged(int(milliseconds), amount), count)
        for attempt_id, model, milliseconds, amount, count in session.execute(statement)
    }


def first_rate(pricing: Pricing, row: Ended) -> Rate | None:
    """Return the rate of an attempt's first hour."""
    hour_at = floor_hour(row.begun_at)
    return pricing.rate(Use(row.tenant_id, row.contract_id, row.gpu_model, hour_at))


def missing_milliseconds(row: Ended, rate: Rate) -> int:
    """Return the time of GPUs that an attempt lacks to its minimum, by what the ledger has.

    The number of GPUs, in thousandths, is that time divided by the duration.
    """
    duration = (row.finished_at - row.begun_at) // _MILLISECOND
    minimum = rate.min_seconds * MILLI
    if duration <= 0 or duration >= minimum or row.gpu_milliseconds <= 0:
        return 0
    gpu_milli = round(row.gpu_milliseconds * MILLI / duration)
    return max(0, minimum * gpu_milli // MILLI - row.gpu_milliseconds)


def _facts(row: Ended, rate: Rate) -> dict[str, object]:
    columns = (
        *("attempt_id", "contract_id", "gpu_model", "tenant_id", "appliance_id"),
        *("job_id", "job_name", "user_id", "project_id"),
    )
    return {
        **{name: getattr(row, name) for name in columns},
        "id": new_id(),
        "kind": LineKind.MINIMUM,
        "provider_id": rate.provider_id,
        "version_number": rate.version_number,
        "at": floor_hour(row.begun_at),
        "unit_price": rate.net_price,
        "note": f"minimum of {rate.min_seconds:,} seconds",
        "created_by": "",
    }
