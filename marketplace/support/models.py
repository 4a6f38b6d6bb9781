"""Tables of support: tickets, their threads and files, and who follows them.

A ticket belongs to the tenant that opened it, or whom the operator wrote to. Other sides may be
removed before it: they are no foreign keys, and their names are copied.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Index, LargeBinary, String, Text
from sqlalchemy.dialects.mysql import MEDIUMBLOB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from core.db import Base, id_column
from core.ids import ID_LENGTH
from marketplace.support.states import WAITING, Party, TicketState
from tenants.models.columns import enum_column, reference, tenant_column
from tenants.models.users import NAME_LENGTH

MAX_TITLE_LENGTH = 200
# Of four bytes each, MySQL stores them in a TEXT.
MAX_TEXT_LENGTH = 16_000
MAX_COMMENT_LENGTH = 1000
MAX_FILE_NAME_LENGTH = 200
EMAIL_LENGTH = 254
HASH_LENGTH = 64


class SubjectKind(StrEnum):
    """What a ticket is about."""

    JOB = "job"
    APPLIANCE = "appliance"
    INVOICE = "invoice"
    CONTRACT = "contract"
    OFFER = "offer"
    OTHER = "other"


class EntryKind(StrEnum):
    """An entry of a thread: a message to all, a note of one side for itself, or a change."""

    MESSAGE = "message"
    NOTE = "note"
    CHANGE = "change"


class Ticket(Base):
    """A request for support.

    Attributes:
        customer_id: the tenant that is the customer.
        provider_id: the tenant that is the provider; None if only the operator is asked.
        has_operator: whether the operator is a party.
        requester: the party that opened it.
        subject_id: of the job, appliance, document, contract or offer, which may be gone.
        subject_name: as it was; others than its owner see the kind alone.
        contract_id: whose promise its clock follows, if any.
        limit_seconds: within which the responder should answer; 0 for no clock.
        is_promised: whether a contract promises that.
        used_seconds: of the limit, before `clock_started_at`.
        clock_started_at: since when the responder is waited for; None while others are.
        due_at: when the limit is reached if nobody answers; None while the clock stands.
        first_response_seconds: that the responder took; None until it has answered.
        escalated_at: when the present wait became too long.
        rating: of the requester at the end, 1 to 5.
    """

    __tablename__ = "tickets"
    __table_args__ = (
        Index("ix_tickets_customer_id_state", "customer_id", "state"),
        Index("ix_tickets_provider_id_state", "provider_id", "state"),
        Index("ix_tickets_has_operator_state", "has_operator", "state"),
        Index("ix_tickets_subject_id", "subject_id"),
        Index("ix_tickets_due_at", "due_at"),
        Index("ix_tickets_state_updated_at", "state", "updated_at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    customer_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    customer_name: Mapped[str] = mapped_column(String(NAME_LENGTH), default="")
    provider_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    provider_name: Mapped[str] = mapped_column(String(NAME_LENGTH), default="")
    has_operator: Mapped[bool] = mapped_column(default=False)
    requester: Mapped[Party] = mapped_column(enum_column(Party))
    author_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    author_name: Mapped[str] = mapped_column(String(EMAIL_LENGTH))
    subject_kind: Mapped[SubjectKind] = mapped_column(enum_column(SubjectKind))
    subject_id: Mapped[str] = mapped_column(String(ID_LENGTH), default="")
    subject_name: Mapped[str] = mapped_column(String(EMAIL_LENGTH), default="")
    contract_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    title: Mapped[str] = mapped_column(String(MAX_TITLE_LENGTH))
    state: Mapped[TicketState] = mapped_column(enum_column(TicketState))
    limit_seconds: Mapped[int] = mapped_column(default=0)
    is_promised: Mapped[bool] = mapped_column(default=False)
    used_seconds: Mapped[float] = mapped_column(default=0.0)
    clock_started_at: Mapped[datetime | None]
    due_at: Mapped[datetime | None]
    first_response_seconds: Mapped[float | None]
    escalated_at: Mapped[datetime | None]
    rating: Mapped[int | None]
    rating_comment: Mapped[str] = mapped_column(String(MAX_COMMENT_LENGTH), default="")
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    solved_at: Mapped[datetime | None]
    closed_at: Mapped[datetime | None]
    assignees: Mapped[list["TicketAssignee"]] = relationship(
        lazy="selectin", passive_deletes=True, cascade="all, delete-orphan"
    )

    @property
    def responder(self) -> Party:
        """The party that is asked."""
        if self.requester is Party.CUSTOMER and self.provider_id is None:
            return Party.OPERATOR
        return Party.PROVIDER if self.requester is Party.CUSTOMER else Party.CUSTOMER

    @property
    def awaited(self) -> Party | None:
        """The party that is waited for; None once it is solved."""
        if self.state is TicketState.OPEN:
            return self.responder
        return next((party for party, state in WAITING.items() if state is self.state), None)

    @property
    def parties(self) -> list[Party]:
        """Who takes part."""
        present = {
            Party.CUSTOMER: self.customer_id is not None,
            Party.PROVIDER: self.provider_id is not None,
            Party.OPERATOR: self.has_operator,
        }
        return [party for party, is_there in present.items() if is_there]

    def tenant_of(self, party: Party) -> str | None:
        """Return the tenant of a party; None for the operator."""
        return {Party.CUSTOMER: self.customer_id, Party.PROVIDER: self.provider_id}.get(party)

    def name_of(self, party: Party) -> str:
        """Return how others call a party."""
        names = {Party.CUSTOMER: self.customer_name, Party.PROVIDER: self.provider_name}
        return names.get(party, "the operator")


class TicketAssignee(Base):
    """Who of a party works on a ticket; its other parties don't see it."""

    __tablename__ = "ticket_assignees"

    ticket_id: Mapped[str] = reference("tickets.id", primary_key=True)
    party: Mapped[Party] = mapped_column(enum_column(Party), primary_key=True)
    user_id: Mapped[str] = reference("users.id", index=True)
    name: Mapped[str] = mapped_column(String(EMAIL_LENGTH))


