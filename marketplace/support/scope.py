"""Which tickets a user sees: their tenant is a party, and they are an admin or take part.

Billing users also see tickets about invoices. Operators see those in which the operator takes part.
"""

from typing import Any

from sqlalchemy import ColumnElement, Select, and_, false, not_, or_, select
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import NotFoundError
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket, TicketWatcher
from marketplace.support.states import WAITING, Party, TicketState
from tenants.models import Role
from tenants.permissions import Permission
from tenants.scope import Scope


def select_tickets(scope: Scope, desk: Desk) -> Select[Any]:
    """Return the tickets that a scope sees."""
    scope.require(Permission.USE_SUPPORT)
    statement = select(Ticket).where(_is_party(scope))
    if not desk.has_marketplace:
        statement = statement.where(Ticket.provider_id.is_(None))
    if scope.role in {Role.ADMIN, Role.OPERATOR}:
        return statement
    watched = select(TicketWatcher.ticket_id).where(TicketWatcher.user_id == scope.user_id)
    is_invoice = Ticket.subject_kind == SubjectKind.INVOICE
    of_billing = is_invoice if scope.role is Role.BILLING else false()
    return statement.where(or_(Ticket.id.in_(watched), of_billing))


def party_of(ticket: Ticket, scope: Scope) -> Party:
    """Return the party of a scope that sees the ticket."""
    if scope.tenant_id is None:
        return Party.OPERATOR
    return Party.PROVIDER if ticket.provider_id == scope.tenant_id else Party.CUSTOMER


def waits_for(scope: Scope) -> ColumnElement[bool]:
    """Return the condition of tickets whose scope's party is waited for."""
    asks_provider = Ticket.provider_id.is_not(None)
    responds = {
        Party.CUSTOMER: Ticket.requester != Party.CUSTOMER,
        Party.PROVIDER: Ticket.requester == Party.CUSTOMER,
        Party.OPERATOR: and_(Ticket.requester == Party.CUSTOMER, not_(asks_provider)),
    }
    return or_(
        *(
            and_(
                _side(scope, party),
                or_(Ticket.state == state, and_(Ticket.state == TicketState.OPEN, responds[party])),
            )
            for party, state in WAITING.items()
        )
    )


def read_ticket(
    session: Session, scope: Scope, ident: str, *, desk: Desk, is_locked: bool = False
) -> Ticket:
    """Return a ticket that the scope sees.

    Raises:
        NotFoundError: it does not exist, or is not for this user; both look the same.
    """
    if is_locked:
        begin_writing(session)
    statement = select_tickets(scope, desk).where(Ticket.id == ident)
    if is_locked:
        statement = statement.with_for_update().execution_options(populate_existing=True)
    ticket: Ticket | None = session.scalar(statement)
    if ticket is None:
        raise NotFoundError.of("ticket", ident)
    return ticket


def _is_party(scope: Scope) -> ColumnElement[bool]:
    return or_(*(_side(scope, party) for party in Party))


def _side(scope: Scope, party: Party) -> ColumnElement[bool]:
    """Return the condition that a scope is a party of a ticket."""
    if party is Party.OPERATOR:
        return Ticket.has_operator.is_(True) if scope.tenant_id is None else false()
    column = Ticket.customer_id if party is Party.CUSTOMER else Ticket.provider_id
    return false() if scope.tenant_id is None else column == scope.tenant_id
