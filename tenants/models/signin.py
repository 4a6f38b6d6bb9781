"""Tables of sign-in: sessions, tokens, second factors, invitations, identities, lockout."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import String, Text, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from tenants.models.audit import Audited
from tenants.models.columns import (
    ADDRESS_LENGTH,
    SECRET_HASH_LENGTH,
    USER_AGENT_LENGTH,
    enum_column,
    exact_text,
    reference,
    secret_hash_column,
    tenant_column,
    user_column,
)
from tenants.models.users import EMAIL_LENGTH, Role, Tenant, User

SUBJECT_LENGTH = 255
LongText = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


class LoginSession(Base):
    """A signed-in browser; the cookie contains the secret, this row its hash.

    `tenant_id` is the selected tenant; null is the operator's view of all, or the user's first
    tenant. `support_session_id` is set while an operator views the tenant as its user.
    """

    __tablename__ = "login_sessions"

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    tenant_id: Mapped[str | None] = tenant_column()
    support_session_id: Mapped[str | None] = reference(
        "support_sessions.id", ondelete="SET NULL", index=True
    )
    secret_hash: Mapped[str] = secret_hash_column()
    address: Mapped[str] = mapped_column(String(ADDRESS_LENGTH), default="")
    user_agent: Mapped[str] = mapped_column(String(USER_AGENT_LENGTH), default="")
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    user: Mapped[User] = relationship(lazy="joined")


class APIToken(Base):
    """A secret for programs that act as a user in one tenant.

    `tenant_id` null is the operator's view of all. `scopes` are names of `tenants.permissions`; an
    empty list is unlimited.
    """

    __tablename__ = "api_tokens"
    audited: ClassVar = Audited(
        kind="token",
        name="name",
        fields=("user_id", "name", "scopes", "expires_at", "revoked_at"),
        verbs={"revoked_at": ("revoked", "restored")},
    )

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    tenant_id: Mapped[str | None] = tenant_column()
    name: Mapped[str] = mapped_column(String(100))
    scopes: Mapped[list[str]] = mapped_column(default=list)
    secret_hash: Mapped[str] = secret_hash_column()
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    last_used_address: Mapped[str] = mapped_column(String(ADDRESS_LENGTH), default="")
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="joined")


class RecoveryCode(Base):
    """A code that replaces the second factor once."""

    __tablename__ = "recovery_codes"

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    code_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
    used_at: Mapped[datetime | None]


class PasswordReset(Base):
    """A link by email that sets a new password once."""

    __tablename__ = "password_resets"

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    secret_hash: Mapped[str] = secret_hash_column()
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class Invitation(Base):
    """A link by email that makes a user a member of a tenant, or an operator (no tenant)."""

    __tablename__ = "invitations"
    audited: ClassVar = Audited(
        kind="invitation",
        name="email",
        fields=("email", "role", "expires_at", "accepted_at", "revoked_at"),
        secrets={"secret_hash": "link"},
        verbs={"accepted_at": ("accepted", "reopened"), "revoked_at": ("revoked", "restored")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    email: Mapped[str] = mapped_column(String(EMAIL_LENGTH))
    role: Mapped[Role] = mapped_column(enum_column(Role))
    secret_hash: Mapped[str] = secret_hash_column()
    invited_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    accepted_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    tenant: Mapped[Tenant | None] = relationship(lazy="joined")


class OIDCIdentity(Base):
    """A user's identity at the identity provider.

    `granted` lists what the provider's groups granted at the last sign-in: ids of memberships, and
    `operator`. It does not contain what was granted manually.
    """

    __tablename__ = "oidc_identities"
    audited: ClassVar = Audited(
        kind="identity", name="subject", fields=("user_id", "issuer", "subject"), created="linked"
    )
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    issuer: Mapped[str] = mapped_column(String(255))
    subject: Mapped[str] = mapped_column(exact_text(SUBJECT_LENGTH))
    granted: Mapped[list[str]] = mapped_column(default=list)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]


class ThrottleKind(StrEnum):
    """The kinds of subjects by which failed attempts are counted."""

    ACCOUNT = "account"
    ADDRESS = "address"
    DEVICE = "device"


class Throttle(Base):
    """Recent failed attempts, by account or known device (hashes), or by network address."""

    __tablename__ = "throttles"
    __table_args__ = (UniqueConstraint("kind", "subject"),)

    id: Mapped[str] = id_column()
    kind: Mapped[ThrottleKind] = mapped_column(enum_column(ThrottleKind))
    subject: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
    failures: Mapped[int]
    first_failed_at: Mapped[datetime]
    locked_until: Mapped[datetime | None]


class IdempotencyKey(Base):
    """The stored answer to a request with an idempotency key."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (UniqueConstraint("user_id", "key"),)

    id: Mapped[str] = id_column()
    user_id: Mapped[str] = user_column()
    key: Mapped[str] = mapped_column(String(255))
    request_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
    status: Mapped[int | None]
    answer: Mapped[str | None] = mapped_column(LongText)
    created_at: Mapped[datetime]


class UsedTicket(Base):
    """A ticket to a web page of a job that was used, by its hash; deleted after a day."""

    __tablename__ = "used_tickets"

    id: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH), primary_key=True)
    used_at: Mapped[datetime] = mapped_column(index=True)


class SupportSession(Base):
    """An operator views a tenant as one of its users, with a reason and a time limit."""

    __tablename__ = "support_sessions"

    id: Mapped[str] = id_column()
    operator_id: Mapped[str] = user_column()
    tenant_id: Mapped[str] = tenant_column()
    as_user_id: Mapped[str] = user_column()
    reason: Mapped[str] = mapped_column(String(500))
    started_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    operator: Mapped[User] = relationship(foreign_keys=[operator_id], lazy="joined")
    as_user: Mapped[User] = relationship(foreign_keys=[as_user_id], lazy="joined")
    tenant: Mapped[Tenant] = relationship(lazy="joined")
