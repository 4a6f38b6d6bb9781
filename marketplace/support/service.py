"""Open, answer, solve and rate tickets. Every call checks the permissions of its scope."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session, undefer

from core.db import begin_writing
from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from marketplace.support import clocks, emails, levels
from marketplace.support.desk import Desk
from marketplace.support.models import (
    EntryKind,
    Ticket,
    TicketAssignee,
    TicketAttachment,
    TicketEntry,
)
from marketplace.support.opening import check_room, sides_of
from marketplace.support.people import users_of
from marketplace.support.requests import (
    File,
    MessageRequest,
    TicketRequest,
    check_rating,
    decoded_files,
    text_errors,
    title_errors,
)
from marketplace.support.scope import party_of, read_ticket, select_tickets, waits_for
from marketplace.support.states import ACTIVE, Party, Step, TicketState, next_state
from marketplace.support.subjects import SubjectEvent, subject_events
from marketplace.support.thread import add_entry, check_thread, store_files, watch
from tenants.auditing.recording import record
from tenants.checks import raise_if_invalid
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

REOPEN_WITHIN = timedelta(days=14)
TICKET_SORTS: Columns = {
    "updated_at": Ticket.updated_at,
    "created_at": Ticket.created_at,
    "due_at": Ticket.due_at,
    "title": Ticket.title,
}


def list_tickets(
    session: Session,
    scope: Scope,
    *,
    desk: Desk,
    state: TicketState | None = None,
    is_active: bool | None = None,
    needs_answer: bool | None = None,
    is_late: bool | None = None,
    subject_id: str = "",
    search: str = "",
    now: datetime,
    **paging: Unpack[Paging],
) -> Page[Ticket]:
    """Return the tickets that the scope sees; those that are due first, then the latest."""
    statement = select_tickets(scope, desk)
    if state is not None:
        statement = statement.where(Ticket.state == state)
    condition: ColumnElement[bool]
    if is_active is not None:
        condition = Ticket.state.in_(ACTIVE)
        statement = statement.where(condition if is_active else ~condition)
    if needs_answer is not None:
        condition = waits_for(scope)
        statement = statement.where(condition if needs_answer else ~condition)
    if is_late is not None:
        late = or_(Ticket.due_at <= now, Ticket.escalated_at.is_not(None))
        condition = Ticket.state.in_(ACTIVE) & func.coalesce(late, False)
        statement = statement.where(condition if is_late else ~condition)
    if subject_id:
        statement = statement.where(Ticket.subject_id == subject_id)
    if search:
        statement = statement.where(Ticket.title.icontains(search, autoescape=True))
    ordered = statement.order_by(
        Ticket.due_at.is_(None), Ticket.due_at, Ticket.updated_at.desc(), Ticket.id.desc()
    )
    return list_page(session, ordered, TICKET_SORTS, last=Ticket.id, **paging)


def get_ticket(session: Session, scope: Scope, ticket_id: str, *, desk: Desk) -> Ticket:
    """Return a ticket that the scope sees."""
    return read_ticket(session, scope, ticket_id, desk=desk)


def list_entries(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk
) -> list[TicketEntry]:
    """Return the thread of a ticket, the oldest entry first, with the notes of this side alone."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk)
    own = or_(TicketEntry.kind != EntryKind.NOTE, TicketEntry.party == party_of(ticket, scope))
    statement = select(TicketEntry).where(TicketEntry.ticket_id == ticket.id, own)
    return list(session.scalars(statement.order_by(TicketEntry.id)))


def list_subject_events(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk
) -> list[SubjectEvent]:
    """Return what happened to a ticket's subject, as this side may see it, the newest first."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk)
    return subject_events(session, scope, ticket, party=party_of(ticket, scope))


def get_attachment(
    session: Session, scope: Scope, ticket_id: str, attachment_id: str, *, desk: Desk
) -> TicketAttachment:
    """Return a file of an entry that the scope sees, with its content."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk)
    own = or_(TicketEntry.kind != EntryKind.NOTE, TicketEntry.party == party_of(ticket, scope))
    attachment = session.scalar(
        select(TicketAttachment)
        .join(TicketEntry, TicketEntry.id == TicketAttachment.entry_id)
        .where(TicketAttachment.id == attachment_id, TicketAttachment.ticket_id == ticket.id, own)
        .options(undefer(TicketAttachment.content))
    )
    if attachment is None:
        raise NotFoundError.of("attachment", attachment_id)
    return attachment


