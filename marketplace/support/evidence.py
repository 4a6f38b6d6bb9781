"""Cases for and against a provider from its tickets: how fast it gave the first answers."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.quantities import format_duration
from marketplace.cases import Case, Dimension
from marketplace.support.models import Ticket
from marketplace.support.states import Party

# Of a customer in a month: many tickets must not count for more than many customers.
MAX_WEIGHT_PER_MONTH = 4.0
MAX_CASES = 5000


def response_cases(session: Session, provider_id: str, *, since: datetime) -> Sequence[Case]:
    """Return the tickets of customers that a provider answered, or should have, the oldest first.

    An answer within the limit speaks for it in full, a later one less by how late it is, and none
    after the limit against it. Tickets that wait within their limit, or whose customers solved them
    before, are no cases. A customer's tickets of a month count as four at most.

    Args:
        session: the session.
        provider_id: the provider.
        since: of tickets opened since then.
    """
    statement = (
        select(Ticket)
        .where(
            Ticket.provider_id == provider_id,
            Ticket.requester == Party.CUSTOMER,
            Ticket.created_at >= since,
            or_(Ticket.first_response_seconds.is_not(None), Ticket.escalated_at.is_not(None)),
        )
        .order_by(Ticket.id.desc())
        .limit(MAX_CASES)
    )
    tickets = list(reversed(session.scalars(statement).all()))
    counts = Counter(map(_customer_month, tickets))
    return [
        _case(ticket, min(1.0, MAX_WEIGHT_PER_MONTH / counts[_customer_month(ticket)]))
        for ticket in tickets
    ]


def _customer_month(ticket: Ticket) -> tuple[str, int, int]:
    return ticket.customer_id or "", ticket.created_at.year, ticket.created_at.month


def _case(ticket: Ticket, weight: float) -> Case:
    limit, took = float(ticket.limit_seconds), ticket.first_response_seconds
    within = f"{format_duration(limit)} {'promised' if ticket.is_promised else 'expected'}"
    if took is None:
        good, kind, text = 0.0, "unanswered", f"A ticket had no answer within {within}."
    else:
        is_late = took > limit
        good, kind = (limit / took, "late_answer") if is_late else (1.0, "answered")
        text = f"A ticket had its first answer after {format_duration(took)}, {within}."
    return Case(
        dimension=Dimension.RESPONSE,
        good=good,
        weight=weight,
        at=ticket.created_at,
        kind=kind,
        subject=ticket.id,
        text=text,
    )
