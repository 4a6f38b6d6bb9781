"""The table of breaches of promises."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from tenants.models.columns import enum_column, reference


class BreachKind(StrEnum):
    """The promise that was not kept: for a month, an attempt, or a ticket."""

    AVAILABILITY = "availability"
    LATE_START = "late_start"
    SUPPORT_RESPONSE = "support_response"


class ServiceBreach(Base):
    """A promise of a contract that was not kept; both sides see it.

    Attributes:
        subject: the month, such as `2026-11`, or the id of the attempt or ticket.
        version_number: of the terms with the promise.
        since: the start of the time that was measured.
        until: its end.
        promised: percent of the time, or seconds until the start or the first answer.
        measured: the same, as it was.
        evidence: what it was measured from, for `evidence_lines`.
        credit: what the customer gets; None until it is settled.
    """

    __tablename__ = "service_breaches"
    __table_args__ = (
        UniqueConstraint("contract_id", "kind", "subject"),
        Index("ix_service_breaches_provider_id_since", "provider_id", "since"),
        Index("ix_service_breaches_settled_at", "settled_at"),
    )

    id: Mapped[str] = id_column()
    contract_id: Mapped[str] = reference("contracts.id")
    provider_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    customer_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    version_number: Mapped[int]
    kind: Mapped[BreachKind] = mapped_column(enum_column(BreachKind))
    subject: Mapped[str] = mapped_column(String(ID_LENGTH))
    since: Mapped[datetime]
    until: Mapped[datetime]
    promised: Mapped[float]
    measured: Mapped[float]
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    credit: Mapped[Decimal | None] = mapped_column(Amount)
    detected_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]
