"""Tables of ratings, of evidence by day, and of what reputations were."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from marketplace.cases import Dimension
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference

MAX_COMMENT_LENGTH = 1000
KIND_LENGTH = 40


class Rating(Base):
    """How satisfied a customer was with a contract in a month; the provider sees no names.

    Attributes:
        tenant_id: the customer.
        month: such as `2026-11`, in UTC.
        stars: 1 to 5.
        created_by: the email address of who rated first.
        gpu_milliseconds: of single GPUs, that the customer paid for under the contract in the
            month; it grows until the month is charged.
    """

    __tablename__ = "ratings"
    __table_args__ = (
        UniqueConstraint("contract_id", "month"),
        Index("ix_ratings_provider_id_updated_at", "provider_id", "updated_at"),
        Index("ix_ratings_updated_at", "updated_at"),
    )
    audited: ClassVar = Audited(
        kind="rating", name="month", fields=("contract_id", "month", "stars", "comment")
    )

    id: Mapped[str] = id_column()
    contract_id: Mapped[str] = reference("contracts.id")
    provider_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    tenant_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    month: Mapped[str] = mapped_column(String(7))
    stars: Mapped[int]
    comment: Mapped[str] = mapped_column(String(MAX_COMMENT_LENGTH), default="")
    created_by: Mapped[str] = mapped_column(String(254))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    gpu_milliseconds: Mapped[int] = mapped_column(BigInteger, default=0)


class EvidenceDay(Base):
    """What was measured of a provider on a day in UTC, for as long as it counts.

    It outlives samples, jobs and offers: who withdraws a bad appliance does not withdraw its past.

    Attributes:
        subject: the appliance, or the customer whose attempts ended.
        kind: of what sort, stable: `reachable`, `ran`, or a reason of attempts.
        total: how many cases it is: days of an appliance, or attempts.
        good: how many of these speak for the provider.
        measured: the share of the time in which the appliance was reachable; None for attempts.
    """

    __tablename__ = "evidence_days"

    provider_id: Mapped[str] = reference("tenants.id", primary_key=True)
    day_at: Mapped[datetime] = mapped_column(primary_key=True)
    dimension: Mapped[Dimension] = mapped_column(enum_column(Dimension), primary_key=True)
    subject: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    kind: Mapped[str] = mapped_column(String(KIND_LENGTH), primary_key=True)
    total: Mapped[float]
    good: Mapped[float]
    measured: Mapped[float | None]


class ReputationDay(Base):
    """The reputation of a provider at the end of a day in UTC; today's is that of now.

    Attributes:
        score: what placement and lists rank by, 0 to 1.
        mean: of the overall distribution.
        low: the lower limit of its interval.
        high: the upper limit.
        dimensions: the parameters of each distribution, such as `{"jobs": [12.5, 2.1]}`.
    """

    __tablename__ = "reputation_days"

    provider_id: Mapped[str] = reference("tenants.id", primary_key=True)
    day_at: Mapped[datetime] = mapped_column(primary_key=True)
    score: Mapped[float]
    mean: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    dimensions: Mapped[dict[str, Any]] = mapped_column(default=dict)
