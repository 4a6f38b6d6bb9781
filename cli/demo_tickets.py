"""Tickets of the demo: one that is solved, one that waits, and one about what is rented."""

import logging
import threading
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from cli.database import open_database
from cli.demo_market import POLL_SECONDS, admin_scope
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.errors import VedetteError
from core.settings import load_server_settings
from marketplace.models import Contract
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket
from marketplace.support.requests import MessageRequest, TicketRequest
from marketplace.support.service import add_message, create_ticket, rate_ticket, solve_ticket
from marketplace.support.states import Recipient
from tenants.models import Tenant, User
from tenants.scope import Scope

log = logging.getLogger(__name__)

OPERATOR = "olivia@vedette.example"
ASKING = "alice@acme.example"


class DemoTickets:
    """Opens the tickets, those about contracts once there are any."""

    def run(self, stop: threading.Event) -> None:
        """Try until all are there, or `stop` is set."""
        settings = load_server_settings()
        desk = Desk(settings)
        with open_database(settings) as (_engine, sessions):
            while not stop.is_set():
                try:
                    has_marketplace = settings.marketplace
                    if open_tickets(sessions, desk, has_marketplace=has_marketplace, now=utc_now()):
                        return
                except VedetteError as error:
                    log.warning("the tickets are not open yet: %s", error.message)
                stop.wait(POLL_SECONDS)


def open_tickets(
    sessions: SessionFactory,
    desk: Desk,
    *,
    has_marketplace: bool,
    now: datetime,
) -> bool:
    """Open the tickets that are missing; return whether all are there.

    Args:
        sessions: of the database.
        desk: how support is set up.
        has_marketplace: whether one is about a contract.
        now: the current time.
    """
    with transaction(sessions) as session:
        subjects = set(session.scalars(select(Ticket.subject_kind)))
        if not subjects:
            _ask_operator(session, desk, now=now)
        if not has_marketplace or SubjectKind.CONTRACT in subjects:
            return True
        contract = session.scalars(
            select(Contract).where(Contract.starts_at.is_not(None)).order_by(Contract.id)
        ).first()
        if contract is None:
            return False
        _ask_provider(session, desk, contract, now=now)
    return True


def _ask_operator(session: Session, desk: Desk, *, now: datetime) -> None:
    user, operator = _scope(session, ASKING), _scope(session, OPERATOR)
    solved = create_ticket(
        session,
        user,
        TicketRequest(
            title="Driver update of dgx-a100-01",
            text="NCCL warns that the driver is old. May we update it on Friday?",
        ),
        desk=desk,
        now=now - timedelta(hours=6),
    )
    text = "Yes. Drain it first; the jobs then end by themselves. Driver 570 is approved."
    at = now - timedelta(hours=5)
    add_message(session, operator, solved.id, MessageRequest(text=text), desk=desk, now=at)
    at = now - timedelta(hours=1)
    solve_ticket(session, user, solved.id, desk=desk, now=at)
    rate_ticket(session, user, solved.id, 5, "Quick and clear.", desk=desk, now=at)
    create_ticket(
        session,
        user,
        TicketRequest(
            title="More jobs for the vision project",
            text="Our sweep has 400 jobs, and the quota is lower. Can you raise it for a week?",
        ),
        desk=desk,
        now=now - timedelta(minutes=40),
    )


def _ask_provider(session: Session, desk: Desk, contract: Contract, *, now: datetime) -> None:
    customer = admin_scope(session, Tenant.id == contract.customer_id)
    ticket = create_ticket(
        session,
        customer,
        TicketRequest(
            title="Slow reads on the local disk",
            text="Our loader reads 300 MB/s on this host, and 2 GB/s on the others.",
            subject_kind=SubjectKind.CONTRACT,
            subject_id=contract.id,
            recipient=Recipient.PROVIDER,
        ),
        desk=desk,
        now=now - timedelta(hours=2),
    )
    provider = admin_scope(session, Tenant.id == contract.provider_id)
    text = "We found a disk that rebuilds its mirror. Is it better now?"
    at = now - timedelta(hours=1)
    add_message(session, provider, ticket.id, MessageRequest(text=text), desk=desk, now=at)


def _scope(session: Session, email: str) -> Scope:
    return Scope.of(session.scalars(select(User).where(User.email == email)).unique().one())
