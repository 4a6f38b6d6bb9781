"""Webhooks of events: each event once, in the form of CloudEvents, signed, retried, sent again."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.models import Receiver
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver, signing_key, update_receiver
from alerting.notification.senders.events import EventSender, signature
from alerting.notification.undelivered import redeliver
from alerting.states import EventTopic, NotificationState, ReceiverKind
from core.db import SessionFactory
from core.errors import InvalidInputError
from jobqueue.models import Attempt, JobEvent
from protocol.attempts import ObservedState
from scheduler import event_webhooks
from scheduler.event_webhooks import RETENTION, SETTLED, prune_events, queue_events
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.alerting.helpers import drain_outbox
from tests.unit.alerting.servers import LOOPBACK, Hook, hook_server
from tests.unit.jobqueue.builders import report, start, submit
from tests.unit.portal.world_parts import add_document

URL = "https://portal.example"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_server() as hook:
        yield hook


@pytest.fixture
def receiver(sessions: SessionFactory, cast: Cast, hook: Hook) -> Receiver:
    """A webhook of acme for events of jobs."""
    with sessions.begin() as session:
        made, secret = create_receiver(
            session,
            scope_of(cast.alice),
            name="ci",
            kind=ReceiverKind.EVENTS,
            target=hook.url,
            topics=[EventTopic.JOB],
            box=BOX,
            now=NOON - timedelta(minutes=1),
        )
        assert secret.startswith("whsec_")
        return made


def queue(sessions: SessionFactory, *, minutes: float = 2) -> int:
    with sessions.begin() as session:
        return queue_events(session, public_url=URL, now=NOON + timedelta(minutes=minutes))


def drain(sessions: SessionFactory, *, minutes: float = 3) -> None:
    sender = EventSender(5.0, box=BOX, policy=LOOPBACK, source=URL, clock=lambda: NOON)
    senders = {ReceiverKind.EVENTS: sender}
    drain_outbox(sessions, senders, now=NOON + timedelta(minutes=minutes))


def run_job(sessions: SessionFactory, cast: Cast) -> Attempt:
    with sessions.begin() as session:
        attempt = start(session, cast)
        report(session, attempt, ObservedState.SUCCEEDED)
        return attempt


# Of the specification's own tests (standard-webhooks/standard-webhooks, libraries).
def test_the_signature_is_that_of_standard_webhooks() -> None:
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body) == expected


def test_events_of_a_job_arrive_once_in_their_order(
    sessions: SessionFactory, cast: Cast, hook: Hook, receiver: Receiver
) -> None:
    attempt = run_job(sessions, cast)
    queued = queue(sessions)
    assert queued >= 3
    assert queue(sessions) == 0  # they are read again, and left out
    drain(sessions)
    events = [json.loads(body) for _, body in hook.posts]
    assert events[0]["type"] == "vedette.job.submitted"
    assert events[-1]["type"] == "vedette.job.succeeded"
    last, (headers, body) = events[-1], hook.posts[-1]
    assert last.keys() >= {"specversion", "id", "source", "type", "time", "data"}
    assert (last["specversion"], last["source"], last["subject"]) == ("1.0", URL, attempt.job_id)
    assert last["data"]["link"] == f"{URL}/jobs/{attempt.job_id}"
    assert last["time"] == "2026-03-02T12:01:00Z"
    assert headers["Content-Type"].startswith("application/cloudevents+json")
    key = signing_key(receiver, BOX)
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    ident, timestamp, signed = (
        headers[name.title()] if name.title() in headers else headers[name] for name in names
    )
    assert signed == signature(key, ident, timestamp, body)


def test_a_failure_is_retried_in_order_and_a_delivery_is_sent_again(
    sessions: SessionFactory, cast: Cast, hook: Hook, receiver: Receiver
) -> None:
    run_job(sessions, cast)
    queued = queue(sessions)
    hook.status = 500
    drain(sessions)
    assert len(hook.posts) == 1  # the others wait for it
    hook.status = 204
    drain(sessions, minutes=10)
    assert len(hook.posts) == 1 + queued
    with sessions.begin() as session:
        sent = session.scalars(select(Notification).order_by(Notification.id)).all()
        assert {row.state for row in sent} == {NotificationState.SENT}
        redeliver(session, scope_of(cast.alice), sent[-1].id, now=NOON + timedelta(minutes=11))
    drain(sessions, minutes=12)
    assert hook.posts[-1][1] == hook.posts[-2][1]
    assert queue(sessions, minutes=13) == 0
    assert receiver.name == "ci"


def test_a_gone_webhook_is_not_retried(
    sessions: SessionFactory, cast: Cast, hook: Hook, receiver: Receiver
) -> None:
    run_job(sessions, cast)
    queue(sessions)
    hook.status = 410
    drain(sessions)
    with sessions.begin() as session:
        rows = session.scalars(select(Notification)).all()
        assert {row.state for row in rows} == {NotificationState.FAILED}
        assert {row.receiver_id for row in rows} == {receiver.id}


def test_only_the_chosen_topics_of_the_own_tenant_and_nothing_from_before(
    sessions: SessionFactory, cast: Cast, receiver: Receiver
) -> None:
    with sessions.begin() as session:
        update_receiver(
            session,
            scope_of(cast.alice),
            receiver.id,
            name="ci",
            target="",
            topics=[EventTopic.APPLIANCE],
            box=BOX,
        )
        create_receiver(
            session,
            scope_of(cast.charlie),
            name="other",
            kind=ReceiverKind.EVENTS,
            target="https://other.example/",
            topics=list(EventTopic),
            box=BOX,
            now=NOON - timedelta(minutes=1),
        )
    run_job(sessions, cast)
    queue(sessions)
    with sessions.begin() as session:
        rows = session.scalars(select(Notification)).all()
        assert all(row.payload["event"]["type"].startswith("vedette.appl") for row in rows)
        assert {row.tenant_id for row in rows} <= {cast.acme.id}
    run_later = NOON + SETTLED * 3
    with sessions.begin() as session:
        assert queue_events(session, public_url=URL, now=run_later) == 0


@pytest.mark.usefixtures("receiver")
def test_any_number_of_events_of_one_moment_arrive(
    sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_webhooks, "BATCH", 2)
    with sessions.begin() as session:
        for _ in range(5):
            submit(session, cast.alice)
        events = session.scalars(select(JobEvent)).all()
    assert len({event.at for event in events}) == 1
    assert sum(queue(sessions) for _ in range(5)) == len(events) == 5


def test_topics_are_checked(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session, pytest.raises(InvalidInputError) as error:
        create_receiver(
            session,
            scope_of(cast.alice),
            name="none",
            kind=ReceiverKind.EVENTS,
            target="https://ci.example/",
            box=BOX,
            now=NOON,
        )
    assert "topics" in error.value.errors


def test_the_log_of_deliveries_is_pruned(
    sessions: SessionFactory, cast: Cast, hook: Hook, receiver: Receiver
) -> None:
    run_job(sessions, cast)
    queued = queue(sessions)
    drain(sessions)
    assert len(hook.posts) == queued
    assert receiver.topics == ["job"]
    with sessions.begin() as session:
        assert prune_events(session, now=NOON + timedelta(days=1)) == 0
        assert prune_events(session, now=NOON + RETENTION + timedelta(days=1)) == queued


def test_an_invoice_is_an_event_with_its_amounts_as_text(
    sessions: SessionFactory, cast: Cast, receiver: Receiver, hook: Hook
) -> None:
    with sessions.begin() as session:
        session.get_one(Receiver, receiver.id).topics = ["billing"]
        invoice = add_document(session, cast, now=NOON)
    assert queue(sessions) == 1
    assert queue(sessions) == 0
    drain(sessions)
    [(_headers, body)] = hook.posts
    event = json.loads(body)
    assert (event["type"], event["subject"]) == ("vedette.invoice.issued", invoice.id)
    assert (event["data"]["name"], event["data"]["total"]) == ("INV-2026-00001", "2.45")
