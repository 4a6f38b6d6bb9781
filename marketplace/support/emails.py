"""Emails about tickets, which go out by the outbox; replies to them come back by `inbound`."""

from datetime import datetime

from sqlalchemy.orm import Session

from alerting.notification.notices import add_notice
from marketplace.support.desk import Desk
from marketplace.support.models import EntryKind, Ticket, TicketEntry
from marketplace.support.people import recipients
from marketplace.support.states import Party
from tenants.models import User

REPLY_ABOVE = "-- Write your reply above this line --"
# Of a message; the rest is on the page.
MAX_QUOTED_LENGTH = 4000


def about_entry(
    session: Session, ticket: Ticket, entry: TicketEntry, desk: Desk, *, now: datetime
) -> None:
    """Email an entry of a thread to all who follow the ticket but its author.

    Only the author's own side gets notes.
    """
    if not desk.mail_url:
        return
    for party in ticket.parties:
        if entry.kind is EntryKind.NOTE and party is not entry.party:
            continue
        for user in recipients(session, ticket, party):
            if user.id != entry.author_id:
                lead = _lead(ticket, entry, party)
                _add(session, ticket, desk, lead, party=party, user=user, now=now)


def about_assignment(
    session: Session, ticket: Ticket, desk: Desk, *, party: Party, user: User, now: datetime
) -> None:
    """Email a user who is to work on a ticket."""
    text = f"You are assigned to the ticket {ticket.title!r}."
    _add(session, ticket, desk, text, party=party, user=user, now=now)


def about_refusal(
    session: Session,
    ticket: Ticket,
    desk: Desk,
    problem: str,
    *,
    party: Party,
    user: User,
    now: datetime,
) -> None:
    """Email a user whose reply by email was not added."""
    text = f"Your reply to the ticket {ticket.title!r} was not added. {problem}"
    _add(session, ticket, desk, text, party=party, user=user, now=now)


def _lead(ticket: Ticket, entry: TicketEntry, party: Party) -> str:
    """Return what happened, as a party may see it: users of other tenants have no names."""
    if entry.party is None:
        who = "The portal"
    elif party in {entry.party, Party.OPERATOR}:
        who = entry.author_name
    else:
        name = ticket.name_of(entry.party)
        who = name[:1].upper() + name[1:]
    if entry.kind is EntryKind.CHANGE:
        return f"{who}: {entry.text}."
    text = entry.text
    if len(text) > MAX_QUOTED_LENGTH:
        text = f"{text[:MAX_QUOTED_LENGTH]} ...\nRead the rest on the page."
    wrote = "noted, for your side alone" if entry.kind is EntryKind.NOTE else "wrote"
    count = len(entry.attachments)
    files = f"\n\n{count} file{'' if count == 1 else 's'} attached, see the page." if count else ""
    return f"{who} {wrote}:\n\n{text}{files}"


def _add(
    session: Session,
    ticket: Ticket,
    desk: Desk,
    text: str,
    *,
    party: Party,
    user: User,
    now: datetime,
) -> None:
    if not desk.mail_url:
        return
    reply_to = desk.reply_address(ticket.id, user.id)
    payload = {
        "subject": f"[Support] {ticket.title}",
        "text": f"{REPLY_ABOVE}\n\n{text}" if reply_to else text,
        "link": f"{desk.mail_url}/tickets/{ticket.id}",
        "link_name": "Ticket",
        "thread": f"ticket-{ticket.id}",
    }
    if reply_to:
        payload["reply_to"] = reply_to
    add_notice(session, ticket.tenant_of(party), payload, address=user.email, now=now)