class TicketWatcher(Base):
    """A user who sees a ticket and gets emails about it: wrote, was mentioned, or is assigned."""

    __tablename__ = "ticket_watchers"

    ticket_id: Mapped[str] = reference("tickets.id", primary_key=True)
    user_id: Mapped[str] = reference("users.id", primary_key=True)
    party: Mapped[Party] = mapped_column(enum_column(Party), primary_key=True)


class TicketEntry(Base):
    """An entry of a ticket's thread; never changed.

    Attributes:
        party: whose user wrote it; None for the portal.
        via: `email`, or "" for pages and programs.
        email_hash: of the Message-ID of an email, which is taken once.
    """

    __tablename__ = "ticket_entries"
    __table_args__ = (Index("ix_ticket_entries_author_id_created_at", "author_id", "created_at"),)

    id: Mapped[str] = id_column()
    ticket_id: Mapped[str] = reference("tickets.id", index=True)
    kind: Mapped[EntryKind] = mapped_column(enum_column(EntryKind))
    party: Mapped[Party | None] = mapped_column(enum_column(Party))
    author_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    author_name: Mapped[str] = mapped_column(String(EMAIL_LENGTH), default="")
    via: Mapped[str] = mapped_column(String(20), default="")
    text: Mapped[str] = mapped_column(Text)
    email_hash: Mapped[str | None] = mapped_column(String(HASH_LENGTH), unique=True)
    created_at: Mapped[datetime]
    attachments: Mapped[list["TicketAttachment"]] = relationship(
        lazy="selectin", order_by="TicketAttachment.id", passive_deletes=True
    )


class TicketAttachment(Base):
    """A file of an entry, which is only ever downloaded."""

    __tablename__ = "ticket_attachments"

    id: Mapped[str] = id_column()
    ticket_id: Mapped[str] = reference("tickets.id", index=True)
    entry_id: Mapped[str] = reference("ticket_entries.id", index=True)
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(MAX_FILE_NAME_LENGTH))
    media_type: Mapped[str] = mapped_column(String(100))
    size_bytes: Mapped[int]
    content: Mapped[bytes] = mapped_column(
        LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb"), deferred=True
    )
