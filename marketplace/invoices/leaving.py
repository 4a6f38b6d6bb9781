"""Tenants that are to be removed: not before what they rented, or rented out, is invoiced."""

from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.models import Attempt
from jobqueue.usage.ledger import recorded_until
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine
from marketplace.charges.service import due_hours
from marketplace.invoices.closing import CLOSE_AFTER, open_month
from marketplace.invoices.models import ClosedLine, Closing
from marketplace.models import Contract
from marketplace.months import month_of, next_month


def unsettled(session: Session, tenant_id: str, *, now: datetime) -> str:
    """Return what a removal of a tenant waits for, as a sentence; "" for nothing.

    The other side of its contracts would lose what is deleted with it: use that is not in the
    ledger yet, rows without lines, and lines without an invoice and a statement.
    """
    if not (_has_use(session, tenant_id) or _has_lines(session, tenant_id)):
        return ""
    month_at = open_month(session) or month_of(now)
    due_at = next_month(month_at) + CLOSE_AFTER
    return (
        f"Waits until rentals of {month_at:%Y-%m} are invoiced, on {due_at:%Y-%m-%d} or soon after."
    )


def _has_use(session: Session, tenant_id: str) -> bool:
    """Return whether rented appliances were used that no line is about yet."""
    recorded = recorded_until(session)
    is_open = Attempt.finished_at.is_(None)
    attempts = exists().where(
        Attempt.contract_id.is_not(None),
        or_(Attempt.tenant_id == tenant_id, Attempt.provider_id == tenant_id),
        *(() if recorded is None else (or_(is_open, Attempt.finished_at > recorded),)),
    )
    if session.scalar(select(attempts)):
        return True
    own = select(Contract.id).where(
        or_(Contract.customer_id == tenant_id, Contract.provider_id == tenant_id)
    )
    rows = UsageEntry.contract_id.in_(own)
    return any(
        session.scalar(select(exists().where(rows, UsageEntry.hour_at.in_(hours))))
        for hours in chunked([hour_at for hour_at, _ in due_hours(session)])
    )


def _has_lines(session: Session, tenant_id: str) -> bool:
    """Return whether lines of rentals are in no invoice or in no statement yet."""
    issued = exists().where(
        ClosedLine.line_id == BillingLine.id,
        Closing.id == ClosedLine.closing_id,
        Closing.document_id.is_not(None),
        Closing.statement_id.is_not(None),
    )
    sides: tuple[ColumnElement[bool], ...] = (
        and_(BillingLine.tenant_id == tenant_id, BillingLine.provider_id.is_not(None)),
        BillingLine.provider_id == tenant_id,
    )
    return any(session.scalar(select(exists().where(side, ~issued))) for side in sides)
