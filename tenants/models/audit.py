"""Tables of the audit log, and how models declare what it records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models.columns import ADDRESS_LENGTH, SECRET_HASH_LENGTH, USER_AGENT_LENGTH, BigNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The parts of a model's rows that the audit log records.

    Attributes:
        kind: the kind of a row; actions are named `<kind>.<verb>`.
        name: the attribute that names a row.
        fields: the attributes whose values are recorded; changes of others are not.
        secrets: attributes whose changes are recorded without their values, and their labels.
        verbs: the verbs of a change of this attribute alone: when it is set, and when it is
            cleared or becomes false.
        created: the verb of an insert.
    """

    kind: str
    name: str
    fields: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    created: str = "created"

    def verb_of(self, changes: Mapping[str, object]) -> str:
        """Return the verb of a change, given the new values by attribute."""
        if len(changes) != 1:
            return "changed"
        (attribute, value), *_ = changes.items()
        when_set, when_cleared = self.verbs.get(attribute, ("changed", "changed"))
        return when_set if value else when_cleared


PLATFORM_CHAIN = "platform"


class AuditEntry(Base):
    """An action: its actor, target, time and origin; never changed once written.

    Entries of one `chain` (a tenant's id, or `platform`) are numbered without gaps, and each
    contains the hash of the previous one. They outlive their targets: there are no foreign keys.
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
    """The last entry of a chain; appending locks its row."""

    __tablename__ = "audit_heads"

    chain: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    number: Mapped[int] = mapped_column(BigNumber)
    hash: Mapped[str] = mapped_column(String(SECRET_HASH_LENGTH))
