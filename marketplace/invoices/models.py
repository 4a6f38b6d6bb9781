"""Tables of closed months and of what was issued for them.

A *closing* is what a month has of one contract, or of a tenant's own appliances: which lines, and
what they come to in cents, by item. An invoice has the closings of a customer, a statement those of
a provider: the same ones, so that both agree to the cent.
"""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference
from tenants.models.users import NAME_LENGTH

MAX_NUMBER_LENGTH = 40


class DocumentKind(StrEnum):
    """What is issued for a month."""

    INVOICE = "invoice"
    """Of a customer, for what it rented."""
    STATEMENT = "statement"
    """Of a provider, for what others rented of it."""
    COST_STATEMENT = "cost_statement"
    """Of a tenant, for its own appliances."""


class BillingMonth(Base):
    """A month that is being closed: first all closings, then all documents.

    Attributes:
        month_at: its first moment, in UTC.
        sealed_at: when all of its closings were complete.
        closed_at: when all of its documents were issued.
    """

    __tablename__ = "billing_months"

    month_at: Mapped[datetime] = mapped_column(primary_key=True)
    sealed_at: Mapped[datetime | None]
    closed_at: Mapped[datetime | None]


class Closing(Base):
    """The lines of a contract, or of a tenant's own use, that a month's documents have.

    Attributes:
        scope_key: the contract, or the tenant whose own use it is.
        items: `marketplace.invoices.items.Item` as JSON, once `sealed_at`; no lines are added then.
        document_id: the invoice, or the statement of own costs, that has it.
        statement_id: the provider's statement that has it.
    """

    __tablename__ = "billing_closings"
    __table_args__ = (UniqueConstraint("month_at", "scope_key"),)

    id: Mapped[str] = id_column()
    month_at: Mapped[datetime]
    scope_key: Mapped[str] = mapped_column(String(ID_LENGTH))
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    provider_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    contract_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    items: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    sealed_at: Mapped[datetime | None]
    document_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    statement_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)


class ClosedLine(Base):
    """Which closing has a billing line; a line is in one."""

    __tablename__ = "billing_closed_lines"

    line_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    closing_id: Mapped[str] = reference("billing_closings.id", index=True)


class DocumentCounter(Base):
    """The last number of a series, such as `INV-2026`; numbers have no gaps."""

    __tablename__ = "billing_counters"

    series: Mapped[str] = mapped_column(String(MAX_NUMBER_LENGTH), primary_key=True)
    last_number: Mapped[int]


class BillingDocument(Base):
    """An invoice or statement as it was issued; it never changes.

    Attributes:
        tenant_id: whom it is made out to.
        number: of an invoice or statement unique in the portal, of own costs in the tenant.
        party: name, address, country, tax number and email address of the tenant at the time.
        issuer: the operator, by the setting `billing_issuer`.
        items: numbered, as JSON.
        net: the sum of the items.
        tax: on `net`, of invoices.
        fee: of the portal, of statements of providers.
        total: with tax, or less the fee.
        prepaid: what of it was paid with prepaid credit.
    """

    __tablename__ = "billing_documents"
    __table_args__ = (
        UniqueConstraint("kind", "tenant_id", "month_at"),
        UniqueConstraint("tenant_id", "number"),
    )
    audited: ClassVar = Audited(
        kind="billing_document",
        name="number",
        fields=("kind", "month_at", "net", "total"),
        created="issued",
    )

    id: Mapped[str] = id_column()
    kind: Mapped[DocumentKind] = mapped_column(enum_column(DocumentKind))
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    month_at: Mapped[datetime]
    number: Mapped[str] = mapped_column(String(MAX_NUMBER_LENGTH))
    currency: Mapped[str] = mapped_column(String(3))
    issued_at: Mapped[datetime] = mapped_column(index=True)
    issuer: Mapped[str] = mapped_column(String(500))
    tenant_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    party: Mapped[dict[str, str]]
    items: Mapped[list[dict[str, Any]]]
    net: Mapped[Decimal] = mapped_column(Amount)
    tax_percent: Mapped[Decimal] = mapped_column(Amount)
    tax: Mapped[Decimal] = mapped_column(Amount)
    fee_percent: Mapped[Decimal] = mapped_column(Amount)
    fee: Mapped[Decimal] = mapped_column(Amount)
    total: Mapped[Decimal] = mapped_column(Amount)
    prepaid: Mapped[Decimal] = mapped_column(Amount)

    @property
    def due(self) -> Decimal:
        """What remains to be paid; negative where the other side pays."""
        return self.total - self.prepaid

    @property
    def title(self) -> str:
        """What it is called: an invoice of less than nothing is a credit note."""
        if self.kind is DocumentKind.INVOICE:
            return "Credit note" if self.total < 0 else "Invoice"
        return "Provider statement" if self.kind is DocumentKind.STATEMENT else "Cost statement"


class ProviderFee(Base):
    """What is added to the percentage of a provider's fee in a month, by its score before it.

    Without a row nothing is. A row of a month that has begun never changes.
    """

    __tablename__ = "provider_fees"

    provider_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    month_at: Mapped[datetime] = mapped_column(primary_key=True)
    points: Mapped[Decimal] = mapped_column(Amount)
