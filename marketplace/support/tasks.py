"""The periodic tasks of support: late answers, replies by email, and tickets that are over."""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from core.db import begin_writing, transaction
from core.errors import UnavailableError
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.quantities import format_duration
from core.settings import ServerSettings
from marketplace.support import clocks, emails, levels
from marketplace.support.desk import Desk
from marketplace.support.inbound import receive
from marketplace.support.models import EntryKind, Ticket, TicketEntry
from marketplace.support.service import REOPEN_WITHIN
from marketplace.support.states import Party, Step, TicketState, next_state

log = logging.getLogger(__name__)

# Of tickets in one transaction.
BATCH = 50


class SupportTasks:
    """Escalates late answers, reads replies, closes what is solved, and deletes what is old."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context
        self._desk = Desk(settings)

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        tasks = [
            PeriodicTask(self.escalate_tickets, 30),
            PeriodicTask(self.close_tickets, 3600),
        ]
        if self._settings.support_imap_url and self._settings.support_address:
            tasks.append(PeriodicTask(self.receive_replies, 30))
        return tasks

    def escalate_tickets(self) -> None:
        """Call the operator in where an answer is late, and record broken promises."""
        context = self._context
        with transaction(context.sessions) as session:
            due = select(Ticket.id).where(Ticket.due_at <= context.clock())
            idents = session.scalars(due.order_by(Ticket.due_at).limit(1000)).all()
        for ident in idents:
            if context.is_stopping():
                return
            with transaction(context.sessions) as session:
                escalate(session, ident, self._desk, now=context.clock())

    def close_tickets(self) -> None:
        """Close tickets that were solved two weeks ago, and delete old ones."""
        context = self._context
        now = context.clock()
        days = timedelta(days=self._settings.support_retention_days)
        is_solved = Ticket.state == TicketState.SOLVED
        is_closed = Ticket.state == TicketState.CLOSED
        for batch in self._batches(is_solved & (Ticket.solved_at <= now - REOPEN_WITHIN)):
            for ident in batch:
                with transaction(context.sessions) as session:
                    close(session, ident, now=now)
        for batch in self._batches(is_closed & (Ticket.updated_at <= now - days)):
            with transaction(context.sessions) as session:
                session.execute(delete(Ticket).where(Ticket.id.in_(batch)))

    def receive_replies(self) -> None:
        """Add replies by email to their tickets."""
        context = self._context
        try:
            count = receive(
                context.sessions,
                self._desk,
                clock=context.clock,
                is_stopping=context.is_stopping,
            )
        except UnavailableError as error:
            log.warning("support: %s", error.message)
            return
        if count:
            log.info("support: received %d replies by email", count)

    def _batches(self, condition: ColumnElement[bool]) -> Iterator[Sequence[str]]:
        """Yield the tickets that meet a condition, each once, until the portal stops."""
        last = ""
        while not self._context.is_stopping():
            wanted = select(Ticket.id).where(condition, Ticket.id > last).order_by(Ticket.id)
            with transaction(self._context.sessions) as session:
                idents = session.scalars(wanted.limit(BATCH)).all()
            if not idents:
                return
            yield idents
            last = idents[-1]


def escalate(session: Session, ticket_id: str, desk: Desk, *, now: datetime) -> None:
    """Escalate a ticket whose answer is late: once for each time that it waits."""
    ticket = _locked(session, ticket_id)
    if ticket is None or ticket.due_at is None or ticket.due_at > now:
        return
    ticket.escalated_at, ticket.due_at = now, None
    if ticket.first_response_seconds is None:
        levels.note_breach(session, ticket, now=now)
    took = format_duration(clocks.elapsed_seconds(ticket, now=now))
    limit = format_duration(ticket.limit_seconds)
    text = f"No answer of {ticket.name_of(ticket.responder)} in {took}, due within {limit}"
    if not ticket.has_operator:
        ticket.has_operator = True
        text = f"{text}. The operator was called in"
    entry = _add_change(session, ticket, text, now=now)
    emails.about_entry(session, ticket, entry, desk, now=now)


def close(session: Session, ticket_id: str, *, now: datetime) -> None:
    """Close a ticket that was solved two weeks ago."""
    ticket = _locked(session, ticket_id)
    solved_at = None if ticket is None else ticket.solved_at
    if ticket is None or solved_at is None or solved_at > now - REOPEN_WITHIN:
        return
    ticket.state = next_state(ticket.state, Step.CLOSE, Party.CUSTOMER)
    ticket.closed_at = ticket.updated_at = now
    _add_change(session, ticket, f"Closed {REOPEN_WITHIN.days} days after it was solved", now=now)


def _locked(session: Session, ticket_id: str) -> Ticket | None:
    begin_writing(session)
    statement = select(Ticket).where(Ticket.id == ticket_id).with_for_update()
    return session.scalar(statement.execution_options(populate_existing=True))


def _add_change(session: Session, ticket: Ticket, text: str, *, now: datetime) -> TicketEntry:
    entry = TicketEntry(
        ticket_id=ticket.id, kind=EntryKind.CHANGE, party=None, text=text, created_at=now
    )
    session.add(entry)
    session.flush()
    return entry
