"""The audit log's tables."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import ADDRESS_LENGTH, SECRET_HASH_LENGTH, USER_AGENT_LENGTH, BigNumber

PLATFORM_CHAIN = "platform"


class AuditEntry(Base):
    """Who did what to what, when and from where; never changed once it is written.

    Entries of one `chain` (a tenant's id, or `platform`) are numbered without a gap, and each
    holds the hash of the one before it. They outlive what they tell of: nothing is referred to by
    a foreign key.
    """

    __tablename__ = "audit_entries"
    __table_args__ = (
        UniqueConstraint("chain", "number"),
        Index("ix_audit_entries_chain_at", "chain", "at"),
        Index("ix_audit_entries_at", "at"),
        Index("ix_audit_entries_chain_action_number", "chain", "action", "number"),
        Index("ix_audit_entries_chain_actor_name_number", "chain", "actor_name", "number"),
        Index("ix_audit_entries_chain_target_id_number", "chain", "target_id", "number"),
    )

    id: Mapped[str] = id_column()
    chain: Mapped[str] = mapped_column(String(ID_LENGTH))
    number: Mapped[int] = mapped_column(BigNumber)
    at: Mapped[datetime]
    actor_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    actor_name: Mapped[str] = mapped_column(String(254))
    via: Mapped[str] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(100))
    target_kind: Mapped[str] = mapped_column(String(50))
    target_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    target_name: Mapped[str] = mapped_column(String(254))
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    reason: Mapped[str] = mapped_column(String(500), default="")
    address: Mapped[str] = mapped_column(String(ADDRESS_LENGTH), default="")
    user_agent: Mapped[str] = mapped_column(String(USER_AGENT_LENGTH), default="")
    previous_hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
    hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))


class AuditHead(Base):
    """The last entry of a chain; who appends holds its row."""

    __tablename__ = "audit_heads"

    chain: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    number: Mapped[int] = mapped_column(BigNumber)
    hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
