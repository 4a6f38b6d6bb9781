"""Charge the usage ledger, and add other lines.

`accrue` gives each row of the ledger with a price one line. It goes by hour: `UsageHour.appends`
counts how often the ledger appended to an hour, in the transaction that did so, and `ChargedHour`
has the count before the hour's rows were read. Rows are found by having no line, never by a time or
an id, so none is missed if its transaction ends late, and none is charged twice if a run is killed
or two processes run: the line of a row is unique.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, exists, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import SessionFactory, begin_writing, chunked, transaction
from core.errors import ConflictError
from core.ids import new_id
from jobqueue.models import Attempt
from jobqueue.usage.ledger import recorded_until
from jobqueue.usage.models import UsageEntry, UsageHour
from marketplace.charges.minimums import add_minimums
from marketplace.charges.models import BillingLine, ChargedHour, LineKind
from marketplace.charges.pricing import Pricing, Use, charge
from marketplace.charges.reserved import add_reserved
from marketplace.charges.unreadable import note_uncharged, resume_repaired
from marketplace.prices.models import PriceList
from marketplace.tenant_errors import TenantErrors

log = logging.getLogger(__name__)

BATCH = 2000
MAX_HOURS = 1000
# In one transaction at least: a ledger of years is charged in minutes.
HOURS_AT_ONCE = 48
_BUSY = "Another process charges the same hours. Try again."


class _Row(NamedTuple):
    """A row of the ledger without a line."""

    id: str
    hour_at: datetime
    tenant_id: str
    user_id: str | None
    project_id: str | None
    job_id: str
    job_name: str
    attempt_id: str
    appliance_id: str
    contract_id: str | None
    gpu_model: str
    allocated_milliseconds: int


_COLUMNS = [getattr(UsageEntry, name) for name in _Row._fields]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `accrue`; lists and contracts are as they were at its beginning."""

    sessions: SessionFactory
    pricing: Pricing
    now: datetime
    is_stopping: Callable[[], bool]

    def charge(self, condition: ColumnElement[bool], limit: int) -> tuple[int, bool]:
        """Add the lines of rows that meet a condition; return how many, and whether of all."""
        added, after = 0, None
        while True:
            with transaction(self.sessions) as session:
                rows = _without_line(session, condition, after=after)
                self.pricing.read(session, ((row.tenant_id, row.contract_id) for row in rows))
            lines = [line for row in rows for line in _lines(row, self.pricing, now=self.now)]
            if lines:
                _insert(self.sessions, lines)
            added += len(lines)
            if len(rows) < BATCH:
                return added, True
            if added >= limit or self.is_stopping():
                return added, False
            after = rows[-1]

    def raise_if_unreadable(self, added: int) -> None:
        """End a run that has added no more lines as failed if it left contracts out."""
        if not added:
            errors = TenantErrors("charge the use")
            errors.tenant_ids.update(*self.pricing.unreadable.values())
            errors.raise_if_any()


