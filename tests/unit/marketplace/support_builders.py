"""Builders for tests of support: charlie of globex rents from acme, whose admin is alice."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.settings import ServerSettings
from marketplace.models import Contract
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket, TicketEntry
from marketplace.support.requests import MessageRequest, TicketRequest
from marketplace.support.service import add_message, create_ticket
from marketplace.terms import ServiceLevel, Terms
from tenants.models import Membership, Role, User
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.unit.marketplace.builders import admit_sides, publish, take
from tests.unit.portal.market import gpus

HOUR = timedelta(hours=1)
SETTINGS = ServerSettings(
    marketplace=True,
    secret_key="a secret of the tests",
    public_url="https://portal.example",
    smtp_url="smtp://mail.example",
    support_address="support@portal.example",
    support_imap_url="imaps://mail.example",
    support_response_seconds=8 * 3600.0,
)
DESK = Desk(SETTINGS)
NO_MARKET = Desk(ServerSettings(secret_key="a secret of the tests"))


def rent_with_promise(session: Session, cast: Cast, *, seconds: int = 3600) -> Contract:
    """Let globex rent of acme, which promises to answer within a time."""
    admit_sides(session, cast)
    make_appliance(session, cast.acme, "gpu-01", inventory=gpus(2))
    level = ServiceLevel(support_response_seconds=seconds)
    terms = Terms(currency="EUR", price=Decimal(2), service_level=level)
    contract = take(session, cast, publish(session, cast, "gpu-01", terms=terms))
    session.flush()
    return contract


def ask(session: Session, user: Any, **changes: Any) -> Ticket:  # noqa: ANN401 - fields of a request
    """Let a user open a ticket."""
    options = {name: changes.pop(name) for name in ("desk", "now", "files") if name in changes}
    values = {"title": "Jobs stop", "text": "After a minute.", **changes}
    return create_ticket(
        session,
        scope_of(user),
        TicketRequest(**values),
        **{"desk": DESK, "now": NOON, **options},
    )


def ask_about(session: Session, user: Any, contract: Contract, **changes: Any) -> Ticket:  # noqa: ANN401 - likewise
    """Let a user open a ticket about a contract."""
    about = {"subject_kind": SubjectKind.CONTRACT, "subject_id": contract.id}
    return ask(session, user, **about, **changes)


def answer(session: Session, user: Any, ticket: Ticket, **changes: Any) -> Ticket:  # noqa: ANN401 - likewise
    """Let a user add a message."""
    options = {name: changes.pop(name) for name in ("desk", "now", "files") if name in changes}
    request = MessageRequest(**{"text": "We look into it.", **changes})
    return add_message(
        session, scope_of(user), ticket.id, request, **{"desk": DESK, "now": NOON, **options}
    )


def texts(session: Session, ticket: Ticket) -> list[str]:
    """Return the texts of a thread."""
    statement = select(TicketEntry.text).where(TicketEntry.ticket_id == ticket.id)
    return list(session.scalars(statement.order_by(TicketEntry.id)))


def add_user(session: Session, cast: Cast, name: str, role: Role) -> User:
    """Add a user to globex."""
    user = User(
        email=f"{name}@globex.example",
        name=name,
        password_hash=cast.alice.password_hash,
        created_at=NOON,
    )
    globex = session.merge(cast.globex)
    user.memberships.append(Membership(tenant=globex, role=role, created_at=NOON))
    session.add(user)
    session.flush()
    return user


def mails(session: Session) -> list[tuple[str, str]]:
    """Return recipient and text of the emails in the outbox."""
    rows = session.scalars(select(Notification).order_by(Notification.id)).all()
    return [(row.address, row.payload["text"]) for row in rows]
