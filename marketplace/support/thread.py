"""Entries of a ticket's thread, with their files and who follows them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, OverloadedError
from core.quantities import format_size
from marketplace.support.models import (
    EntryKind,
    Ticket,
    TicketAttachment,
    TicketEntry,
    TicketWatcher,
)
from marketplace.support.people import mentioned
from marketplace.support.requests import File, file_errors, safe_name
from marketplace.support.states import Party
from tenants.checks import raise_if_invalid
from tenants.models import User
from tenants.scope import Scope

MAX_ENTRIES = 500
# Of a user.
MAX_MESSAGES_PER_HOUR = 60
# Of a tenant, of all tickets.
MAX_STORED_BYTES = 512 * 1024**2


def check_thread(session: Session, ticket: Ticket, user: User, *, now: datetime) -> None:
    """Check that a user may add a message, or open a ticket again; both are emailed.

    Raises:
        ConflictError: the thread is full.
        OverloadedError: the user wrote too many messages within an hour.
    """
    count = select(func.count()).where(TicketEntry.ticket_id == ticket.id)
    if (session.scalar(count) or 0) >= MAX_ENTRIES:
        raise ConflictError(
            f"The thread has {MAX_ENTRIES} entries. Open a new ticket that refers to it."
        )
    recent = select(func.count()).where(
        TicketEntry.author_id == user.id, TicketEntry.created_at > now - timedelta(hours=1)
    )
    if (session.scalar(recent) or 0) >= MAX_MESSAGES_PER_HOUR:
        raise OverloadedError(
            f"You added {MAX_MESSAGES_PER_HOUR} entries to tickets within an hour. "
            "Try again later.",
            retry_after_seconds=600,
        )


def add_entry(
    session: Session,
    ticket: Ticket,
    kind: EntryKind,
    text: str,
    *,
    party: Party,
    user: User,
    via: str = "",
    now: datetime,
) -> TicketEntry:
    """Add an entry; its author, and whom it mentions, follow the ticket from now on."""
    entry = TicketEntry(
        ticket_id=ticket.id,
        kind=kind,
        party=party,
        author_id=user.id,
        author_name=user.email,
        via=via,
        text=text.strip(),
        created_at=now,
    )
    session.add(entry)
    session.flush()
    watch(session, ticket, party, [user])
    if kind is not EntryKind.CHANGE:
        watch(session, ticket, party, mentioned(session, ticket, party, text))
    return entry


def watch(session: Session, ticket: Ticket, party: Party, users: Sequence[User]) -> None:
    """Let users of a party see a ticket, and get emails about it."""
    for user in users:
        key = {"ticket_id": ticket.id, "user_id": user.id, "party": party}
        if session.get(TicketWatcher, key) is None:
            session.add(TicketWatcher(**key))
    session.flush()


def store_files(session: Session, scope: Scope, entry: TicketEntry, files: Sequence[File]) -> None:
    """Store the files of an entry.

    Raises:
        InvalidInputError: they are too many or too large.
        ConflictError: the tenant has no room for them.
    """
    if not files:
        return
    raise_if_invalid({"files": file_errors(files)}, "The files were not accepted")
    ticket = session.get_one(Ticket, entry.ticket_id)
    owner_id = scope.tenant_id or ticket.tenant_id
    stored = select(func.sum(TicketAttachment.size_bytes)).where(
        TicketAttachment.tenant_id == owner_id
    )
    size = sum(len(file.content) for file in files)
    if int(session.scalar(stored) or 0) + size > MAX_STORED_BYTES:
        raise ConflictError(
            f"The files of your tenant's tickets have {format_size(MAX_STORED_BYTES)}, which is "
            "the most that is stored. Send the message without files."
        )
    session.add_all(
        TicketAttachment(
            ticket_id=entry.ticket_id,
            entry_id=entry.id,
            tenant_id=owner_id,
            name=safe_name(file.name),
            media_type=file.media_type,
            size_bytes=len(file.content),
            content=file.content,
        )
        for file in files
    )
    session.flush()
    session.expire(entry, ["attachments"])