def accrue(
    sessions: SessionFactory,
    *,
    now: datetime,
    limit: int = 100_000,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Add the lines of ledger rows that have none; return how many.

    Args:
        sessions: for short transactions.
        now: the time.
        limit: about how many lines; the next call continues.
        is_stopping: whether to end early.

    Raises:
        ConflictError: another process does the same; the next call continues.
        TenantsFailedError: all others are charged; the terms of these contracts can't be read.
    """
    run = _Run(sessions, Pricing(), now, is_stopping)
    added = 0
    with transaction(sessions) as session:
        resume_repaired(session, run.pricing)
        lists = list(session.scalars(select(PriceList).where(PriceList.charged_at.is_(None))))
        due = due_hours(session)
    for row in lists:
        owners = [] if row.tenant_id is None else [UsageEntry.tenant_id == row.tenant_id]
        past = (UsageEntry.hour_at >= row.valid_from, UsageEntry.hour_at <= row.created_at)
        condition = and_(UsageEntry.contract_id.is_(None), *owners, *past)
        count, is_complete = run.charge(condition, limit - added)
        added += count
        if not is_complete:
            return added
        with transaction(sessions) as session:
            session.get_one(PriceList, row.id).charged_at = now
    for hours in chunked(due, HOURS_AT_ONCE):
        if added >= limit or is_stopping():
            return added
        condition = UsageEntry.hour_at.in_([hour_at for hour_at, _ in hours])
        count, is_complete = run.charge(condition, limit - added)
        added += count
        if not is_complete:
            return added
        added += _settle(run, dict(hours))
    run.raise_if_unreadable(added)
    return added


def due_hours(session: Session, *, until: datetime | None = None) -> list[tuple[datetime, int]]:
    """Return the hours of the ledger with rows that may have no line, oldest first."""
    statement = (
        select(UsageHour.hour_at, UsageHour.appends)
        .outerjoin(ChargedHour, ChargedHour.hour_at == UsageHour.hour_at)
        .where(or_(ChargedHour.appends.is_(None), ChargedHour.appends != UsageHour.appends))
        .order_by(UsageHour.hour_at)
        .limit(MAX_HOURS)
    )
    if until is not None:
        statement = statement.where(UsageHour.hour_at < until)
    return [(row.hour_at, row.appends) for row in session.execute(statement)]


def is_charged(session: Session, until: datetime) -> bool:
    """Return whether the ledger has all hours before a time, and all of its rows their lines.

    The ledger begins with the first attempt.
    """
    recorded = recorded_until(session)
    if recorded is None:
        return not session.scalar(select(exists().where(Attempt.assigned_at < until)))
    return recorded >= until and not due_hours(session, until=until)


def add_line(
    session: Session,
    *,
    kind: LineKind,
    tenant_id: str,
    provider_id: str | None,
    contract_id: str | None,
    at: datetime,
    amount: Decimal,
    source_id: str,
    note: str,
    created_by: str = "",
    now: datetime,
    **facts: Any,  # noqa: ANN401 - other columns
) -> BillingLine | None:
    """Add a line that comes from something else than a row of the ledger, once.

    Args:
        session: the session.
        kind: what it is for.
        tenant_id: who pays.
        provider_id: who is paid; None for use of own appliances.
        contract_id: of a rented appliance.
        at: the time that it is for.
        amount: negative for credits.
        source_id: what it comes from, up to 100 letters.
        note: what invoices say.
        created_by: the email address of a user; "" for the portal.
        now: the time.
        facts: other columns of the line.

    Returns:
        The line; None if the source has one already.
    """
    if session.scalar(select(exists().where(BillingLine.source_id == source_id))):
        return None
    line = BillingLine(
        kind=kind,
        tenant_id=tenant_id,
        provider_id=provider_id,
        contract_id=contract_id,
        at=at,
        recorded_at=now,
        amount=amount,
        source_id=source_id,
        note=note,
        created_by=created_by,
        **facts,
    )
    try:
        with session.begin_nested():
            session.add(line)
    except IntegrityError:
        return None
    return line


def _without_line(
    session: Session, condition: ColumnElement[bool], *, after: _Row | None
) -> list[_Row]:
    statement = (
        select(*_COLUMNS)
        .outerjoin(BillingLine, BillingLine.usage_entry_id == UsageEntry.id)
        .where(condition, BillingLine.id.is_(None))
        .order_by(UsageEntry.hour_at, UsageEntry.id)
        .limit(BATCH)
    )
    if after is not None:
        is_later = (UsageEntry.hour_at > after.hour_at) | (UsageEntry.id > after.id)
        statement = statement.where(UsageEntry.hour_at >= after.hour_at, is_later)
    return [_Row(*row) for row in session.execute(statement)]


def _lines(row: _Row, pricing: Pricing, *, now: datetime) -> Sequence[dict[str, Any]]:
    """Return the line of a row, and of its discount; none if it has no price."""
    rate = pricing.rate(Use(row.tenant_id, row.contract_id, row.gpu_model, row.hour_at))
    if rate is None:
        if row.contract_id is not None and row.contract_id not in pricing.unreadable:
            log.error("contract %s has no terms for %s", row.contract_id, row.hour_at)
        return ()
    amount = charge(rate.price, row.allocated_milliseconds)
    line = {
        "id": new_id(),
        "tenant_id": row.tenant_id,
        "provider_id": rate.provider_id,
        "contract_id": row.contract_id,
        "version_number": rate.version_number,
        "kind": LineKind.USAGE,
        "usage_entry_id": row.id,
        "source_id": None,
        "at": row.hour_at,
        "recorded_at": now,
        "user_id": row.user_id,
        "project_id": row.project_id,
        "job_id": row.job_id,
        "job_name": row.job_name,
        "attempt_id": row.attempt_id,
        "appliance_id": row.appliance_id,
        "gpu_model": row.gpu_model,
        "gpu_milliseconds": row.allocated_milliseconds,
        "unit_price": rate.price,
        "amount": amount,
        "note": "",
        "created_by": "",
    }
    if not rate.discount_percent:
        return (line,)
    discount = {
        "id": new_id(),
        "kind": LineKind.DISCOUNT,
        "usage_entry_id": None,
        "source_id": row.id,
        "gpu_milliseconds": 0,
        "unit_price": Decimal(0),
        "amount": rate.discount_of(amount),
        "note": f"{rate.discount_percent.normalize():f} %",
    }
    return line, {**line, **discount}


def _insert(sessions: SessionFactory, lines: Sequence[dict[str, Any]]) -> None:
    try:
        with transaction(sessions) as session:
            session.execute(insert(BillingLine.__table__), lines)  # type: ignore[arg-type]
    except IntegrityError as error:
        raise ConflictError(_BUSY) from error


def _settle(run: _Run, hours: dict[datetime, int]) -> int:
    """Charge minimum times and reservations in hours, and mark these; return the lines added."""
    try:
        with transaction(run.sessions) as session:
            # The sums below must not change until the lines are there.
            begin_writing(session)
            added = add_minimums(session, run.pricing, hours, now=run.now)
            added += add_reserved(session, run.pricing, hours, now=run.now)
            note_uncharged(session, run.pricing.unreadable.keys(), since=min(hours))
            rows = session.scalars(select(ChargedHour).where(ChargedHour.hour_at.in_(hours)))
            charged = {row.hour_at: row for row in rows}
            for hour_at, appends in hours.items():
                if hour_at not in charged:
                    charged[hour_at] = ChargedHour(hour_at=hour_at)
                    session.add(charged[hour_at])
                charged[hour_at].appends, charged[hour_at].charged_at = appends, run.now
    except IntegrityError as error:
        raise ConflictError(_BUSY) from error
    return added
