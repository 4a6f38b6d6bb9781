"""Issue invoices and statements from sealed closings.

Tax is computed once, on the sum of an invoice's items, and rounded to cents half up; so is the fee
of a statement. A statement is net of tax: what providers owe is theirs to declare.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Select, insert, select, update
from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from core.db import changed_one
from core.errors import ConflictError
from core.ids import new_id
from core.money import ZERO, cents, exact, format_amount
from core.settings import ServerSettings
from marketplace.charges.prepaid import pay_with_credit
from marketplace.invoices.fees import fee_percent_of
from marketplace.invoices.items import decoded, encoded, month_name, numbered, total_of
from marketplace.invoices.models import BillingDocument, Closing, DocumentCounter, DocumentKind
from marketplace.models import Account, Contract
from tenants.models import Tenant

_HUNDRED = Decimal(100)
_SERIES = {DocumentKind.INVOICE: "INV", DocumentKind.STATEMENT: "STA"}
_PARTY = ("legal_name", "address", "country", "tax_number", "billing_email")


@dataclass(frozen=True, slots=True)
class Issuing:
    """What all documents have in common."""

    currency: str
    tax_percent: Decimal
    fee_percent: Decimal
    issuer: str
    public_url: str

    @classmethod
    def of(cls, settings: ServerSettings) -> "Issuing":
        """Return the settings of a portal."""
        return cls(
            currency=settings.billing_currency,
            tax_percent=exact(Decimal(str(settings.tax_percent))),
            fee_percent=exact(Decimal(str(settings.marketplace_fee_percent))),
            issuer=settings.billing_issuer,
            public_url=settings.resolved_public_url,
        )


def left_to_issue(session: Session, month_at: datetime) -> list[tuple[DocumentKind, str]]:
    """Return the documents of a month that sealed closings wait for: their kinds and tenants."""
    waiting: list[tuple[DocumentKind, str]] = []
    for kind in DocumentKind:
        column = Closing.provider_id if kind is DocumentKind.STATEMENT else Closing.tenant_id
        statement = _waiting(kind, month_at).with_only_columns(column).distinct().order_by(column)
        waiting += [(kind, tenant_id) for tenant_id in session.scalars(statement) if tenant_id]
    return waiting


def issue(
    session: Session,
    issuing: Issuing,
    kind: DocumentKind,
    tenant_id: str,
    month_at: datetime,
    *,
    now: datetime,
) -> BillingDocument | None:
    """Issue a tenant's document of a month; None if its closings have no items.

    Raises:
        ConflictError: another process has issued it.
    """
    is_statement = kind is DocumentKind.STATEMENT
    owner = Closing.provider_id if is_statement else Closing.tenant_id
    closings = list(session.scalars(_waiting(kind, month_at).where(owner == tenant_id)))
    others = _other_sides(session, closings, is_statement=is_statement)
    items = numbered(
        (item, others.get(closing.contract_id or "", ""))
        for closing in closings
        for item in decoded(closing.items)
    )
    document_id = new_id()
    column = Closing.statement_id if is_statement else Closing.document_id
    for closing in closings:
        mark = update(Closing).where(Closing.id == closing.id, column.is_(None))
        if not changed_one(session, mark.values({column: document_id})):
            raise ConflictError("Another process closes the same month. Try again.")
    if not items:
        return None
    account = session.get(Account, tenant_id) or Account()
    net = total_of(items)
    tax_percent = _percent(account.tax_percent, issuing.tax_percent, kind is DocumentKind.INVOICE)
    fee_percent = (
        fee_percent_of(session, tenant_id, month_at, default=issuing.fee_percent)
        if is_statement
        else ZERO
    )
    tax, fee = cents(net * tax_percent / _HUNDRED), cents(net * fee_percent / _HUNDRED)
    document = BillingDocument(
        id=document_id,
        kind=kind,
        tenant_id=tenant_id,
        month_at=month_at,
        number=_number(session, kind, month_at, now=now),
        currency=issuing.currency,
        issued_at=now,
        issuer=issuing.issuer,
        tenant_name=_name_of(session, tenant_id, closings, is_statement=is_statement),
        party={name: getattr(account, name) or "" for name in _PARTY},
        items=encoded(items),
        net=net,
        tax_percent=tax_percent,
        tax=tax,
        fee_percent=fee_percent,
        fee=fee,
        total=net + tax - fee,
        prepaid=ZERO,
    )
    if kind is DocumentKind.INVOICE:
        document.prepaid = pay_with_credit(
            session,
            tenant_id,
            document.total,
            source_id=f"invoice:{document.id}",
            note=f"{document.title} {document.number}",
            now=now,
        )
    session.add(document)
    session.flush()
    if account.billing_email:
        _notify(session, document, account.billing_email, issuing, now=now)
    return document


def _waiting(kind: DocumentKind, month_at: datetime) -> Select[Closing]:
    """Select the sealed closings, up to those of a month, that are in no document of a kind."""
    sealed = (Closing.sealed_at.is_not(None), Closing.month_at <= month_at)
    statement = select(Closing).where(*sealed).order_by(Closing.id)
    if kind is DocumentKind.COST_STATEMENT:
        return statement.where(Closing.contract_id.is_(None), Closing.document_id.is_(None))
    rented = statement.where(Closing.contract_id.is_not(None))
    if kind is DocumentKind.STATEMENT:
        return rented.where(Closing.statement_id.is_(None))
    return rented.where(Closing.document_id.is_(None))


def _percent(own: Decimal | None, default: Decimal, applies: bool) -> Decimal:  # noqa: FBT001 - private
    if not applies:
        return ZERO
    return default if own is None else own


def _other_sides(
    session: Session, closings: list[Closing], *, is_statement: bool
) -> dict[str, str]:
    name = Contract.customer_name if is_statement else Contract.provider_name
    idents = {closing.contract_id for closing in closings}
    rows = session.execute(select(Contract.id, name).where(Contract.id.in_(idents)))
    return {row[0]: row[1] for row in rows}


def _name_of(
    session: Session, tenant_id: str, closings: list[Closing], *, is_statement: bool
) -> str:
    """Return the name of a tenant, or that of its contracts where it was removed."""
    name = session.scalar(select(Tenant.name).where(Tenant.id == tenant_id))
    if name is None:
        name = next(
            iter(_other_sides(session, closings, is_statement=not is_statement).values()), ""
        )
    return name


def _number(session: Session, kind: DocumentKind, month_at: datetime, *, now: datetime) -> str:
    """Return the next number of a kind's series; the row stays locked until the commit."""
    if kind is DocumentKind.COST_STATEMENT:
        return f"COST-{month_name(month_at)}"
    series = f"{_SERIES[kind]}-{now.year}"
    step = update(DocumentCounter).where(DocumentCounter.series == series)
    step = step.values(last_number=DocumentCounter.last_number + 1)
    if not changed_one(session, step, synchronize_session=False):
        session.execute(insert(DocumentCounter).values(series=series, last_number=1))
    last = select(DocumentCounter.last_number).where(DocumentCounter.series == series)
    return f"{series}-{session.scalar(last):05}"


def _notify(
    session: Session, document: BillingDocument, address: str, issuing: Issuing, *, now: datetime
) -> None:
    total = format_amount(document.total, document.currency)
    payload = {
        "subject": f"{document.title} {document.number}: {total}",
        "text": f"{document.title} {document.number} for {month_name(document.month_at)} comes to "
        f"{total}. {format_amount(document.due, document.currency)} remains to be paid.",
        "link": f"{issuing.public_url}/billing",
        "link_name": "Billing",
    }
    add_notice(session, document.tenant_id, payload, address=address, now=now)
