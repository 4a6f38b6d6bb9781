"""Tables of tenants, their users and tokens, and their appliances.

The operator's users belong to the platform: their `tenant_id` is null.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Enum, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH

SECRET_HASH_LENGTH = 64


def enum_column(kind: type[StrEnum]) -> Enum:
    """Return a column type that stores the enum's values as plain text on every database."""
    return Enum(
        kind, native_enum=False, length=32, create_constraint=False,
        values_callable=lambda members: [member.value for member in members],
    )  # fmt: skip


class TenantState(StrEnum):
    """Whether a tenant's users may sign in and its appliances may push."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


class Role(StrEnum):
    """What a user may do; see `tenants.permissions`."""

    OPERATOR = "operator"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


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


class Tenant(Base):
    """A customer: owner of users, appliances, jobs and rules."""

    __tablename__ = "tenants"

    id: Mapped[str] = id_column()
    slug: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    state: Mapped[TenantState] = mapped_column(enum_column(TenantState))
    created_at: Mapped[datetime]


class User(Base):
    """A person who signs in by email and password."""

    __tablename__ = "users"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )
    email: Mapped[str] = mapped_column(String(254), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[Role] = mapped_column(enum_column(Role))
    password_hash: Mapped[str] = mapped_column(String(200))
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime]
    tenant: Mapped[Tenant | None] = relationship(lazy="joined")


class LoginSession(Base):
    """A browser that is signed in; the cookie holds the secret, this row its hash."""

    __tablename__ = "login_sessions"

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    secret_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    user: Mapped[User] = relationship(lazy="joined")


class APIToken(Base):
    """A secret for programs that acts as its user."""

    __tablename__ = "api_tokens"

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    name: Mapped[str] = mapped_column(String(100))
    secret_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")


class EnrolmentToken(Base):
    """A secret that lets appliances join a tenant, a limited number of times."""

    __tablename__ = "enrolment_tokens"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )
    secret_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    uses_left: Mapped[int]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class Appliance(Base):
    """An enrolled host. `inventory` holds `jobqueue.executors.wire.Inventory` as JSON.

    `health` holds `jobqueue.executors.health.ApplianceHealth`; null where the agent tells none.
    `desired_generation` counts changes of what should run there: agents wait for it to move.
    """

    __tablename__ = "appliances"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )
    name: Mapped[str] = mapped_column(String(100))
    site: Mapped[str] = mapped_column(String(100), default="")
    region: Mapped[str] = mapped_column(String(100), default="")
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    state: Mapped[ApplianceState] = mapped_column(enum_column(ApplianceState))
    secret_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), unique=True)
    inventory: Mapped[dict[str, Any]] = mapped_column(default=dict)
    health: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    health_state: Mapped[HealthState | None] = mapped_column(enum_column(HealthState))
    agent_version: Mapped[str] = mapped_column(String(50), default="")
    clock_skew_seconds: Mapped[float | None]
    desired_generation: Mapped[int] = mapped_column(BigInteger, default=1)
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    tenant: Mapped[Tenant] = relationship(lazy="joined")
