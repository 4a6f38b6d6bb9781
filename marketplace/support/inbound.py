"""Replies by email become messages of tickets.

A reply counts if it was sent to an address that was made for its sender, who may still write to the
ticket. Others get no answer, so that nobody learns what exists here, nor do programs.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.db import SessionFactory, begin_writing, transaction
from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
)
from core.ids import hash_secret
from marketplace.support import emails
from marketplace.support.desk import Desk
from marketplace.support.mail_text import Reply, read_reply
from marketplace.support.mailbox import open_mailbox
from marketplace.support.models import Ticket, TicketEntry
from marketplace.support.requests import MessageRequest
from marketplace.support.scope import party_of
from marketplace.support.service import add_message
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.models import User
from tenants.scope import Scope, active_memberships

log = logging.getLogger(__name__)

VIA_EMAIL = "email"
# To a user who got so many notices within an hour, whose program may answer by itself.
MAX_NOTICES_PER_HOUR = 20
REFUSED = (ConflictError, ForbiddenError, InvalidInputError, NotFoundError, OverloadedError)


def receive(
    sessions: SessionFactory,
    desk: Desk,
    *,
    clock: Callable[[], datetime],
    is_stopping: Callable[[], bool],
) -> int:
    """Read the mailbox, and add the replies in it to their tickets; return how many.

    An email is marked as read after its message is stored: one that is read again after a crash is
    recognized by its Message-ID.

    Raises:
        UnavailableError: the mail server, or the database, is unavailable.
    """
    count = 0
    with open_mailbox(desk.settings.support_imap_url) as mailbox:
        for uid in mailbox.unread():
            if is_stopping():
                break
            raw = mailbox.fetch(uid)
            problem = "it is gone, or too large"
            if raw is not None:
                problem = accept(sessions, desk, read_reply(raw), now=clock())
            if problem:
                log.info("support: ignored an email: %s", problem)
            count += not problem
            mailbox.mark_read(uid)
    return count


def accept(sessions: SessionFactory, desk: Desk, reply: Reply, *, now: datetime) -> str:
    """Add a reply to its ticket; return why that was not done, "" if it was.

    A sender whose reply can't be added gets an email that says why.

    Raises:
        DatabaseUnavailableError: the database is unavailable.
    """
    if reply.ignored:
        return reply.ignored
    named = next(
        (ticket for address in reply.recipients if (ticket := desk.ticket_of(address))), None
    )
    if named is None:
        return "it was sent to no ticket"
    try:
        with transaction(sessions) as session:
            begin_writing(session)
            return _add(session, desk, reply, *named, now=now)
    except IntegrityError:
        return "it was received before"
    except REFUSED as error:
        if not isinstance(error, OverloadedError):
            with transaction(sessions) as session:
                _answer(session, desk, reply, named[0], error.message, now=now)
        return error.message


def _add(
    session: Session,
    desk: Desk,
    reply: Reply,
    ticket_id: str,
    signature: bytes,
    *,
    now: datetime,
) -> str:
    email_hash = hash_secret(f"{reply.sender} {reply.message_id}") if reply.message_id else None
    seen = select(TicketEntry.id).where(TicketEntry.email_hash == email_hash)
    if email_hash is not None and session.scalar(seen) is not None:
        return "it was received before"
    user = session.scalar(select(User).where(User.email == reply.sender))
    if user is None or not desk.is_signed_for(ticket_id, user.id, signature):
        return "its address is not the sender's"
    scope = _scope_in(session, user, ticket_id)
    if scope is None:
        return "its sender is no party of the ticket any more"
    set_actor(session, Actor(user_id=user.id, name=user.email, via=VIA_EMAIL), clock=lambda: now)
    request = MessageRequest(text=reply.text)
    add_message(
        session,
        scope,
        ticket_id,
        request,
        desk=desk,
        files=reply.files,
        via=VIA_EMAIL,
        email_hash=email_hash,
        now=now,
    )
    return ""


def _answer(
    session: Session, desk: Desk, reply: Reply, ticket_id: str, problem: str, *, now: datetime
) -> None:
    """Email to a user who may write to the ticket why a reply was not added."""
    user = session.scalar(select(User).where(User.email == reply.sender))
    ticket = session.get(Ticket, ticket_id)
    scope = None if user is None else _scope_in(session, user, ticket_id)
    if user is None or ticket is None or scope is None:
        return
    party = party_of(ticket, scope)
    recent = select(func.count()).where(
        Notification.tenant_id == ticket.tenant_of(party),
        Notification.address == user.email,
        Notification.created_at > now - timedelta(hours=1),
    )
    if (session.scalar(recent) or 0) >= MAX_NOTICES_PER_HOUR:
        return
    emails.about_refusal(session, ticket, desk, problem, party=party, user=user, now=now)


def _scope_in(session: Session, user: User, ticket_id: str) -> Scope | None:
    """Return the scope in which a user is a party of a ticket."""
    ticket = session.get(Ticket, ticket_id)
    if ticket is None or not user.is_active:
        return None
    if user.is_operator:
        return Scope.of(user) if ticket.has_operator else None
    tenants = {ticket.customer_id, ticket.provider_id}
    return next(
        (
            Scope.of_membership(membership)
            for membership in active_memberships(user)
            if membership.tenant_id in tenants
        ),
        None,
    )
