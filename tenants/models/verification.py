"""Tables of the verification of appliances: what they claim, and what they answered.

The package `marketplace.verification` decides; the agent API hands out orders and stores results.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from tenants.models.columns import enum_column, reference, tenant_column

MAX_REASON_LENGTH = 500
MAX_IDENTITY_LENGTH = 250


class VerificationState(StrEnum):
    """Of an appliance: `pending` while its first challenge, or one after a failure, is due."""

    UNVERIFIED = "unverified"
    PENDING = "pending"
    PASSED = "passed"
    FAILED = "failed"


class ChallengeOutcome(StrEnum):
    """Of a challenge: all but the first are final."""

    OPEN = "open"
    PASSED = "passed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNANSWERED = "unanswered"


class IdentityKind(StrEnum):
    """What identifies a piece of hardware: a GPU's UUID or serial, or its slot in a boot."""

    UUID = "uuid"
    SERIAL = "serial"
    SLOT = "slot"


class Verification(Base):
    """What is known of whether an appliance is what it claims to be.

    Attributes:
        since: of its state.
        reason: why it failed, or what it waits for.
        findings: of the last check, as `marketplace.verification.findings.Finding`.
        checked_at: the last check of the inventory.
        next_at: when the next challenge is due; nobody else knows.
        grace_until: it is offered until then, as if it had passed.
        challenge_number: of the last order.
        unanswered: challenges in a row without an answer.
    """

    __tablename__ = "verifications"
    __table_args__ = (Index("ix_verifications_tenant_id_state", "tenant_id", "state"),)

    appliance_id: Mapped[str] = reference("appliances.id", primary_key=True)
    tenant_id: Mapped[str] = reference("tenants.id")
    state: Mapped[VerificationState] = mapped_column(
        enum_column(VerificationState), default=VerificationState.UNVERIFIED
    )
    since: Mapped[datetime]
    reason: Mapped[str] = mapped_column(String(MAX_REASON_LENGTH), default="")
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    checked_at: Mapped[datetime | None]
    next_at: Mapped[datetime] = mapped_column(index=True)
    grace_until: Mapped[datetime | None]
    challenge_number: Mapped[int] = mapped_column(default=0)
    unanswered: Mapped[int] = mapped_column(default=0)


class Challenge(Base):
    """A challenge that was ordered of an appliance, with its result.

    Attributes:
        spec: `protocol.challenges.ChallengeOrder`, whose seed only its agent gets.
        result: `protocol.challenges.ChallengeResult`.
        partners: the appliances that were challenged at the same time.
        findings: of its answer.
    """

    __tablename__ = "challenges"
    __table_args__ = (
        UniqueConstraint("appliance_id", "number"),
        Index("ix_challenges_tenant_id_ended_at", "tenant_id", "ended_at"),
        Index("ix_challenges_outcome_ordered_at", "outcome", "ordered_at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    appliance_id: Mapped[str] = reference("appliances.id")
    number: Mapped[int]
    spec: Mapped[dict[str, Any]]
    partners: Mapped[list[str]] = mapped_column(default=list)
    outcome: Mapped[ChallengeOutcome] = mapped_column(
        enum_column(ChallengeOutcome), default=ChallengeOutcome.OPEN
    )
    ordered_at: Mapped[datetime]
    answered_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)


class HardwareIdentity(Base):
    """Hardware that a verified appliance reports, and since when; another one can't have it."""

    __tablename__ = "hardware_identities"
    __table_args__ = (Index("ix_hardware_identities_value_kind", "value", "kind"),)

    id: Mapped[str] = id_column()
    appliance_id: Mapped[str] = reference("appliances.id", index=True)
    kind: Mapped[IdentityKind] = mapped_column(enum_column(IdentityKind))
    value: Mapped[str] = mapped_column(String(MAX_IDENTITY_LENGTH))
    since: Mapped[datetime]


class ComplianceNotice(Base):
    """An email about a compliance fact that is about to expire, so that it is sent once."""

    __tablename__ = "compliance_notices"
    __table_args__ = (UniqueConstraint("tenant_id", "fact", "valid_until"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    fact: Mapped[str] = mapped_column(String(100))
    valid_until: Mapped[str] = mapped_column(String(10))
    sent_at: Mapped[datetime]
