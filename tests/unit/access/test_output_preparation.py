"""The output folders of attempts over their life on an appliance, against the agent API."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tensorboardX import SummaryWriter

from collector.results.preparation import OutputPreparation
from collector.results.settings import ResultSettings
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from core.clock import utc_now
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.results import OutputFolders
from tests.unit.access.conftest import eventually
from tests.unit.access.test_results import Site, next_attempt, site
from timeseries.points import Point

__all__ = ["site"]

QUICK = {"interval_seconds": 1.0, "settle_seconds": 0.0, "keep_seconds": 0.0}
NOWHERE = "http://127.0.0.1:9"


class Agent:
    """The part of an agent that has the output folders; it can be killed and started again."""

    def __init__(self, site: Site, **settings: float) -> None:
        self.site, self.url = site, site.url
        self.settings = ResultSettings(**{**QUICK, **settings})  # type: ignore[arg-type]
        self.points: list[Point] = []
        self.start()

    def start(self) -> None:
        self.preparation = OutputPreparation(
            self.settings,
            self.site.folder,
            lambda: PortalConnection(AccessPoints([self.url]), agent_token="vda_acme_dgx-02"),
            add_points=self.points.extend,
            wake=lambda: None,
            clock=utc_now,
        )

    def spec(self, attempt_id: str = "", previous: str = "") -> AttemptSpec:
        return AttemptSpec(
            attempt_id=attempt_id or self.site.attempt_id,
            job_id=self.site.job_id,
            name="train",
            image="busybox",
            outputs=OutputFolders(paths=["/out"], previous_attempt_id=previous),
        )

    def prepared(self, spec: AttemptSpec) -> Path:
        """Return the folder on the host once the attempt may start."""
        prepared: list[AttemptSpec] = []

        def is_ready() -> bool:
            result = self.preparation.prepare(spec)
            prepared.extend([result] if result else [])
            return bool(prepared)

        assert eventually(is_ready)
        assert [mount.target for mount in prepared[0].mounts] == ["/out"]
        assert not prepared[0].mounts[0].is_read_only
        return Path(prepared[0].mounts[0].source)

    def review(self, state: ObservedState, attempt_id: str = "") -> AttemptObservation:
        seen = AttemptObservation(
            attempt_id=attempt_id or self.site.attempt_id,
            state=state,
            exit_code=1 if state.is_final else None,
            started_at_ns=1,
        )
        return self.preparation.review([seen])[0]


@pytest.fixture
def agent(site: Site) -> Iterator[Agent]:
    agent = Agent(site)
    yield agent
    agent.preparation.close()


def held(agent: Agent) -> Callable[[], bool]:
    return lambda: agent.review(ObservedState.FAILED).state is ObservedState.FAILED


def test_the_end_is_reported_once_the_results_are_uploaded(agent: Agent) -> None:
    folder = agent.prepared(agent.spec())
    assert agent.review(ObservedState.RUNNING).state is ObservedState.RUNNING
    (folder / "last.pt").write_text("weights")
    first = agent.review(ObservedState.FAILED)
    assert first.state is ObservedState.RUNNING
    assert "Uploading results" in first.message
    assert eventually(held(agent))
    assert agent.review(ObservedState.FAILED).exit_code == 1
    assert agent.site.stored() == {"/out/last.pt": 7}


def test_an_end_that_waited_long_is_reported_and_the_upload_goes_on_after_a_restart(
    site: Site,
) -> None:
    agent = Agent(site, end_wait_seconds=0.0)
    folder = agent.prepared(agent.spec())
    agent.preparation.close()
    agent.url = NOWHERE  # the portal is away
    agent.start()
    (folder / "last.pt").write_text("weights")
    assert eventually(held(agent))
    message = agent.review(ObservedState.FAILED).message
    assert "still being uploaded" in message
    agent.preparation.keep_only([])
    assert folder.exists()
    agent.preparation.close()

    agent.url = site.url
    agent.start()
    agent.preparation.review([])
    assert eventually(lambda: site.stored() == {"/out/last.pt": 7})

    def is_gone() -> bool:
        agent.preparation.keep_only([])
        return not folder.exists()

    assert eventually(is_gone)
    agent.preparation.close()


def test_the_next_attempt_here_gets_the_folder_as_it_is(agent: Agent) -> None:
    folder = agent.prepared(agent.spec())
    (folder / "not-yet-uploaded").write_text("x" * 100)
    later_id = next_attempt(agent.site)
    spec = agent.spec(later_id, previous=agent.site.attempt_id)
    agent.review(ObservedState.RUNNING)
    assert agent.preparation.prepare(spec) is None  # the attempt before still runs
    agent.preparation.review([])
    restored = agent.prepared(spec)
    assert (restored / "not-yet-uploaded").read_text() == "x" * 100
    assert not folder.exists()


def test_the_next_attempt_elsewhere_gets_what_was_uploaded(agent: Agent, tmp_path: Path) -> None:
    folder = agent.prepared(agent.spec())
    (folder / "deep").mkdir()
    (folder / "deep" / "last.pt").write_text("weights")
    agent.review(ObservedState.FAILED)
    assert eventually(held(agent))
    later_id = next_attempt(agent.site)
    agent.site.folder = tmp_path / "elsewhere"
    agent.site.folder.mkdir()
    other = Agent(agent.site)
    copy = other.prepared(other.spec(later_id, previous=agent.site.attempt_id))
    assert (copy / "deep" / "last.pt").read_text() == "weights"
    other.preparation.close()


def test_a_restore_waits_while_the_portal_is_away_and_says_so(agent: Agent, site: Site) -> None:
    later_id = next_attempt(site)
    agent.url = NOWHERE
    spec = agent.spec(later_id, previous=site.attempt_id)
    assert agent.preparation.prepare(spec) is None
    assert eventually(lambda: "does not answer" in agent.preparation.progress(later_id)[0])
    agent.preparation.keep_only([])
    assert eventually(lambda: _is_empty(agent, site.folder / "results"))


def _is_empty(agent: Agent, folder: Path) -> bool:
    agent.preparation.keep_only([])
    return not any(folder.iterdir())


def test_an_attempt_without_outputs_is_left_alone(agent: Agent) -> None:
    spec = msgspec.structs.replace(agent.spec(), outputs=None)
    assert agent.preparation.prepare(spec) is spec
    assert agent.review(ObservedState.SUCCEEDED).state is ObservedState.SUCCEEDED


def test_event_files_become_points_while_they_grow(agent: Agent) -> None:
    folder = agent.prepared(agent.spec())
    began = time.time()
    with SummaryWriter(str(folder / "runs" / "one"), flush_secs=1) as writer:
        writer.add_scalar("loss", 0.5, 1)
        assert eventually(lambda: len(agent.points) == 1)
        writer.add_scalar("loss", 0.25, 2)
        writer.add_text("note", "no number")
        assert eventually(lambda: len(agent.points) == 2)
    first, second = agent.points
    assert first.measurement == "job_metric"
    assert first.tags == {
        "job": agent.site.job_id,
        "attempt": agent.site.attempt_id,
        "name": "runs/one/loss",
    }
    assert [point.fields for point in (first, second)] == [
        {"value": 0.5, "step": 1},
        {"value": 0.25, "step": 2},
    ]
    assert abs(first.time_ns / 1e9 - began) < 60
