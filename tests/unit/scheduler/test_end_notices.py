"""Notices of a job's end: to whom its request says, once, whichever way it ends."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.notification.messages import render
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver
from alerting.states import ReceiverKind
from core.db import SessionFactory
from core.errors import InvalidInputError
from core.settings import ServerSettings
from jobqueue.models import Job
from jobqueue.queue.stopping import stop_array, stop_job
from jobqueue.states import JobState
from protocol.attempts import ObservedState
from scheduler.loops import Scheduler
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import dispatch, report, start, submit
from timeseries.store import Store


@pytest.fixture
def scheduler(
    sessions: SessionFactory, store: Store, clock: FrozenClock, tmp_path: object
) -> Scheduler:
    settings = ServerSettings(data_dir=tmp_path, public_url="https://portal.example")  # type: ignore[arg-type] # a Path
    return Scheduler(settings, sessions=sessions, store=store, clock=clock)


@pytest.fixture
def receiver(sessions: SessionFactory, cast: Cast) -> str:
    """The name of a webhook of acme."""
    with sessions.begin() as session:
        create_receiver(
            session,
            scope_of(cast.alice),
            name="CI",
            kind=ReceiverKind.WEBHOOK,
            target="https://ci.example/hook",
            box=BOX,
            now=NOON,
        )
    return "CI"


def sent(sessions: SessionFactory) -> list[tuple[str, str]]:
    with sessions() as session:
        notifications = session.scalars(
            select(Notification).order_by(Notification.address.desc())
        ).all()
        return [
            (notification.destination.name, render(notification).subject)
            for notification in notifications
        ]


def test_the_submitter_and_a_receiver_are_notified_once(
    sessions: SessionFactory, scheduler: Scheduler, cast: Cast, receiver: str
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, notify=["email", receiver])
        report(session, attempt, ObservedState.RUNNING)
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == []
    with sessions.begin() as session:
        report(session, session.merge(attempt), ObservedState.FAILED, exit_code=3)
    scheduler.tasks["notify_ends"].run()
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == [
        ("alice@acme.example", "Job train failed"),
        ("CI", "Job train failed"),
    ]
    with sessions() as session:
        message = render(session.scalars(select(Notification)).first() or Notification())
    assert "Exit code 3." in message.text
    assert f"https://portal.example/jobs/{attempt.job_id}" in message.text


def test_nobody_is_notified_by_default_and_waiting_jobs_notify_when_they_are_stopped(
    sessions: SessionFactory, scheduler: Scheduler, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast)
        report(session, attempt, ObservedState.SUCCEEDED)
        waiting = submit(session, cast.bob, "later", gpus=8, notify=["email"])
        stop_job(session, scope_of(cast.bob), waiting.id, now=NOON)
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == [("bob@acme.example", "Job later was stopped")]


def test_a_job_that_is_tried_again_notifies_after_its_last_attempt(
    sessions: SessionFactory, scheduler: Scheduler, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, notify=["email"], max_retries=1, retry_on=["exit"])
        report(session, attempt, ObservedState.FAILED, exit_code=3, reason="exit_code")
        assert attempt.job.state is JobState.QUEUED
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == []
    with sessions.begin() as session:
        dispatch(session, now=NOON + timedelta(minutes=2))
        second = session.get_one(Job, attempt.job_id).attempt
        assert second is not None
        report(session, second, ObservedState.FAILED, exit_code=3, reason="exit_code")
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == [("alice@acme.example", "Job train failed")]


def test_an_array_notifies_once_when_all_of_its_tasks_have_ended(
    sessions: SessionFactory, scheduler: Scheduler, cast: Cast
) -> None:
    with sessions.begin() as session:
        start(session, cast, name="sweep", notify=["email"], array="0-3")
        by_index = {job.array_index: job.attempt for job in session.scalars(select(Job)).unique()}
        attempts = [attempt for _, attempt in sorted(by_index.items()) if attempt is not None]
        ends = [ObservedState.SUCCEEDED] * 3 + [ObservedState.FAILED]
        for attempt, end in zip(attempts, ends, strict=True):
            report(session, attempt, ObservedState.RUNNING)
            report(session, attempt, end, exit_code=int(end is ObservedState.FAILED))
        stopped = submit(session, cast.bob, "stopped", notify=["email"], array="5-6")
        stop_array(session, scope_of(cast.bob), stopped.id, now=NOON)
        half = submit(session, cast.bob, "half", notify=["email"], array="0-1")
        stop_job(session, scope_of(cast.bob), half.id, now=NOON)
    scheduler.tasks["notify_ends"].run()
    scheduler.tasks["notify_ends"].run()
    assert sent(sessions) == [
        ("bob@acme.example", "Array stopped was stopped"),
        ("alice@acme.example", "Array sweep ended"),
    ]
    with sessions() as session:
        notification = session.scalars(select(Notification).order_by(Notification.address)).first()
        text = render(notification or Notification()).text
    assert "4 tasks: 3 succeeded, 1 failed. The first that failed is sweep[3]:" in text
    assert f"/jobs?array_id={attempts[0].job_id}" in text


@pytest.mark.parametrize("notify", [["nobody"], ["email", "email"]])
def test_a_request_names_whom_it_may_notify(
    sessions: SessionFactory, cast: Cast, notify: list[str]
) -> None:
    with sessions.begin() as session, pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, notify=notify)
    assert "notify" in caught.value.errors
