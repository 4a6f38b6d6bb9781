"""Tables of appliances: how they join, what they are, what happened to them."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import enum_column, secret_hash_column, tenant_column
from tenants.models.people import Tenant


class ApplianceState(StrEnum):
    """What the portal's clock makes of an appliance's silence."""

    ENROLLED = "enrolled"
    ONLINE = "online"
    STALE = "stale"
    UNREACHABLE = "unreachable"
    LOST = "lost"


class HealthState(StrEnum):
    """What an appliance's agent makes of its devices; null in the database is unknown."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class EnrolmentToken(Base):
    """A secret that lets appliances join a tenant, a limited number of times."""

    __tablename__ = "enrolment_tokens"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100), default="")
    secret_hash: Mapped[str] = secret_hash_column()
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    uses: Mapped[int] = mapped_column(default=1)
    uses_left: Mapped[int]
    created_by: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="SET NULL")
    )
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class Appliance(Base):
    """An enrolled host. `inventory` holds `jobqueue.executors.wire.Inventory` as JSON.

    `health` holds `jobqueue.executors.health.ApplianceHealth`; null where the agent tells none.
    `desired_generation` counts changes of what should run there: agents wait for it to move.
    Revoked is shut out for good; retired is taken out of service by its owner, its history kept.
    """

    __tablename__ = "appliances"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(100))
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    state: Mapped[ApplianceState] = mapped_column(enum_column(ApplianceState))
    secret_hash: Mapped[str] = secret_hash_column()
    inventory: Mapped[dict[str, Any]] = mapped_column(default=dict)
    health: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    health_state: Mapped[HealthState | None] = mapped_column(enum_column(HealthState))
    agent_version: Mapped[str] = mapped_column(String(50), default="")
    clock_skew_seconds: Mapped[float | None]
    desired_generation: Mapped[int] = mapped_column(BigInteger, default=1)
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    fenced_at: Mapped[datetime | None]
    tenant: Mapped[Tenant] = relationship(lazy="joined")


class ApplianceEvent(Base):
    """Something that happened to an appliance: a change of state or health, a certificate."""

    __tablename__ = "appliance_events"
    __table_args__ = (Index("ix_appliance_events_appliance_id_at", "appliance_id", "at"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    appliance_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("appliances.id", ondelete="CASCADE")
    )
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(50))
    message: Mapped[str] = mapped_column(String(500))
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