def create_ticket(
    session: Session,
    scope: Scope,
    request: TicketRequest,
    *,
    desk: Desk,
    files: Sequence[File] = (),
    now: datetime,
) -> Ticket:
    """Open a ticket; its recipient gets an email.

    Raises:
        InvalidInputError: names every invalid field.
        OverloadedError: the tenant opened too many today.
        ConflictError: it has too many that are not solved.
    """
    scope.require(Permission.USE_SUPPORT)
    files = [*decoded_files(request.files), *files]
    errors = {"title": title_errors(request.title), "text": text_errors(request.text)}
    raise_if_invalid(errors, "The ticket was not opened")
    begin_writing(session)
    user = session.get_one(User, scope.user_id)
    ticket = Ticket(
        **sides_of(session, scope, request, desk),
        author_id=user.id,
        author_name=user.email,
        subject_kind=request.subject_kind,
        subject_id=request.subject_id,
        title=" ".join(request.title.split()),
        state=TicketState.OPEN,
        created_at=now,
        updated_at=now,
    )
    check_room(session, ticket.tenant_id, now=now)
    levels.promise(session, ticket, desk, now=now)
    session.add(ticket)
    session.flush()
    clocks.follow(ticket, now=now)
    _record(session, scope, ticket, "opened", now=now)
    entry = add_entry(
        session,
        ticket,
        EntryKind.MESSAGE,
        request.text,
        party=ticket.requester,
        user=user,
        now=now,
    )
    store_files(session, scope, entry, files)
    emails.about_entry(session, ticket, entry, desk, now=now)
    return ticket


def add_message(
    session: Session,
    scope: Scope,
    ticket_id: str,
    request: MessageRequest,
    *,
    desk: Desk,
    files: Sequence[File] = (),
    via: str = "",
    email_hash: str | None = None,
    now: datetime,
) -> Ticket:
    """Add a message, or an internal note, to a ticket; the other parties get an email.

    A message to a solved ticket opens it again.

    Args:
        session: the session.
        scope: of the author.
        ticket_id: the ticket.
        request: the message.
        desk: how support is set up.
        files: attached to it, besides those of the request.
        via: `email` if it came by email.
        email_hash: of the Message-ID of the email.
        now: the time.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the ticket is closed, or its thread is full.
        OverloadedError: the user wrote too many messages within an hour.
    """
    files = [*decoded_files(request.files), *files]
    raise_if_invalid({"text": text_errors(request.text)}, "The message was not added")
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    party = party_of(ticket, scope)
    user = session.get_one(User, scope.user_id)
    check_thread(session, ticket, user, now=now)
    if request.is_internal:
        if ticket.state is TicketState.CLOSED:
            next_state(ticket.state, Step.ANSWER, party)
        kind = EntryKind.NOTE
    else:
        awaited = _awaited_after(ticket, party, request.waits_for)
        is_follow_up = party is ticket.requester and awaited is ticket.responder
        step = Step.FOLLOW_UP if is_follow_up else Step.ANSWER
        if ticket.state is TicketState.SOLVED:
            _require_recent(ticket, now=now)
        if party is ticket.responder:
            _count_answer(session, ticket, now=now)
        _move(ticket, next_state(ticket.state, step, awaited), now=now)
        kind = EntryKind.MESSAGE
    author: dict[str, Any] = {"party": party, "user": user, "via": via}
    entry = add_entry(session, ticket, kind, request.text, **author, now=now)
    entry.email_hash = email_hash
    store_files(session, scope, entry, files)
    emails.about_entry(session, ticket, entry, desk, now=now)
    return ticket


def solve_ticket(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk, now: datetime
) -> Ticket:
    """Mark a ticket as solved; its requester may rate the support, and open it again.

    Raises:
        ConflictError: it is solved or closed, or another side than its requester has not answered.
    """
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    state = next_state(ticket.state, Step.SOLVE, ticket.responder)
    party = party_of(ticket, scope)
    is_answer = (TicketEntry.kind == EntryKind.MESSAGE) & (TicketEntry.party == party)
    answer = select(TicketEntry.id).where(TicketEntry.ticket_id == ticket.id, is_answer).limit(1)
    if party is not ticket.requester and session.scalar(answer) is None:
        raise ConflictError("Answer the ticket first: your side has written no message yet.")
    _move(ticket, state, now=now)
    return _changed(session, scope, ticket, "solved", "Marked as solved", desk=desk, now=now)


def reopen_ticket(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk, now: datetime
) -> Ticket:
    """Open a solved ticket again, within two weeks; its responder is waited for."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    state = next_state(ticket.state, Step.REOPEN, ticket.responder)
    check_thread(session, ticket, session.get_one(User, scope.user_id), now=now)
    _require_recent(ticket, now=now)
    _move(ticket, state, now=now)
    return _changed(session, scope, ticket, "reopened", "Opened again", desk=desk, now=now)


def close_ticket(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk, now: datetime
) -> Ticket:
    """Close a solved ticket for good; its requester alone, or the time, does that."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    if party_of(ticket, scope) is not ticket.requester:
        raise ConflictError("Only the side that opened the ticket closes it. Solve it instead.")
    _move(ticket, next_state(ticket.state, Step.CLOSE, ticket.responder), now=now)
    return _changed(session, scope, ticket, "closed", "Closed", desk=desk, now=now)


