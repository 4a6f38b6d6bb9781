"""Users of the parties of a ticket: who may answer it, who is mentioned, who gets emails."""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, lazyload

from marketplace.support.models import SubjectKind, Ticket, TicketWatcher
from marketplace.support.states import Party
from tenants.models import Membership, Role, User
from tenants.permissions import Permission, is_allowed

ROLES = tuple(
    role for role in Role if role is not Role.OPERATOR and is_allowed(role, Permission.USE_SUPPORT)
)
MAX_RECIPIENTS = 20
MAX_MENTIONS = 10
MAX_USERS = 500
_MENTION = re.compile(r"(?<![\w@])@([\w.+-]+@[\w-]+(?:\.[\w-]+)+)")


def users_of(session: Session, ticket: Ticket, party: Party) -> Sequence[User]:
    """Return the users of a party who may use support, by email address."""
    return session.scalars(_users(ticket, party).limit(MAX_USERS)).all()


def mentioned(session: Session, ticket: Ticket, party: Party, text: str) -> Sequence[User]:
    """Return the users of the author's own side whom a message mentions by email address."""
    names = {name.lower().rstrip(".") for name in _MENTION.findall(text)[:MAX_MENTIONS]}
    if not names:
        return []
    return session.scalars(_users(ticket, party).where(User.email.in_(names))).all()


def recipients(session: Session, ticket: Ticket, party: Party) -> Sequence[User]:
    """Return who of a party gets emails: its watchers or, while it has none, its admins."""
    watchers = select(TicketWatcher.user_id).where(
        TicketWatcher.ticket_id == ticket.id, TicketWatcher.party == party
    )
    of_party = _users(ticket, party).limit(MAX_RECIPIENTS)
    watching = session.scalars(of_party.where(User.id.in_(watchers))).all()
    if watching or party is Party.OPERATOR:
        return watching or session.scalars(of_party).all()
    roles = [Role.ADMIN]
    if party is Party.CUSTOMER and ticket.subject_kind is SubjectKind.INVOICE:
        roles.append(Role.BILLING)
    return session.scalars(of_party.where(Membership.role.in_(roles))).all()


def _users(ticket: Ticket, party: Party) -> Select[Any]:
    statement = select(User).where(User.is_active.is_(True)).options(lazyload("*"))
    if party is Party.OPERATOR:
        statement = statement.where(User.is_operator.is_(True))
    else:
        statement = statement.join(Membership, Membership.user_id == User.id).where(
            Membership.tenant_id == ticket.tenant_of(party),
            Membership.is_active.is_(True),
            Membership.role.in_(ROLES),
        )
    return statement.order_by(User.email)
