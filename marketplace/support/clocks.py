"""The clock of a ticket: how long its responder is waited for, against a limit.

It runs while the responder is waited for, and stands while others are. Until the first answer it
counts up over several waits, as that is what contracts promise; each later wait begins at zero.
"""

from datetime import datetime, timedelta

from marketplace.support.models import Ticket


def follow(ticket: Ticket, *, now: datetime) -> None:
    """Let the clock run or stand, as the state of a ticket asks for."""
    runs = ticket.limit_seconds > 0 and ticket.awaited is ticket.responder
    if not runs:
        ticket.used_seconds = elapsed_seconds(ticket, now=now)
        ticket.clock_started_at = ticket.due_at = None
    elif ticket.clock_started_at is None:
        if ticket.first_response_seconds is not None:
            ticket.used_seconds, ticket.escalated_at = 0.0, None
        ticket.clock_started_at = now
        left = max(ticket.limit_seconds - ticket.used_seconds, 0.0)
        # What was escalated waits on without being escalated again.
        ticket.due_at = None if ticket.escalated_at else now + timedelta(seconds=left)


def elapsed_seconds(ticket: Ticket, *, now: datetime) -> float:
    """Return how long the responder was waited for, in the present wait or until it answered."""
    started_at = ticket.clock_started_at
    running = 0.0 if started_at is None else max((now - started_at).total_seconds(), 0.0)
    return ticket.used_seconds + running


def answered(ticket: Ticket, *, now: datetime) -> bool:
    """Note the first answer of the responder; return whether it is that."""
    if ticket.first_response_seconds is not None:
        return False
    if not ticket.limit_seconds:
        ticket.first_response_seconds = (now - ticket.created_at).total_seconds()
        return True
    ticket.first_response_seconds = elapsed_seconds(ticket, now=now)
    return True


def is_late(ticket: Ticket, *, now: datetime) -> bool:
    """Return whether an answer is waited for that should be there."""
    runs = ticket.clock_started_at is not None
    return runs and elapsed_seconds(ticket, now=now) >= ticket.limit_seconds
