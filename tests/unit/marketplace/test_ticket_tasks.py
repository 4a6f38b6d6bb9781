"""What the scheduler does with tickets."""

from datetime import timedelta

import pytest
from sqlalchemy import select, true

import marketplace.support.tasks
from alerting.notification.models import Notification
from core.db import SessionFactory
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from marketplace.support.inbound import MAX_NOTICES_PER_HOUR, accept
from marketplace.support.mail_text import Reply
from marketplace.support.models import Ticket, TicketAttachment, TicketEntry
from marketplace.support.requests import File
from marketplace.support.service import solve_ticket
from marketplace.support.states import TicketState
from marketplace.support.tasks import SupportTasks
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.marketplace.support_builders import DESK, SETTINGS, ask, texts


@pytest.fixture
def context(sessions: SessionFactory, clock: FrozenClock) -> SchedulerContext:
    return SchedulerContext(
        sessions=sessions,
        clock=clock,
        listening_since=clock.now,
        is_active=lambda: True,
        has_lease=true(),
        is_stopping=lambda: False,
        run_soon=lambda _task: None,
    )


def test_tickets_are_escalated_closed_and_deleted_in_time(
    context: SchedulerContext, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    tasks = SupportTasks(ServerSettings(support_retention_days=30), context)
    with sessions.begin() as session:
        ticket = ask(session, cast.bob, files=[File("a.txt", b"a")])
    clock.advance(8 * 3600)
    tasks.escalate_tickets()
    tasks.escalate_tickets()
    with sessions.begin() as session:
        late = "No answer of the operator in 8h, due within 8h"
        assert texts(session, ticket) == ["After a minute.", late]
        solve_ticket(session, scope_of(cast.bob), ticket.id, desk=DESK, now=clock.now)
    for days, state in ((13, TicketState.SOLVED), (1, TicketState.CLOSED)):
        clock.advance(timedelta(days=days).total_seconds())
        tasks.close_tickets()
        with sessions() as session:
            assert session.get_one(Ticket, ticket.id).state is state
    clock.advance(timedelta(days=30).total_seconds())
    tasks.close_tickets()
    with sessions() as session:
        for table in (Ticket, TicketEntry, TicketAttachment):
            assert session.scalars(select(table)).all() == []


def test_all_tickets_that_are_due_are_closed_and_deleted(
    sessions: SessionFactory,
    context: SchedulerContext,
    cast: Cast,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marketplace.support.tasks, "BATCH", 2)
    with sessions.begin() as session:
        tickets = [ask(session, cast.bob) for _ in range(5)]
        for ticket in tickets[:4]:
            solve_ticket(session, scope_of(cast.bob), ticket.id, desk=DESK, now=NOON)
        recent = tickets[4].id
    tasks = SupportTasks(ServerSettings(support_retention_days=30), context)

    def states() -> list[TicketState]:
        with sessions() as session:
            return list(session.scalars(select(Ticket.state).order_by(Ticket.id)))

    clock.advance(timedelta(days=14).total_seconds())
    tasks.close_tickets()
    assert states() == [TicketState.CLOSED] * 4 + [TicketState.OPEN]
    clock.advance(timedelta(days=30).total_seconds())
    tasks.close_tickets()
    with sessions() as session:
        assert session.scalars(select(Ticket.id)).all() == [recent]


def test_the_mailbox_is_read_only_where_there_is_one(context: SchedulerContext) -> None:
    def names(settings: ServerSettings) -> set[str]:
        return {task.name for task in SupportTasks(settings, context).table()}

    assert names(ServerSettings()) == {"escalate_tickets", "close_tickets"}
    assert names(SETTINGS) == {"escalate_tickets", "close_tickets", "receive_replies"}


def test_a_mail_server_that_is_away_is_logged(
    context: SchedulerContext, caplog: pytest.LogCaptureFixture
) -> None:
    away = ServerSettings(
        support_address="support@portal.example", support_imap_url="imap://u:p@127.0.0.1:9/INBOX"
    )
    SupportTasks(away, context).receive_replies()
    assert "The mail server 127.0.0.1 fails" in caplog.text


def test_a_program_that_answers_refusals_gets_few_of_them(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        ticket = ask(session, cast.bob)
        ticket.state = TicketState.CLOSED
        before = len(session.scalars(select(Notification)).all())
    for number in range(MAX_NOTICES_PER_HOUR + 5):
        reply = Reply(
            sender=cast.bob.email,
            recipients=[DESK.reply_address(ticket.id, cast.bob.id)],
            message_id=f"<{number}@x>",
            text="I am away.",
            files=[],
            ignored="",
        )
        assert "closed" in accept(sessions, DESK, reply, now=NOON)
    with sessions() as session:
        count = len(session.scalars(select(Notification)).all())
    assert count - before == MAX_NOTICES_PER_HOUR
