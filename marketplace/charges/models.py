"""Tables of billing lines, of what of the ledger has lines, and of prepaid credit."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from tenants.models.audit import Audited
from tenants.models.columns import enum_column

MAX_NOTE_LENGTH = 500


class LineKind(StrEnum):
    """What a line is for."""

    USAGE = "usage"
    MINIMUM = "minimum"
    """What an attempt costs more because it was shorter than the contract's minimum."""
    RESERVATION = "reservation"
    """What of reserved rented GPUs no job used."""
    DISCOUNT = "discount"
    COMMITMENT = "commitment"
    """What of a month's commitment was not used."""
    SERVICE_CREDIT = "service_credit"
    CORRECTION = "correction"


class BillingLine(Base):
    """What a tenant pays for something, in the currency of the portal; never changed once written.

    Lines outlive what they are about, so they have no foreign keys and copy names. A row of the
    usage ledger has one line at most, so has the source of any other: both are unique.

    Attributes:
        tenant_id: who pays.
        provider_id: who is paid; None for use of the tenant's own appliances.
        contract_id: the contract under which an appliance was rented; None for own ones.
        version_number: of the contract's terms, or of the price list, that it was computed by.
        kind: what it is for.
        usage_entry_id: the row of the usage ledger.
        source_id: what else it comes from, such as a breach or an operator's correction.
        at: the hour, or the time, that it is for.
        gpu_milliseconds: of single GPUs, allocated.
        unit_price: of a GPU for an hour.
        amount: negative for credits.
        created_by: the email address of who corrected it; "" for the portal.
    """

    __tablename__ = "billing_lines"
    __table_args__ = (
        # With the amount, sums of months read no rows.
        Index("ix_billing_lines_tenant_id_at_amount", "tenant_id", "at", "amount"),
        Index("ix_billing_lines_provider_id_at", "provider_id", "at"),
        Index("ix_billing_lines_contract_id_at", "contract_id", "at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    provider_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    contract_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    version_number: Mapped[int | None]
    kind: Mapped[LineKind] = mapped_column(enum_column(LineKind))
    usage_entry_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), unique=True)
    source_id: Mapped[str | None] = mapped_column(String(100), unique=True)
    at: Mapped[datetime]
    recorded_at: Mapped[datetime]
    user_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    project_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    job_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    job_name: Mapped[str] = mapped_column(String(100), default="")
    attempt_id: Mapped[str | None] = mapped_column(String(ID_LENGTH), index=True)
    appliance_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    gpu_model: Mapped[str] = mapped_column(String(200), default="")
    gpu_milliseconds: Mapped[int] = mapped_column(BigInteger, default=0)
    unit_price: Mapped[Decimal] = mapped_column(Amount, default=Decimal(0))
    amount: Mapped[Decimal] = mapped_column(Amount)
    note: Mapped[str] = mapped_column(String(MAX_NOTE_LENGTH), default="")
    created_by: Mapped[str] = mapped_column(String(254), default="")


class ChargedHour(Base):
    """An hour of the usage ledger whose rows have their lines.

    Attributes:
        appends: `UsageHour.appends` before its rows were read; where the ledger has a higher one,
            rows were appended since.
    """

    __tablename__ = "charged_hours"

    hour_at: Mapped[datetime] = mapped_column(primary_key=True)
    appends: Mapped[int]
    charged_at: Mapped[datetime]


class PrepaidEntry(Base):
    """A change of a tenant's prepaid credit; its balance is the sum of them.

    Attributes:
        amount: what was paid in or given; negative where an invoice was paid with it.
        source_id: what it comes from, such as a payment's reference or an invoice; unique.
        created_by: the email address of an operator; "" for the portal.
    """

    __tablename__ = "prepaid_entries"
    audited: ClassVar = Audited(
        kind="prepaid_credit", name="source_id", fields=("amount", "note"), created="changed"
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    amount: Mapped[Decimal] = mapped_column(Amount)
    source_id: Mapped[str] = mapped_column(String(100), unique=True)
    note: Mapped[str] = mapped_column(String(MAX_NOTE_LENGTH), default="")
    created_by: Mapped[str] = mapped_column(String(254), default="")
    created_at: Mapped[datetime]
