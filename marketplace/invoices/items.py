"""Items of invoices: sums of billing lines that have the same price, in cents.

Lines have eight places. An item is their sum, rounded to cents half up; totals add up items, so
that every figure of a document adds up to the one below it. Invoices and statements have the same
items, so they agree.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import extract, func, select
from sqlalchemy.orm import Session

from core.money import ZERO, cents
from jobqueue.projects.models import Project
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import MILLISECONDS_PER_HOUR
from marketplace.invoices.models import ClosedLine, Closing
from marketplace.models import Contract

_HOUR_PLACES = Decimal("0.000001")
_KIND_ORDER = {kind: number for number, kind in enumerate(LineKind)}
# Kinds of lines that are time at a price.
TIMED = {LineKind.USAGE, LineKind.MINIMUM, LineKind.RESERVATION, LineKind.COMMITMENT}
_TITLES: Mapping[LineKind, str] = {
    LineKind.USAGE: "GPU time",
    LineKind.MINIMUM: "Minimum time",
    LineKind.RESERVATION: "Reserved, not used",
    LineKind.DISCOUNT: "Discount",
    LineKind.COMMITMENT: "Unused commitment",
    LineKind.SERVICE_CREDIT: "Service credit",
    LineKind.CORRECTION: "Correction",
}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item of an invoice or statement.

    Attributes:
        number: from 1, in its document; 0 before it is in one.
        month: `2026-03`, of the use; of an earlier month, it corrects that.
        kind: as of its lines.
        contract_id: of what was rented; "" for own appliances.
        subject: the offer, or the project.
        other_side: the provider on an invoice, the customer on a statement.
        gpu_model: "" where it is not about one.
        text: what it is for.
        gpu_hours: of single GPUs, with six places.
        unit_price: of a GPU for an hour.
        amount: in cents.
    """

    number: int = 0
    month: str
    kind: LineKind
    contract_id: str = ""
    subject: str = ""
    other_side: str = ""
    gpu_model: str = ""
    text: str = ""
    gpu_hours: Decimal = ZERO
    unit_price: Decimal = ZERO
    amount: Decimal

    @property
    def has_time(self) -> bool:
        """Return whether it is time at a price."""
        return self.kind in TIMED


def items_of(session: Session, closing: Closing) -> list[Item]:
    """Return what the lines of a closing come to, in the order of documents."""
    is_own = closing.contract_id is None
    keys: list[Any] = [
        extract("year", BillingLine.at),
        extract("month", BillingLine.at),
        BillingLine.kind,
        BillingLine.gpu_model,
        BillingLine.unit_price,
        BillingLine.note,
        *([func.coalesce(BillingLine.project_id, "")] if is_own else []),
    ]
    statement = (
        select(*keys, func.sum(BillingLine.gpu_milliseconds), func.sum(BillingLine.amount))
        .join(ClosedLine, ClosedLine.line_id == BillingLine.id)
        .where(ClosedLine.closing_id == closing.id)
        .group_by(*keys)
    )
    rows: list[Any] = list(session.execute(statement))
    names = _project_names(session, {row[6] for row in rows} if is_own else set())
    contract = None if is_own else session.get(Contract, closing.contract_id)
    items = []
    for year, month, kind, model, price, note, *project, milliseconds, amount in rows:
        hours = Decimal(int(milliseconds)) / MILLISECONDS_PER_HOUR
        item = Item(
            month=f"{int(year)}-{int(month):02}",
            kind=kind,
            contract_id=closing.contract_id or "",
            subject=contract.offer_name if contract else names.get("".join(project), "No project"),
            gpu_model=model,
            text=f"{_TITLES[kind]}: {note}" if note else _TITLES[kind],
            gpu_hours=hours.quantize(_HOUR_PLACES),
            unit_price=price,
            amount=cents(amount),
        )
        if item.amount or item.gpu_hours:
            items.append(item)
    return sorted(items, key=_order)


def numbered(items: Iterable[tuple[Item, str]]) -> list[Item]:
    """Return items of several closings, each with its other side, as those of one document."""
    ordered = sorted(items, key=lambda pair: (pair[1].casefold(), _order(pair[0])))
    return [
        msgspec.structs.replace(item, number=number, other_side=other_side)
        for number, (item, other_side) in enumerate(ordered, start=1)
    ]


def encoded(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return items as JSON: amounts as text, with all their places."""
    return [msgspec.to_builtins(item) for item in items]


def decoded(items: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Return stored items."""
    return msgspec.convert(list(items), list[Item])


def total_of(items: Iterable[Item]) -> Decimal:
    """Return the sum of items."""
    return sum((item.amount for item in items), ZERO)


def month_name(month_at: datetime) -> str:
    """Return a month such as `2026-03`."""
    return f"{month_at:%Y-%m}"


def _order(item: Item) -> tuple[object, ...]:
    return (
        item.subject.casefold(),
        item.contract_id,
        item.month,
        _KIND_ORDER[item.kind],
        item.gpu_model,
        -item.unit_price,
        item.text,
    )


def _project_names(session: Session, idents: set[str]) -> dict[str, str]:
    statement = select(Project.id, Project.name).where(Project.id.in_(idents))
    return {row[0]: row[1] for row in session.execute(statement)}
