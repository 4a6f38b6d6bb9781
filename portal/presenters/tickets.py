"""Tickets as a side of them may see them: users of other tenants have no names there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from marketplace.support import clocks
from marketplace.support.desk import Desk
from marketplace.support.models import (
    EntryKind,
    SubjectKind,
    Ticket,
    TicketAttachment,
    TicketEntry,
)
from marketplace.support.scope import party_of
from marketplace.support.states import Party, TicketState
from portal.context import current_scope, now, portal
from tenants.scope import Scope

_SHARED_NAMES = frozenset({SubjectKind.CONTRACT, SubjectKind.OFFER})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTicket:
    """A ticket as a side sees it; see `marketplace.support.models.Ticket`.

    Attributes:
        side: the party that looks at it.
        awaited: who is waited for; None once it is solved.
        subject_id: "" where the side may not see it.
        author_name: the email address on its own side, else the name of the party.
        assignee: the email address of who works on it, on this side.
        elapsed_seconds: of the clock, in the present wait or until the first answer.
    """

    id: str
    title: str
    state: TicketState
    side: Party
    requester: Party
    responder: Party
    awaited: Party | None
    customer_name: str
    provider_name: str
    has_operator: bool
    subject_kind: SubjectKind
    subject_id: str
    subject_name: str
    contract_id: str | None
    author_name: str
    assignee: str
    limit_seconds: int
    is_promised: bool
    elapsed_seconds: float
    due_at: datetime | None
    is_late: bool
    first_response_seconds: float | None
    rating: int | None
    rating_comment: str
    created_at: datetime
    updated_at: datetime
    solved_at: datetime | None
    closed_at: datetime | None

    @property
    def needs_answer(self) -> bool:
        """Whether this side is waited for."""
        return self.awaited is self.side

    @property
    def may_rate(self) -> bool:
        """Whether this side may rate the support."""
        is_customer = self.side is self.requester and self.responder is not Party.CUSTOMER
        return is_customer and not self.state.is_active

    @property
    def others(self) -> str:
        """Whom this side talks with."""
        names = {
            Party.CUSTOMER: self.customer_name,
            Party.PROVIDER: self.provider_name,
            Party.OPERATOR: "the operator" if self.has_operator else "",
        }
        return ", ".join(name for party, name in names.items() if name and party is not self.side)

    @property
    def parties(self) -> list[Party]:
        """Who takes part besides this side."""
        present = {
            Party.CUSTOMER: self.customer_name,
            Party.PROVIDER: self.provider_name,
            Party.OPERATOR: self.has_operator,
        }
        return [party for party, is_there in present.items() if is_there and party is not self.side]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """An entry of a thread as a side sees it; `author_name` as of `ShownTicket`."""

    id: str
    kind: EntryKind
    party: Party | None
    author_name: str
    is_own_side: bool
    via: str
    text: str
    created_at: datetime
    attachments: Sequence[TicketAttachment]


def desk() -> Desk:
    """Return how support is set up here."""
    return Desk(portal().settings)


def shown_tickets(_session: Session, tickets: Sequence[Ticket]) -> list[ShownTicket]:
    """Return tickets as the current user's side sees them."""
    return [shown_ticket(ticket, current_scope(), at=now()) for ticket in tickets]


def shown_ticket(ticket: Ticket, scope: Scope, *, at: datetime) -> ShownTicket:
    """Return a ticket as a side sees it at a time."""
    side = party_of(ticket, scope)
    is_owner = side is Party.OPERATOR or scope.tenant_id == ticket.tenant_id
    # The id of a rented job is known to both sides; its name is not.
    is_shared = is_owner or ticket.subject_kind in {*_SHARED_NAMES, SubjectKind.JOB}
    has_name = is_owner or ticket.subject_kind in _SHARED_NAMES
    own = next((row.name for row in ticket.assignees if row.party is side), "")
    return ShownTicket(
        id=ticket.id,
        title=ticket.title,
        state=ticket.state,
        side=side,
        requester=ticket.requester,
        responder=ticket.responder,
        awaited=ticket.awaited,
        customer_name=ticket.customer_name,
        provider_name=ticket.provider_name,
        has_operator=ticket.has_operator,
        subject_kind=ticket.subject_kind,
        subject_id=ticket.subject_id if is_shared else "",
        subject_name=ticket.subject_name if has_name else "",
        contract_id=ticket.contract_id,
        author_name=_name(ticket, ticket.requester, ticket.author_name, side),
        assignee=own,
        limit_seconds=ticket.limit_seconds,
        is_promised=ticket.is_promised,
        elapsed_seconds=clocks.elapsed_seconds(ticket, now=at),
        due_at=ticket.due_at,
        is_late=clocks.is_late(ticket, now=at),
        first_response_seconds=ticket.first_response_seconds,
        rating=ticket.rating,
        rating_comment=ticket.rating_comment,
        created_at=ticket.created_at,
        updated_at=ticket.updated_at,
        solved_at=ticket.solved_at,
        closed_at=ticket.closed_at,
    )


def shown_entries(ticket: Ticket, entries: Sequence[TicketEntry], scope: Scope) -> list[ShownEntry]:
    """Return the thread of a ticket as a side sees it."""
    side = party_of(ticket, scope)
    return [
        ShownEntry(
            id=entry.id,
            kind=entry.kind,
            party=entry.party,
            author_name=_name(ticket, entry.party, entry.author_name, side),
            is_own_side=entry.party is side,
            via=entry.via,
            text=entry.text,
            created_at=entry.created_at,
            attachments=entry.attachments,
        )
        for entry in entries
    ]


def _name(ticket: Ticket, party: Party | None, email: str, side: Party) -> str:
    """Return how a user is called towards a side."""
    if party is None:
        return ""
    return email if side in {party, Party.OPERATOR} else ticket.name_of(party)
