"""Tables of the policy's versions, of standings, their events, and appeals."""

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from marketplace.consequences.states import AppealState, EventKind, StandingState
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, reference

MAX_NOTE_LENGTH = 500
MAX_APPEAL_LENGTH = 5000
MAX_ANSWER_LENGTH = 2000
EMAIL_LENGTH = 254


class PolicyVersion(Base):
    """A version of the operator's policy; it never changes, the highest number applies.

    Attributes:
        document: `marketplace.consequences.policy.Policy` as JSON.
        created_by: the email address of the operator.
    """

    __tablename__ = "standing_policies"
    __table_args__ = (UniqueConstraint("number"),)
    audited: ClassVar = Audited(
        kind="standing_policy", name="number", fields=("number", "document", "note")
    )

    id: Mapped[str] = id_column()
    number: Mapped[int]
    document: Mapped[dict[str, Any]]
    note: Mapped[str] = mapped_column(String(MAX_NOTE_LENGTH), default="")
    created_by: Mapped[str] = mapped_column(String(EMAIL_LENGTH), default="")
    created_at: Mapped[datetime]


class Standing(Base):
    """How a provider stands; what follows for others is in its `Account` and `ProviderFee`.

    Attributes:
        cause: of the state, in sentences.
        since: when the state began.
        counted_from: breaches before it don't count any more; None for all of the window.
        mend_until: with notice: when it is decided whether the provider mended.
        suspension_id: the event of the present suspension.
        is_by_operator: whether an operator suspended it: only an operator ends that.
        returns_at: while suspended: the earliest return.
        probation_until: when the limits of probation end; None outside of it.
        fee_points: of the next month.
        score: that the effects rest on.
        breaches: that count now.
        breach_limit: that leads to notice; 0 is none.
        failing_appliances: whose last check failed.
    """

    __tablename__ = "provider_standings"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    state: Mapped[StandingState] = mapped_column(
        enum_column(StandingState), default=StandingState.GOOD, index=True
    )
    cause: Mapped[str] = mapped_column(Text, default="")
    since: Mapped[datetime]
    counted_from: Mapped[datetime | None]
    mend_until: Mapped[datetime | None]
    suspension_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    is_by_operator: Mapped[bool] = mapped_column(default=False)
    returns_at: Mapped[datetime | None]
    probation_until: Mapped[datetime | None]
    fee_points: Mapped[Decimal] = mapped_column(Amount, default=Decimal(0))
    score: Mapped[float] = mapped_column(default=0.5)
    breaches: Mapped[int] = mapped_column(default=0)
    breach_limit: Mapped[int] = mapped_column(default=0)
    failing_appliances: Mapped[int] = mapped_column(default=0)
    evaluated_at: Mapped[datetime | None]


class StandingEvent(Base):
    """A change of a provider's standing or of what follows from it, with its cause.

    Attributes:
        cause: in sentences.
        details: figures by name, and `breaches`, what was counted.
        actor: the email address of the user that made it; "" for the policy.
        policy_number: the version of the policy; 0 for the defaults.
    """

    __tablename__ = "standing_events"
    __table_args__ = (Index("ix_standing_events_tenant_id_at", "tenant_id", "at"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    at: Mapped[datetime] = mapped_column(index=True)
    kind: Mapped[EventKind] = mapped_column(enum_column(EventKind))
    cause: Mapped[str] = mapped_column(Text, default="")
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    actor: Mapped[str] = mapped_column(String(EMAIL_LENGTH), default="")
    policy_number: Mapped[int] = mapped_column(default=0)


class Appeal(Base):
    """What a provider says against a suspension; one for each.

    Attributes:
        suspension_id: the event of the suspension.
        answer: of the operator, which the provider reads.
    """

    __tablename__ = "standing_appeals"
    __table_args__ = (UniqueConstraint("suspension_id"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id", index=True)
    suspension_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    state: Mapped[AppealState] = mapped_column(
        enum_column(AppealState), default=AppealState.OPEN, index=True
    )
    text: Mapped[str] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(String(EMAIL_LENGTH))
    created_at: Mapped[datetime]
    answer: Mapped[str] = mapped_column(Text, default="")
    decided_by: Mapped[str] = mapped_column(String(EMAIL_LENGTH), default="")
    decided_at: Mapped[datetime | None]
