"""Statements of the usual operations: bounded, and as many for few rows as for many."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest
from flask import Flask
from sqlalchemy import Engine, select

from alerting.models import Alert
from alerting.rules.service import create_rule
from alerting.states import AlertState, Severity
from core.db import SessionFactory
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.models import Attempt
from protocol.attempts import ObservedState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.fixtures.statements import counted_statements
from tests.unit.jobqueue.builders import add_appliance, dispatch, observed, submit
from tests.unit.portal.conftest import Browser, MakeToken
from tests.unit.portal.world_parts import hot_gpu_rule

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Appliances of eight GPUs, each with eight jobs of Alice and Bob."""

    sessions: SessionFactory
    engine: Engine
    cast: Cast

    def add(self, appliances: int, *, name: str = "dgx") -> list[Attempt]:
        """Add appliances with their jobs; return the attempts."""
        with self.sessions.begin() as session:
            for number in range(appliances):
                add_appliance(session, self.cast.acme, f"{name}-{number}")
            users = self.cast.alice, self.cast.bob
            for number in range(8 * appliances):
                submit(session, users[number % 2], f"{name}-{number}", gpus=1)
        with self.sessions.begin() as session:
            dispatch(session, now=NOON)
        with self.sessions() as session:
            return list(session.scalars(select(Attempt).order_by(Attempt.id)))

    def report(self, attempts: list[Attempt], state: ObservedState) -> int:
        """Let an appliance report its attempts; return the number of statements."""
        with counted_statements(self.engine) as texts, self.sessions.begin() as session:
            seen = [observed(attempt, state) for attempt in attempts]
            apply_report(session, attempts[0].appliance_id, seen, now=NOON + MINUTE)
        return len(texts)

    def count(self, operation: Callable[[], object]) -> int:
        """Return the number of statements of an operation that was done before."""
        operation()
        with counted_statements(self.engine) as texts:
            operation()
        return len(texts)


@pytest.fixture
def fleet(sessions: SessionFactory, engine: Engine, cast: Cast) -> Fleet:
    return Fleet(sessions, engine, cast)


def test_the_poll_of_an_agent_takes_as_many_statements_for_any_number_of_attempts(
    fleet: Fleet,
) -> None:
    [attempt, *_] = fleet.add(1)

    def poll() -> None:
        with fleet.sessions.begin() as session:
            state = desired_state(session, attempt.appliance_id, box=BOX, now=NOON)
        assert len(state.attempts) == 8

    assert fleet.count(poll) <= 9


def test_a_report_takes_a_few_statements_for_each_attempt_that_moves(fleet: Fleet) -> None:
    attempts = fleet.add(1)
    assert fleet.report(attempts, ObservedState.RUNNING) <= 2 + 3 * len(attempts)
    assert fleet.report(attempts, ObservedState.RUNNING) == 1
    assert fleet.report(attempts, ObservedState.SUCCEEDED) <= 2 + 5 * len(attempts)


@pytest.mark.parametrize("jobs", [2, 40])
def test_a_placement_cycle_takes_as_many_statements_for_any_number_of_jobs(
    fleet: Fleet, jobs: int
) -> None:
    with fleet.sessions.begin() as session:
        for number in range(13):
            add_appliance(session, fleet.cast.acme, f"dgx-{number}")
        for number in range(jobs):
            submit(session, fleet.cast.alice, f"job-{number}", gpus=1)
    dispatcher = Dispatcher(fleet.sessions.begin)
    with counted_statements(fleet.engine) as texts:
        done = dispatcher.cycle(now=NOON)
    assert done.total() == jobs
    assert len(texts) <= 35


PAGES = {
    "/jobs": 13,
    "/jobs/{job}": 18,
    "/appliances": 7,
    "/appliances/{appliance}": 22,
    "/alerts": 11,
    "/api/v1/jobs?page_size=50": 6,
    "/api/v1/jobs/{job}": 5,
    "/api/v1/appliances": 5,
    "/api/v1/appliances/{appliance}": 3,
    "/api/v1/alerts?page_size=50": 6,
}


def test_pages_and_lists_take_as_many_statements_for_any_number_of_rows(
    fleet: Fleet, alice: Browser, app: Flask, make_token: MakeToken
) -> None:
    client, headers = app.test_client(), {"Authorization": f"Bearer {make_token(fleet.cast.alice)}"}
    [attempt, *_] = fleet.add(1)
    _add_alerts(fleet, attempt.appliance_id, range(2))
    ids = {"job": attempt.job_id, "appliance": attempt.appliance_id}

    def counts() -> dict[str, int]:
        return {path: fleet.count(partial(get, path.format(**ids))) for path in PAGES}

    def get(path: str) -> None:
        if path.startswith("/api/"):
            assert client.get(path, headers=headers).status_code == 200
        else:
            assert alice.get(path).status_code == 200

    few = counts()
    fleet.add(3, name="hgx")
    _add_alerts(fleet, attempt.appliance_id, range(2, 60))
    many = counts()
    assert many == few
    assert {path: many[path] for path, bound in PAGES.items() if many[path] > bound} == {}


def _add_alerts(fleet: Fleet, appliance_id: str, numbers: range) -> None:
    with fleet.sessions.begin() as session:
        request = hot_gpu_rule(name=f"Hot from {numbers.start}")
        rule = create_rule(session, scope_of(fleet.cast.alice), request, now=NOON)
        session.add_all(
            Alert(
                tenant_id=fleet.cast.acme.id,
                rule_id=rule.id,
                group_key=str(number),
                tags={"appliance": appliance_id, "gpu": str(number)},
                state=AlertState.FIRING,
                severity=Severity.CRITICAL,
                value=90.0,
                active_since_at=NOON,
                fired_at=NOON,
                observed_at=NOON,
                updated_at=NOON,
            )
            for number in numbers
        )