def call_operator(
    session: Session, scope: Scope, ticket_id: str, *, desk: Desk, now: datetime
) -> Ticket:
    """Let the operator take part in a ticket between a customer and a provider."""
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    if ticket.has_operator:
        raise ConflictError("The operator takes part in this ticket already.")
    if ticket.state is TicketState.CLOSED:
        next_state(ticket.state, Step.ANSWER, Party.OPERATOR)
    ticket.has_operator = True
    text = "Called in the operator, who sees the thread from now on"
    return _changed(session, scope, ticket, "operator_called", text, desk=desk, now=now)


def assign_ticket(
    session: Session, scope: Scope, ticket_id: str, user: str, *, desk: Desk, now: datetime
) -> Ticket:
    """Say who of this side works on a ticket, by ID or email address; "" is nobody.

    Raises:
        InvalidInputError: this side has no such user who may use support.
    """
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    party = party_of(ticket, scope)
    present = next((row for row in ticket.assignees if row.party is party), None)
    if present is not None:
        ticket.assignees.remove(present)
        session.flush()
    if user:
        chosen = next(
            (row for row in users_of(session, ticket, party) if user in {row.id, row.email}), None
        )
        if chosen is None:
            message = f"Your side has no user {user[:100]!r} who may answer tickets."
            raise InvalidInputError(message, errors={"user": [message]})
        ticket.assignees.append(
            TicketAssignee(ticket_id=ticket.id, party=party, user_id=chosen.id, name=chosen.email)
        )
        watch(session, ticket, party, [chosen])
        if chosen.id != scope.user_id:
            emails.about_assignment(session, ticket, desk, party=party, user=chosen, now=now)
    ticket.updated_at = now
    _record(session, scope, ticket, "assigned", after={"user": user}, now=now)
    session.flush()
    return ticket


def rate_ticket(
    session: Session,
    scope: Scope,
    ticket_id: str,
    rating: int,
    comment: str = "",
    *,
    desk: Desk,
    now: datetime,
) -> Ticket:
    """Rate the support of a solved ticket, as its requester; the rating may be changed.

    Raises:
        InvalidInputError: it is not between 1 and 5, or the comment is too long.
        ConflictError: the ticket is not solved, or another side opened it.
    """
    check_rating(rating, comment)
    ticket = read_ticket(session, scope, ticket_id, desk=desk, is_locked=True)
    if party_of(ticket, scope) is not ticket.requester or ticket.responder is Party.CUSTOMER:
        raise ConflictError("Only a customer who opened a ticket rates its support.")
    if ticket.state.is_active:
        raise ConflictError("Rate the support once the ticket is solved.")
    ticket.rating, ticket.rating_comment = rating, comment.strip()
    _record(session, scope, ticket, "rated", after={"rating": rating}, now=now)
    session.flush()
    return ticket


def _awaited_after(ticket: Ticket, party: Party, wanted: Party | None) -> Party:
    """Return who is waited for after a message."""
    if wanted is None:
        return ticket.responder if party is ticket.requester else ticket.requester
    if wanted is party or wanted not in ticket.parties:
        names = " or ".join(other.value for other in ticket.parties if other is not party)
        message = f"waits_for is {wanted.value!r}; choose {names}."
        raise InvalidInputError(message, errors={"waits_for": [message]})
    return wanted


def _require_recent(ticket: Ticket, *, now: datetime) -> None:
    if ticket.solved_at is not None and now >= ticket.solved_at + REOPEN_WITHIN:
        raise ConflictError(
            f"The ticket was solved more than {REOPEN_WITHIN.days} days ago. "
            "Open a new one that refers to it."
        )


def _count_answer(session: Session, ticket: Ticket, *, now: datetime) -> None:
    if clocks.answered(ticket, now=now):
        levels.note_answer(session, ticket, now=now)


def _move(ticket: Ticket, state: TicketState, *, now: datetime) -> None:
    """Set the state, with what follows from it."""
    if state is not ticket.state:
        ticket.state = state
        ticket.solved_at = now if state is TicketState.SOLVED else ticket.solved_at
        if state.is_active:
            ticket.solved_at = None
        if state is TicketState.CLOSED:
            ticket.closed_at = now
    ticket.updated_at = now
    clocks.follow(ticket, now=now)


def _changed(
    session: Session,
    scope: Scope,
    ticket: Ticket,
    verb: str,
    text: str,
    *,
    desk: Desk,
    now: datetime,
) -> Ticket:
    """Add a change to the thread and the audit log, and email it."""
    party = party_of(ticket, scope)
    user = session.get_one(User, scope.user_id)
    ticket.updated_at = now
    entry = add_entry(session, ticket, EntryKind.CHANGE, text, party=party, user=user, now=now)
    _record(session, scope, ticket, verb, now=now)
    emails.about_entry(session, ticket, entry, desk, now=now)
    return ticket


def _record(
    session: Session,
    scope: Scope,
    ticket: Ticket,
    verb: str,
    *,
    after: dict[str, Any] | None = None,
    now: datetime,
) -> None:
    """Record a change in the audit log of the side that made it."""
    record(
        session,
        action=f"ticket.{verb}",
        target_id=ticket.id,
        target_name=ticket.title,
        tenant_id=scope.tenant_id,
        after=after,
        now=now,
    )
