"""Cleaning up a real Docker engine: from the agent's report to what the portal orders."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest

from collector.jobs.attempts import AttemptRunner
from collector.jobs.storage import StorageReporter
from core.clock import utc_now
from core.db import SessionFactory
from core.ids import new_id
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.storage.policies import CleanupPolicy, set_policies
from jobqueue.storage.service import read_storage, record_storage, start_cleanup
from protocol.attempts import AttemptSpec, DesiredState, ObservedState
from protocol.storage import CleanupOrder, StorageReport
from tests.cast import BOX, Cast, FrozenClock, scope_of
from tests.fixtures.docker_engine import DockerEngine, isolated_engine
from tests.fixtures.polling import eventually
from tests.unit.jobqueue.builders import add_appliance

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]


class DirectPortal:
    """Takes reports into the database as the agent API does."""

    def __init__(self, sessions: SessionFactory, appliance_id: str, clock: FrozenClock) -> None:
        self._sessions, self._appliance_id, self._clock = sessions, appliance_id, clock

    def report_storage(self, report: StorageReport) -> CleanupOrder:
        with self._sessions.begin() as session:
            return record_storage(session, self._appliance_id, report, now=self._clock.now)


NAMES = ("old", "running", "wanted", "foreign")


@dataclass(frozen=True)
class Site:
    """An appliance with a real engine: its client, agent parts, and the ids of its images."""

    client: docker.DockerClient
    executor: DockerExecutor
    runner: AttemptRunner
    reporter: StorageReporter
    portal: Any
    appliance_id: str
    ids: dict[str, str]
    specs: dict[str, AttemptSpec]

    def step(self) -> None:
        self.reporter.step(self.portal)

    def images(self) -> set[str]:
        there = {image.id for image in self.client.images.list()}
        return {name for name, ident in self.ids.items() if ident in there}

    def is_running(self, *names: str) -> bool:
        seen = {
            observation.attempt_id: observation.state for observation in self.executor.observe()
        }
        return all(seen.get(self.specs[name].attempt_id) is ObservedState.RUNNING for name in names)


@pytest.fixture(scope="module")
def docker_engine() -> Iterator[DockerEngine]:
    """Start an engine for these tests alone, which delete the image of all others."""
    with isolated_engine() as engine:
        yield engine


@pytest.fixture
def site(
    docker_engine: DockerEngine,
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    tmp_path: Path,
) -> Iterator[Site]:
    """Three jobs have run, each with an image of its own, of which one still runs."""
    clock.now = utc_now()  # the engine's times are real
    client = docker.DockerClient(base_url=docker_engine.url)
    ids = {}
    for name in NAMES:
        container = client.containers.create(docker_engine.image, ["true"])
        image = container.commit(f"acme/{name}", "1", conf={"Labels": {"name": name}})
        ids[name] = str(image.id)
        container.remove()
    left_over = client.containers.create("acme/foreign:1", ["true"], name="left-over")
    executor = DockerExecutor(
        owner="dgx-01", spool_dir=tmp_path / "attempts", url=docker_engine.url, clock=clock
    )
    runner = AttemptRunner(executor, state_path=tmp_path / "attempts.json", clock=clock)
    command = ["sleep", "99"]
    specs = {
        name: AttemptSpec(
            attempt_id=new_id(), job_id="j", name=name, image=f"acme/{name}:1", command=command
        )
        for name in NAMES[:3]
    }
    with sessions.begin() as session:
        ident = add_appliance(session, cast.acme, "dgx-01").id
    portal = DirectPortal(sessions, ident, clock)
    reporter = StorageReporter(executor.storage(), runner, clock)
    new_site = Site(client, executor, runner, reporter, portal, ident, ids, specs)
    try:
        for spec in specs.values():
            executor.start(spec)
        eventually(lambda: new_site.is_running(*specs), within_seconds=60)
        for name in ("old", "wanted"):
            executor.remove(specs[name].attempt_id)
        yield new_site
    finally:
        for spec in specs.values():
            executor.remove(spec.attempt_id)
        for container in client.containers.list(all=True, filters={"id": left_over.id}):
            container.remove()
        for name in new_site.images():
            client.images.remove(f"acme/{name}:1", force=True)
        executor.close()
        client.close()


def test_unused_images_are_deleted_and_those_in_use_or_wanted_are_not(
    site: Site, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    alice = scope_of(cast.alice)
    manual = {"": CleanupPolicy(image_days=30, is_automatic=False, disk_percent=100)}
    with sessions.begin() as session:
        set_policies(session, alice, cast.acme.id, manual)
    site.step()
    clock.now += timedelta(days=31)
    # It starts just now: the portal's order doesn't know it yet.
    site.runner.set_desired(DesiredState(generation=2, attempts=[site.specs["wanted"]]))
    site.step()
    assert site.images() == set(NAMES)

    with sessions.begin() as session:
        start_cleanup(session, alice, site.appliance_id, now=clock.now)
    with sessions() as session:
        desired = desired_state(session, site.appliance_id, box=BOX)
    site.runner.set_desired(msgspec.structs.replace(desired, attempts=[site.specs["wanted"]]))
    site.step()
    assert site.images() == {"running", "wanted", "foreign"}
    with sessions() as session:
        seen = read_storage(session, alice, site.appliance_id, now=clock.now)
    assert seen.cleanup is not None
    assert (seen.cleanup.images, seen.cleanup.errors) == (1, [])
    assert seen.report is not None
    assert seen.report.disk_total_bytes > seen.report.disk_free_bytes > 0
    assert [container.name for container in seen.report.containers] == ["left-over"]


def test_containers_of_others_and_then_their_images_are_deleted_where_included(
    site: Site, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    policy = CleanupPolicy(image_days=1, container_days=1, includes_others=True)
    with sessions.begin() as session:
        set_policies(session, scope_of(cast.alice), cast.acme.id, {"": policy})
    site.step()
    assert site.images() == set(NAMES)
    clock.now += timedelta(days=2)
    site.step()
    assert not site.client.containers.list(all=True, filters={"name": "left-over"})
    assert site.images() == {"running"}
    assert site.is_running("running")
