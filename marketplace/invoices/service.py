"""List and show what was issued, and a tenant's prepaid credit."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.money import ZERO, cents
from core.paging import Columns, Page, list_page
from marketplace.charges.models import BillingLine, PrepaidEntry
from marketplace.charges.prepaid import balance_of
from marketplace.invoices.closing import open_month
from marketplace.invoices.models import BillingDocument, ClosedLine, Closing, DocumentKind
from marketplace.models import Account
from marketplace.months import previous_month
from tenants.permissions import Permission
from tenants.scope import Scope

DOCUMENT_SORTS: Columns = {
    "issued_at": BillingDocument.issued_at,
    "month_at": BillingDocument.month_at,
    "number": BillingDocument.number,
    "total": BillingDocument.total,
}
MAX_ENTRIES = 100
_HUNDRED = Decimal(100)


@dataclass(frozen=True, slots=True)
class Credit:
    """A tenant's prepaid credit.

    Attributes:
        balance: what was paid in, less paid invoices.
        open_amount: what its rentals cost that are in no invoice yet, with tax.
        entries: the last ones, newest first.
    """

    balance: Decimal
    open_amount: Decimal
    entries: list[PrepaidEntry]

    @property
    def available(self) -> Decimal:
        """What is left; negative where more was used than paid in."""
        return self.balance - self.open_amount


def list_documents(
    session: Session,
    scope: Scope,
    *,
    kind: DocumentKind | None = None,
    month_at: datetime | None = None,
    issued_since: datetime | None = None,
    sort: str = "-issued_at",
    page: int = 1,
    page_size: int = 50,
) -> Page[BillingDocument]:
    """Return invoices and statements, the latest first by default."""
    scope.require(Permission.VIEW_BILLING)
    statement = scope.select(select(BillingDocument), BillingDocument)
    if kind is not None:
        statement = statement.where(BillingDocument.kind == kind)
    if month_at is not None:
        statement = statement.where(BillingDocument.month_at == month_at)
    if issued_since is not None:
        statement = statement.where(BillingDocument.issued_at >= issued_since)
    return list_page(
        session,
        statement,
        DOCUMENT_SORTS,
        last=BillingDocument.id,
        sort=sort,
        page=page,
        page_size=page_size,
    )


def get_document(session: Session, scope: Scope, document_id: str) -> BillingDocument:
    """Return an invoice or statement.

    Raises:
        NotFoundError: there is none, or it is another tenant's.
    """
    scope.require(Permission.VIEW_BILLING)
    return scope.get(session, BillingDocument, document_id, kind="invoice or statement")


def credit_of(session: Session, scope: Scope, tenant_id: str, *, tax_percent: Decimal) -> Credit:
    """Return a tenant's prepaid credit.

    Args:
        session: the session.
        scope: who asks.
        tenant_id: whose.
        tax_percent: of the portal, for accounts without their own.

    Raises:
        NotFoundError: it is another tenant.
    """
    scope.require(Permission.VIEW_BILLING)
    if scope.tenant_id not in {None, tenant_id}:
        raise NotFoundError.of("tenant", tenant_id)
    entries = select(PrepaidEntry).where(PrepaidEntry.tenant_id == tenant_id)
    return Credit(
        balance=balance_of(session, tenant_id),
        open_amount=open_amount(session, tenant_id, tax_percent=tax_percent),
        entries=list(session.scalars(entries.order_by(PrepaidEntry.id.desc()).limit(MAX_ENTRIES))),
    )


def open_amount(session: Session, tenant_id: str, *, tax_percent: Decimal) -> Decimal:
    """Return what a tenant's rentals cost that are in no invoice yet, with tax, in cents.

    Lines of more than two months before the first open month are left out: only corrections by
    hand are so late, and the next invoice has them.
    """
    is_issued = exists().where(
        ClosedLine.line_id == BillingLine.id,
        Closing.id == ClosedLine.closing_id,
        Closing.document_id.is_not(None),
    )
    statement = select(func.sum(BillingLine.amount)).where(
        BillingLine.tenant_id == tenant_id, BillingLine.contract_id.is_not(None), ~is_issued
    )
    month_at = open_month(session)
    if month_at is not None:
        since = previous_month(previous_month(month_at))
        statement = statement.where(BillingLine.at >= since)
    account = session.get(Account, tenant_id)
    own = None if account is None else account.tax_percent
    percent = tax_percent if own is None else own
    return cents((session.scalar(statement) or ZERO) * (_HUNDRED + percent) / _HUNDRED)
