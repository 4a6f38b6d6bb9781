"""The one email about a mass outage, taken by a real mail server."""

from collections.abc import Iterator

import pytest

from alerting.notification.senders.notify import EmailSender
from core.db import SessionFactory
from scheduler.outage_email import email_operators
from tenants.fleet.liveness import (
    FleetReachability,
    release_mass_outage_guard,
    update_mass_outage_guard,
)
from tenants.models import User
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.servers import free_port
from tests.unit.alerting.servers import Mailbox, mail_server

URL = "https://portal.example"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as box:
        yield box


@pytest.fixture
def outage(sessions: SessionFactory, cast: Cast) -> None:
    assert cast
    with sessions.begin() as session:
        update_mass_outage_guard(session, FleetReachability(312, 500), now=NOON)


def tell(sessions: SessionFactory, port: int) -> int:
    sender = EmailSender(f"smtp://127.0.0.1:{port}", "vedette@example.com")
    return email_operators(sessions, sender, public_url=URL, now=NOON)


@pytest.mark.usefixtures("outage")
def test_an_outage_is_one_email_to_each_operator(
    sessions: SessionFactory, mailbox: Mailbox
) -> None:
    assert [tell(sessions, mailbox.port) for _ in range(3)] == [1, 0, 0]
    (mail,) = mailbox.mails
    assert mail["To"] == "olivia@vedette.example"
    assert mail["Subject"] == "[CRITICAL] 312 of 500 appliances stopped reporting"
    body = mail.get_body(("plain",))
    assert body is not None
    assert "no job is marked as lost" in body.get_content()
    assert f"{URL}/appliances?status=unreachable" in body.get_content()


@pytest.mark.usefixtures("cast")
def test_without_an_outage_there_is_no_email(sessions: SessionFactory, mailbox: Mailbox) -> None:
    assert tell(sessions, mailbox.port) == 0
    assert mailbox.mails == []


@pytest.mark.usefixtures("outage")
def test_a_mail_server_that_is_away_is_tried_again(
    sessions: SessionFactory, mailbox: Mailbox
) -> None:
    assert tell(sessions, free_port()) == 0
    assert tell(sessions, mailbox.port) == 1


@pytest.mark.usefixtures("outage")
def test_one_operator_that_is_reached_is_enough(
    sessions: SessionFactory, mailbox: Mailbox, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.add(
            User(email="a@refused.example", name="A", is_operator=True, created_at=clock.now)
        )
    assert [tell(sessions, mailbox.port) for _ in range(2)] == [1, 0]


@pytest.mark.usefixtures("outage")
def test_an_outage_that_is_released_is_no_alert_any_more(
    sessions: SessionFactory, cast: Cast, mailbox: Mailbox
) -> None:
    with sessions.begin() as session:
        release_mass_outage_guard(session, scope_of(cast.olivia), now=NOON)
    assert tell(sessions, mailbox.port) == 0
    assert mailbox.mails == []


@pytest.mark.usefixtures("outage")
def test_without_a_mail_server_the_pages_have_to_do(sessions: SessionFactory) -> None:
    assert email_operators(sessions, None, public_url=URL, now=NOON) == 0
