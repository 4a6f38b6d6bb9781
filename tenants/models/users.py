"""Tables of tenants, quotas, users and memberships."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import BigInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.zones import MAX_ZONE_LENGTH
from tenants.models.audit import Audited
from tenants.models.columns import BigNumber, enum_column, reference, tenant_column, user_column

NAME_LENGTH = 200
EMAIL_LENGTH = 254


class TenantState(StrEnum):
    """The states of a tenant: only users of an active one sign in; closed is permanent."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Role(StrEnum):
    """A role; see `tenants.permissions`. No membership has the operator's role."""

    OPERATOR = "operator"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"
    BILLING = "billing"


class Tenant(Base):
    """A customer: owner of members, appliances, jobs and rules.

    `placement_generation` counts what changes who may use its appliances, so that a plan that was
    made before is not applied.
    """

    __tablename__ = "tenants"
    audited: ClassVar = Audited(
        kind="tenant",
        name="name",
        fields=("name", "slug", "state", "closed_at"),
        verbs={"state": ("state_changed", "state_changed"), "name": ("renamed", "renamed")},
    )

    id: Mapped[str] = id_column()
    slug: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    state: Mapped[TenantState] = mapped_column(enum_column(TenantState))
    placement_generation: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]


class TenantQuota(Base):
    """The limits of a tenant; null is the portal's default. A tenant may have no row."""

    __tablename__ = "tenant_quotas"
    audited: ClassVar = Audited(
        kind="quota",
        name="tenant_id",
        fields=(
            "max_appliances",
            "max_gpus",
            "max_active_jobs",
            "max_series",
            "max_measurements",
            "max_fields",
            "max_storage_bytes",
            "max_waiting_jobs",
            "max_rules",
            "max_receivers",
            "max_schedules",
            "max_dashboards",
            "max_data_bytes",
        ),
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    max_appliances: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_active_jobs: Mapped[int | None]
    max_series: Mapped[int | None]
    max_measurements: Mapped[int | None]
    max_fields: Mapped[int | None]
    max_storage_bytes: Mapped[int | None] = mapped_column(BigNumber)
    max_waiting_jobs: Mapped[int | None]
    max_rules: Mapped[int | None]
    max_receivers: Mapped[int | None]
    max_schedules: Mapped[int | None]
    max_dashboards: Mapped[int | None]
    max_data_bytes: Mapped[int | None] = mapped_column(BigInteger)


class User(Base):
    """A user. Memberships and `is_operator` grant permissions.

    `password_hash` is null for users who sign in only through the identity provider. `totp_secret`
    is encrypted; it is active when `totp_confirmed_at` is set. `time_zone` is empty for that of the
    user's browser, which `browser_time_zone` stores as last seen.
    """

    __tablename__ = "users"
    audited: ClassVar = Audited(
        kind="user",
        name="email",
        fields=("email", "name", "is_operator", "is_active", "totp_confirmed_at"),
        secrets={"password_hash": "password", "totp_secret": "second_factor"},
        verbs={
            "is_active": ("activated", "deactivated"),
            "name": ("renamed", "renamed"),
            "password_hash": ("password_changed", "password_removed"),
            "totp_confirmed_at": ("second_factor_on", "second_factor_off"),
        },
    )

    id: Mapped[str] = id_column()
    email: Mapped[str] = mapped_column(String(EMAIL_LENGTH), unique=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    password_hash: Mapped[str | None] = mapped_column(String(200))
    is_operator: Mapped[bool] = mapped_column(default=False)
    is_active: Mapped[bool] = mapped_column(default=True)
    totp_secret: Mapped[str | None] = mapped_column(String(500))
    totp_confirmed_at: Mapped[datetime | None]
    totp_last_step: Mapped[int | None] = mapped_column(BigNumber)
    time_zone: Mapped[str] = mapped_column(String(MAX_ZONE_LENGTH), default="")
    browser_time_zone: Mapped[str] = mapped_column(String(MAX_ZONE_LENGTH), default="")
    created_at: Mapped[datetime]
    memberships: Mapped[list["Membership"]] = relationship(
        back_populates="user", order_by="Membership.created_at, Membership.id"
    )


class Membership(Base):
    """A user's membership and role in a tenant."""

    __tablename__ = "memberships"
    audited: ClassVar = Audited(
        kind="membership",
        name="user.email",
        fields=("user_id", "role", "is_active"),
        verbs={"role": ("role_changed", "role_changed"), "is_active": ("activated", "deactivated")},
    )
    __table_args__ = (UniqueConstraint("user_id", "tenant_id"),)

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    tenant_id: Mapped[str] = tenant_column()
    role: Mapped[Role] = mapped_column(enum_column(Role))
    is_active: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[datetime]
    user: Mapped[User] = relationship(back_populates="memberships")
    tenant: Mapped[Tenant] = relationship(lazy="joined")
