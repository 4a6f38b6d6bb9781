"""Service levels of support: what is promised, and what becomes of an answer that is late."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from marketplace.models import Contract
from marketplace.service_levels.detection import record_breach
from marketplace.service_levels.models import BreachKind
from marketplace.support.clocks import elapsed_seconds
from marketplace.support.desk import Desk
from marketplace.support.models import Ticket
from marketplace.support.states import Party


def promise(session: Session, ticket: Ticket, desk: Desk, *, now: datetime) -> None:
    """Set within which time a new ticket should be answered; customers have no limit."""
    if ticket.responder is Party.CUSTOMER:
        ticket.limit_seconds = 0
        return
    ticket.limit_seconds = desk.response_seconds
    contract = _contract(session, ticket)
    terms = None if contract is None else contract.terms_at(now)
    if terms is not None and terms.service_level.support_response_seconds:
        ticket.limit_seconds = terms.service_level.support_response_seconds
        ticket.is_promised = True


def note_answer(session: Session, ticket: Ticket, *, now: datetime) -> None:
    """Bring the breach of a late first answer up to date, now that it is known how late it is."""
    if (ticket.first_response_seconds or 0.0) > ticket.limit_seconds:
        note_breach(session, ticket, now=now)


def note_breach(session: Session, ticket: Ticket, *, now: datetime) -> None:
    """Record that the first answer is late, if a contract promises it."""
    contract = _contract(session, ticket)
    if contract is None or not ticket.is_promised:
        return
    measured = ticket.first_response_seconds
    is_answered = measured is not None
    if measured is None:
        measured = elapsed_seconds(ticket, now=now)
    opened_at = ticket.created_at
    version = next(
        (
            version
            for version in reversed(contract.versions)
            if version.applies_from is not None and version.applies_from <= opened_at
        ),
        None,
    )
    if version is None:
        return
    facts = {
        "version_number": version.number,
        "since": opened_at,
        "until": max(now, opened_at + timedelta(seconds=ticket.limit_seconds)),
        "promised": float(ticket.limit_seconds),
        "measured": measured,
        "evidence": {"ticket_id": ticket.id, "is_answered": is_answered},
    }
    record_breach(session, contract, BreachKind.SUPPORT_RESPONSE, ticket.id, facts, now=now)


def _contract(session: Session, ticket: Ticket) -> Contract | None:
    if ticket.contract_id is None or ticket.provider_id is None:
        return None
    return session.get(Contract, ticket.contract_id)
