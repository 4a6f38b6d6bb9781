"""Members of a gang from their orders to their end: runner, preparation and Docker executor."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from collector.gang_networks.containers import sandbox_name
from collector.gang_networks.preparation import GangNetworkPreparation
from collector.jobs.attempts import AttemptRunner
from jobqueue.executors.docker.executor import DockerExecutor
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from protocol.job_spec import Port
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.gang_appliances import BUSYBOX, Appliance, Site, gang, site_of
from tests.fixtures.polling import eventually

pytestmark = pytest.mark.needs_docker


class Agent:
    """The part of an agent that runs attempts."""

    def __init__(self, appliance: Appliance, folder: Path) -> None:
        self.appliance = appliance
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Begin as a new process does."""
        containers = self.appliance.containers
        self.executor = DockerExecutor(
            owner=self.appliance.name, spool_dir=self.folder, url=self.appliance.engine_url
        )
        maker = self.appliance.new_maker(containers)
        self.runner = AttemptRunner(
            self.executor,
            state_path=self.folder / "attempts.json",
            stop_grace_seconds=0.0,
            preparations=[GangNetworkPreparation(maker, containers)],
        )

    def close(self) -> None:
        """End as a process does that is stopped."""
        self.runner.close()
        self.executor.close()

    def seen(self, spec: AttemptSpec) -> AttemptObservation | None:
        """Step, and return what is known of an attempt."""
        self.runner.step()
        reported = {seen.attempt_id: seen for seen in self.runner._known()}  # noqa: SLF001 - what it reports
        return reported.get(spec.attempt_id)

    def seen_in(self, spec: AttemptSpec, *states: ObservedState) -> AttemptObservation:
        """Step until an attempt is in one of some states."""

        def probe() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and seen.state in states else None

        return eventually(probe, within_seconds=40, every_seconds=0.1, what=str(states))

    def log(self, spec: AttemptSpec) -> str:
        """Return the output of an attempt."""
        return self.executor.read_log(spec.attempt_id, offset=0, limit=10_000).decode()


@pytest.fixture
def site(docker_engine: DockerEngine) -> Iterator[Site]:
    with site_of(docker_engine.url, docker_engine.image, 1) as made:
        yield made


@pytest.fixture
def agent(site: Site, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(site.appliances[0], tmp_path)
    yield agent
    agent.close()


def orders(
    specs: list[AttemptSpec], *, generation: int = 1, stopping: bool = False
) -> DesiredState:
    return DesiredState(
        generation=generation,
        attempts=[] if stopping else specs,
        stopping=[spec.attempt_id for spec in specs] if stopping else [],
    )


def leftovers(site: Site) -> list[str]:
    labels = {"label": "io.vedette.gang"}
    containers = site.client.containers.list(all=True, filters=labels, ignore_removed=True)
    return [container.name for container in containers]


def test_members_start_with_their_network_and_leave_nothing(site: Site, agent: Agent) -> None:
    place = site.appliances[0]
    serving = f"while true; do echo hello | {BUSYBOX} nc -l -p 7000; done &"
    asking = f"until {BUSYBOX} nc -w 5 $host 7000 < /dev/null; do sleep 0.2; done"
    script = f"{serving} for host in train-0 train-1; do {asking}; done; sleep 3; exit 0"
    command = ["sh", "-c", script]
    specs = gang([place, place], image=site.image, command=command)
    agent.runner.set_desired(orders(specs))
    for spec in specs:
        assert agent.seen_in(spec, ObservedState.SUCCEEDED, ObservedState.FAILED).exit_code == 0
        assert agent.log(spec).count("hello") == 2
    assert sorted(leftovers(site))
    agent.runner.set_desired(DesiredState(generation=2, attempts=[], stopping=[]))

    def is_removed() -> bool:
        agent.runner.step()
        return not leftovers(site)

    # As the portal has them, their logs included.
    for spec in specs:
        agent.executor.remove(spec.attempt_id)
    eventually(is_removed, every_seconds=0.2, what="removal")


def test_a_port_of_a_member_is_reached_through_the_agent_after_its_restart(
    site: Site, agent: Agent
) -> None:
    place = site.appliances[0]
    loop = f"while true; do echo hello | {BUSYBOX} nc -l -p 8000; done"
    specs = [
        msgspec.structs.replace(spec, ports=[Port(container_port=8000, name="web")])
        for spec in gang([place, place], image=site.image, command=["sh", "-c", loop])
    ]
    agent.runner.set_desired(orders(specs))
    agent.seen_in(specs[0], ObservedState.RUNNING)
    for _ in range(2):
        eventually(
            lambda: agent.seen(specs[0]) and agent.runner.endpoint(specs[0].attempt_id, 8000),
            every_seconds=0.1,
            what="an endpoint",
        )
        host, _, port = (agent.runner.endpoint(specs[0].attempt_id, 8000) or "").partition(":")

        def answer(address: tuple[str, int] = (host, int(port))) -> bytes:
            with socket.create_connection(address, timeout=5) as connection:
                return connection.recv(100)

        assert eventually(answer, what="an answer") == b"hello\n"
        agent.close()
        agent.start()
        agent.runner.set_desired(orders(specs))
    agent.runner.set_desired(orders(specs, generation=2, stopping=True))
    agent.seen_in(specs[0], ObservedState.STOPPED, ObservedState.FAILED)


def test_a_running_member_whose_sandbox_was_ended_fails_and_says_why(
    site: Site, agent: Agent
) -> None:
    place = site.appliances[0]
    specs = gang([place, place], image=site.image, command=["sleep", "600"])
    agent.runner.set_desired(orders(specs))
    agent.seen_in(specs[0], ObservedState.RUNNING)
    agent.close()
    site.client.containers.get(sandbox_name(specs[0].attempt_id)).remove(force=True)
    agent.start()
    agent.runner.set_desired(orders(specs))
    seen = agent.seen_in(specs[0], ObservedState.FAILED)
    assert seen.reason == "network_failed"
    assert "network" in seen.message


def test_a_job_on_the_hosts_network_is_reached_at_its_own_port(site: Site, agent: Agent) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    loop = f"while true; do echo host | {BUSYBOX} nc -l -p {number}; done"
    spec = AttemptSpec(
        attempt_id=f"host-{site.id}",
        job_id="host",
        name="host",
        image=site.image,
        command=["sh", "-c", loop],
        memory_bytes=64 * 2**20,
        network="host",
        ports=[Port(container_port=number)],
    )
    agent.runner.set_desired(orders([spec]))
    seen = agent.seen_in(spec, ObservedState.RUNNING)
    assert seen.endpoints == {str(number): f"127.0.0.1:{number}"}
    agent.runner.set_desired(orders([spec], generation=2, stopping=True))
    agent.seen_in(spec, ObservedState.STOPPED, ObservedState.FAILED)


def test_rdma_without_devices_says_what_is_missing(site: Site, agent: Agent) -> None:
    if Path("/dev/infiniband").exists():
        pytest.skip("this host has RDMA devices")
    spec = AttemptSpec(
        attempt_id=f"rdma-{site.id}",
        job_id="rdma",
        name="rdma",
        image=site.image,
        command=["true"],
        memory_bytes=64 * 2**20,
        uses_rdma=True,
    )
    agent.runner.set_desired(orders([spec]))
    seen = agent.seen_in(spec, ObservedState.FAILED)
    assert (seen.reason, "RDMA" in seen.message) == ("start_failed", True)
