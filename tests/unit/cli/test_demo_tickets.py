"""The tickets and the service of the demo."""

from sqlalchemy import func, select

from cli.bootstrap import prepare_demo
from cli.demo_market import open_market
from cli.demo_tickets import open_tickets
from cli.demo_users import SERVICE
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.jobs.requests import autoscaling_errors
from marketplace.support.desk import Desk
from marketplace.support.models import SubjectKind, Ticket
from marketplace.support.states import TicketState
from portal.api.job_requests import JobRequestSchema
from protocol.autoscaling import Autoscaling
from tests.cast import NOON
from tests.unit.cli.test_demo_market import enroll

SETTINGS = ServerSettings(secret_key="a secret of the tests", marketplace=True)


def states(sessions: SessionFactory) -> list[tuple[SubjectKind, TicketState, bool]]:
    with sessions() as session:
        return [
            (ticket.subject_kind, ticket.state, ticket.rating is not None)
            for ticket in session.scalars(select(Ticket).order_by(Ticket.created_at))
        ]


def test_a_demo_has_a_solved_ticket_and_one_that_waits(sessions: SessionFactory) -> None:
    prepare_demo(sessions, now=NOON)
    desk = Desk(ServerSettings(secret_key="a secret of the tests"))
    for _ in range(2):
        assert open_tickets(sessions, desk, has_marketplace=False, now=NOON)
    other = SubjectKind.OTHER
    assert states(sessions) == [
        (other, TicketState.SOLVED, True),
        (other, TicketState.OPEN, False),
    ]


def test_with_the_marketplace_one_is_about_a_contract(sessions: SessionFactory) -> None:
    prepare_demo(sessions, now=NOON, has_marketplace=True)
    desk = Desk(SETTINGS)
    assert not open_tickets(sessions, desk, has_marketplace=True, now=NOON)
    with sessions.begin() as session:
        enroll(session)
    assert open_market(sessions, "EUR", now=NOON)
    for _ in range(2):
        assert open_tickets(sessions, desk, has_marketplace=True, now=NOON)
    assert (SubjectKind.CONTRACT, TicketState.WAITING_FOR_CUSTOMER, False) in states(sessions)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Ticket)) == 3


def test_the_service_of_the_demo_may_be_submitted() -> None:
    body = JobRequestSchema().load(SERVICE)
    policy = Autoscaling(**SERVICE["autoscaling"])
    assert body["name"] == "chat"
    assert list(autoscaling_errors(policy, has_ports=True, has_gpus=True)) == []
