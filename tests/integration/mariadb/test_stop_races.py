"""A stop that meets a change of the job between its statements, as MariaDB allows."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text, update

from core.db import SessionFactory
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.models import Attempt, Job
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState
from protocol.attempts import AttemptObservation, ObservedState
from tenants.models import Appliance
from tests.cast import BOX, NOON, Cast, scope_of
from tests.fixtures.polling import eventually
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

pytestmark = pytest.mark.needs_mariadb


@pytest.fixture
def attempt_id(sessions: SessionFactory, cast: Cast) -> str:
    """Alice's job, which is tried again after a failure, is starting."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        job = submit(session, cast.alice, max_retries=5, retry_on=["exit"])
        dispatch(session, now=NOON)
        session.refresh(job)
        return job.attempts[-1].id


def report(sessions: SessionFactory, attempt_id: str, state: ObservedState, reason: str) -> None:
    with sessions.begin() as session:
        attempt = session.get_one(Attempt, attempt_id)
        seen = AttemptObservation(attempt_id=attempt_id, state=state, reason=reason, exit_code=1)
        apply_report(session, attempt.appliance_id, [seen], now=NOON)


def stop(sessions: SessionFactory, cast: Cast, attempt_id: str) -> None:
    with sessions.begin() as session:
        job_id = session.get_one(Attempt, attempt_id).job_id
        stop_job(session, scope_of(cast.alice), job_id, now=NOON)


@contextmanager
def after_first(engine: Engine, beginning: str, act: Callable[[], None]) -> Iterator[None]:
    """Act once, after the first statement in the block that begins so."""
    acts = [act]

    def listen(*details: Any) -> None:  # noqa: ANN401 - of any driver
        if acts and details[2].startswith(beginning):
            acts.pop()()

    event.listen(engine, "after_cursor_execute", listen)
    yield
    event.remove(engine, "after_cursor_execute", listen)
    assert not acts


def test_a_job_that_is_queued_again_while_it_is_stopped_is_stopped(
    engine: Engine, sessions: SessionFactory, cast: Cast, attempt_id: str
) -> None:
    def fail() -> None:
        report(sessions, attempt_id, ObservedState.FAILED, "exit_code")

    with after_first(engine, "UPDATE jobs", fail):
        stop(sessions, cast, attempt_id)
    with sessions.begin() as session:
        job = session.query(Job).one()
        assert job.state is JobState.STOPPED


def test_a_job_that_starts_to_run_while_it_is_stopped_is_stopping_on_its_appliance(
    engine: Engine, sessions: SessionFactory, cast: Cast, attempt_id: str
) -> None:
    def run() -> None:
        report(sessions, attempt_id, ObservedState.RUNNING, "")

    with after_first(engine, "UPDATE jobs", run):
        stop(sessions, cast, attempt_id)
    with sessions.begin() as session:
        attempt = session.get_one(Attempt, attempt_id)
        assert attempt.job.state is JobState.RUNNING
        desired = desired_state(session, attempt.appliance_id, box=BOX)
        assert (desired.attempts, desired.stopping) == ([], [attempt_id])


def test_a_heartbeat_during_the_report_of_an_end_is_no_deadlock(
    sessions: SessionFactory, engine: Engine, attempt_id: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        heartbeats: list[Future[None]] = []

        def meet() -> None:
            heartbeats.append(pool.submit(beat, sessions, attempt_id))
            eventually(
                lambda: is_waiting(engine),
                # What is read more often than each 0.1 s stays as it was at the first time.
                every_seconds=0.2,
                what="the heartbeat to wait",
            )

        with after_first(engine, "INSERT INTO job_events", meet):
            report(sessions, attempt_id, ObservedState.SUCCEEDED, "")
        heartbeats[0].result()


def beat(sessions: SessionFactory, attempt_id: str) -> None:
    with sessions.begin() as session:
        own = select(Attempt.appliance_id).where(Attempt.id == attempt_id).scalar_subquery()
        session.execute(update(Appliance).where(Appliance.id == own).values(last_seen_at=NOON))


def is_waiting(engine: Engine) -> bool:
    waiting = text("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
    with engine.connect() as connection:
        return connection.execute(waiting).first() is not None
