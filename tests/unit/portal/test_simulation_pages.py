"""The pages and operations of simulations: start, follow, read and delete them."""

from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from sqlalchemy import update

from core.db import SessionFactory
from jobqueue.models import Attempt
from jobqueue.simulation.models import Simulation, SimulationState
from jobqueue.simulation.runner import SimulationRunner
from jobqueue.simulation.scenarios import Changes
from tests.cast import NOON, Cast, FrozenClock
from tests.fixtures.polling import eventually
from tests.unit.jobqueue.builders import start
from tests.unit.portal.conftest import Browser

PAGE = "/jobs/simulations"
API = "/api/v1/simulations"
FORM = {"days": "7", "allows_preemption": "", "added": "", "shares": "", "quotas": ""}


@pytest.fixture(autouse=True)
def past_job(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> None:
    """A job that ran for an hour."""
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=1)
        ended = {"started_at": NOON, "finished_at": NOON + timedelta(hours=1)}
        session.execute(update(Attempt).where(Attempt.id == attempt.id).values(**ended))
    clock.advance(7200)


@pytest.fixture
def runner(sessions: SessionFactory, tmp_path: Path) -> SimulationRunner:
    return SimulationRunner(sessions, f"sqlite:///{tmp_path}/vedette.db")


def test_a_simulation_is_started_followed_and_deleted(
    alice: Browser, runner: SimulationRunner, clock: FrozenClock
) -> None:
    assert "No simulations yet" in alice.get(PAGE).text
    started = alice.post(PAGE, FORM | {"policies": ["best_fit"], "added": "2xdgx-01"})
    assert started.status_code == 302
    [listed] = alice.get(API).get_json()["items"]
    assert (listed["state"], listed["progress_percent"]) == ("waiting", 0)
    assert listed["changes"]["added"] == ["2xdgx-01"]
    path = f"{PAGE}/{listed['id']}"
    assert "It starts in a moment" in alice.get(path).text
    assert alice.get(f"{API}/{listed['id']}/picture").status_code == 404
    runner.step(clock.now)
    assert "0 %" in alice.get(path).text

    def has_succeeded() -> bool:
        runner.step(clock.now)
        return bool(alice.get(f"{API}/{listed['id']}").get_json()["state"] == "succeeded")

    eventually(has_succeeded)
    page = alice.get(path).text
    assert "best fit, 2 more appliances" in page
    assert "No project" in page
    shown = alice.get(f"{API}/{listed['id']}").get_json()
    assert [row["scenario"] for row in shown["scenarios"]] == [
        "today",
        "best_fit, 2 more appliances",
    ]
    assert shown["scenarios"][0]["waits"]["wait_seconds_p50"] == 0
    results = alice.get(f"{API}/{listed['id']}/results").get_json()
    assert len(results["scenarios"][0]["allocated_over_time"]) == 200
    svg = ET.fromstring(alice.get(f"{path}/picture.svg").text)  # noqa: S314 - our own
    assert svg.tag.endswith("svg")
    assert alice.post(f"{path}/delete").status_code == 302
    assert alice.get(API).get_json()["total"] == 0


def test_what_is_wrong_stands_at_its_field(alice: Browser) -> None:
    refused = alice.post(PAGE, FORM | {"quotas": "vision:gpus:maximum=1", "added": "2xdgx-01"})
    assert refused.status_code == 422
    assert "There is no project &#39;vision&#39;" in refused.text
    answer = alice.call("POST", API, {"orders": ["alphabet"]})
    assert answer.status_code == 422
    assert "Unknown order" in answer.get_json()["errors"]["orders"][0]
    year = {"since": "2025-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
    empty = alice.call("POST", API, year)
    assert "longer period" in empty.get_json()["errors"]["since"][0]


def test_members_can_neither_start_nor_read_simulations(bob: Browser) -> None:
    assert bob.get(PAGE).status_code == 403
    assert bob.post(PAGE, FORM).status_code == 403
    assert bob.get(API).status_code == 403
    assert "Simulations" not in bob.get("/jobs/queue").text


def test_a_failed_simulation_says_why(sessions: SessionFactory, cast: Cast, alice: Browser) -> None:
    with sessions.begin() as session:
        failed = Simulation(
            tenant_id=cast.acme.id,
            since=NOON,
            until=NOON,
            changes=msgspec.to_builtins(Changes()),
            state=SimulationState.FAILED,
            message="It took more than 60 minutes.",
            created_at=NOON,
        )
        session.add(failed)
    assert "It took more than 60 minutes." in alice.get(f"{PAGE}/{failed.id}").text
