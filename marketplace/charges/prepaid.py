"""Prepaid credit: what operators enter, and what invoices are paid with."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.money import MAX_AMOUNT, ZERO, cents
from marketplace.charges.models import MAX_NOTE_LENGTH, PrepaidEntry
from marketplace.prices.service import user_email
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_REFERENCE_LENGTH = 60


def balance_of(session: Session, tenant_id: str) -> Decimal:
    """Return a tenant's prepaid credit, before what is not invoiced yet."""
    total = select(func.sum(PrepaidEntry.amount)).where(PrepaidEntry.tenant_id == tenant_id)
    return session.scalar(total) or ZERO


def add_credit(
    session: Session,
    scope: Scope,
    tenant_id: str,
    amount: Decimal,
    *,
    reference: str,
    note: str = "",
    now: datetime,
) -> PrepaidEntry:
    """Add to a tenant's prepaid credit, or take from it; operators only.

    Args:
        session: the session.
        scope: of an operator.
        tenant_id: whose credit.
        amount: in cents; negative to take it back.
        reference: of the payment; the same one is refused twice.
        note: what the tenant sees.
        now: the time.

    Raises:
        NotFoundError: there is no such tenant.
        InvalidInputError: with the errors by field.
        ConflictError: the reference was entered before.
    """
    scope.require(Permission.OPERATE)
    if session.get(Tenant, tenant_id) is None:
        raise NotFoundError.of("tenant", tenant_id)
    errors: dict[str, list[str]] = {}
    if not amount or abs(amount) > MAX_AMOUNT or amount != cents(amount):
        errors["amount"] = [f"Enter an amount in cents up to {MAX_AMOUNT:,}, such as 100.00."]
    if not 0 < len(reference.strip()) <= MAX_REFERENCE_LENGTH:
        errors["reference"] = [
            f"Enter the payment's reference, up to {MAX_REFERENCE_LENGTH} letters."
        ]
    if len(note) > MAX_NOTE_LENGTH:
        errors["note"] = [f"Shorten the note to {MAX_NOTE_LENGTH} letters."]
    if errors:
        raise InvalidInputError(" ".join(map(" ".join, errors.values())), errors=errors)
    entry = PrepaidEntry(
        tenant_id=tenant_id,
        amount=amount,
        source_id=f"{tenant_id}:{reference.strip()}",
        note=note.strip(),
        created_by=user_email(session, scope),
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(entry)
    except IntegrityError as error:
        raise ConflictError(
            f"The reference {reference.strip()!r} was entered before. Enter another one."
        ) from error
    return entry


def pay_with_credit(
    session: Session, tenant_id: str, total: Decimal, *, source_id: str, note: str, now: datetime
) -> Decimal:
    """Pay an invoice with prepaid credit, as far as it lasts; return what was paid.

    A credit note is added to the credit of a tenant that has had some.
    """
    entries = select(func.count()).where(PrepaidEntry.tenant_id == tenant_id)
    if not session.scalar(entries):
        return ZERO
    balance = balance_of(session, tenant_id)
    paid = total if total <= 0 else min(total, max(balance, ZERO))
    if paid:
        session.add(
            PrepaidEntry(
                tenant_id=tenant_id, amount=-paid, source_id=source_id, note=note, created_at=now
            )
        )
    return paid
