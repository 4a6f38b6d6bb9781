"""Read billing lines: as who pays sees them, and as who is paid does.

A customer does not see which appliance of a provider it was, a provider nothing of the job but its
time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Unpack

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from core.csv_cells import csv_text, guarded
from core.db import SessionFactory, transaction
from core.paging import Columns, Page, Paging, list_page
from jobqueue.usage.measuring import Period
from marketplace.charges.models import BillingLine, LineKind
from tenants.permissions import Permission
from tenants.scope import Scope

LINE_SORTS: Columns = {"at": BillingLine.at, "amount": BillingLine.amount}
BATCH = 2000


class LineSide(StrEnum):
    """Whose lines."""

    PAID = "paid"
    """What the tenant pays: for what it rented, and for its own appliances."""
    EARNED = "earned"
    """What others pay it as a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Which lines."""

    period: Period
    side: LineSide = LineSide.PAID
    contract_id: str = ""
    kind: LineKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """A billing line as a tenant sees it."""

    id: str
    at: datetime
    recorded_at: datetime
    kind: LineKind
    contract_id: str | None
    version_number: int | None
    gpu_model: str
    gpu_milliseconds: int
    unit_price: Decimal
    amount: Decimal
    note: str
    user_id: str | None = None
    project_id: str | None = None
    job_id: str | None = None
    job_name: str = ""
    appliance_id: str | None = None


_SHARED = (
    *("id", "at", "recorded_at", "kind", "contract_id", "version_number", "gpu_model"),
    *("gpu_milliseconds", "unit_price", "amount", "note"),
)
_OF_CUSTOMER = ("user_id", "project_id", "job_id", "job_name")
_CSV = (
    *("at", "kind", "contract_id", "gpu_model", "gpu_milliseconds", "unit_price", "amount"),
    *("note", "project_id", "user_id", "job_id", "job_name", "appliance_id", "recorded_at", "id"),
)


def list_lines(
    session: Session, scope: Scope, wanted: LineFilter, **paging: Unpack[Paging]
) -> Page[ShownLine]:
    """Return lines, newest first by default."""
    statement = _select(scope, wanted).order_by(BillingLine.at.desc(), BillingLine.id.desc())
    rows = list_page(session, statement, LINE_SORTS, last=BillingLine.id, **paging)
    return rows.of([shown(line, wanted.side) for line in rows.items])


def lines_csv(sessions: SessionFactory, scope: Scope, wanted: LineFilter) -> Iterator[str]:
    """Yield the lines of a CSV file, oldest first; batches are read in short transactions."""
    yield csv_text([_CSV])
    for line in each_line(sessions, _select(scope, wanted)):
        entry = shown(line, wanted.side)
        yield csv_text([[cell(getattr(entry, name)) for name in _CSV]])


def each_line(sessions: SessionFactory, statement: Select[BillingLine]) -> Iterator[BillingLine]:
    """Yield selected lines, oldest first, in batches with short transactions."""
    ordered = statement.order_by(BillingLine.at, BillingLine.id).limit(BATCH)
    after: BillingLine | None = None
    count = BATCH
    while count == BATCH:
        with transaction(sessions) as session:
            rest = ordered
            if after is not None:
                is_later = (BillingLine.at == after.at) & (BillingLine.id > after.id)
                rest = rest.where(
                    BillingLine.at >= after.at, (BillingLine.at > after.at) | is_later
                )
            lines = list(session.scalars(rest))
        count = len(lines)
        after = lines[-1] if lines else None
        yield from lines


def shown(line: BillingLine, side: LineSide) -> ShownLine:
    """Return a line as one of its sides sees it."""
    values = {name: getattr(line, name) for name in _SHARED}
    if side is LineSide.PAID:
        values |= {name: getattr(line, name) for name in _OF_CUSTOMER}
    if side is LineSide.EARNED or line.provider_id is None:
        values["appliance_id"] = line.appliance_id
    return ShownLine(**values)


def cell(value: object) -> str:
    """Return a value as a cell of a CSV file."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return f"{value:f}"
    return guarded(value) if isinstance(value, str) else str(value)


def _select(scope: Scope, wanted: LineFilter) -> Select[BillingLine]:
    scope.require(Permission.VIEW_BILLING)
    statement = select(BillingLine).where(
        BillingLine.at >= wanted.period.since, BillingLine.at < wanted.period.until
    )
    owner = BillingLine.tenant_id if wanted.side is LineSide.PAID else BillingLine.provider_id
    if scope.tenant_id is not None:
        statement = statement.where(owner == scope.tenant_id)
    elif wanted.side is LineSide.EARNED:
        statement = statement.where(BillingLine.provider_id.is_not(None))
    if wanted.contract_id:
        statement = statement.where(BillingLine.contract_id == wanted.contract_id)
    if wanted.kind is not None:
        statement = statement.where(BillingLine.kind == wanted.kind)
    return statement
