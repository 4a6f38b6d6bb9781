"""Whole agents in one process, over real HTTP: samples, heartbeats, attempts, outages."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

from collector.agent import Agent
from collector.config import AgentConfig
from collector.data_dir import Identity
from core.clock import utc_now
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import AttemptSpec, DesiredState, ObservedState
from protocol.health import HealthState
from protocol.inventory import Inventory
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal

IDENTITY = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN)


def quick_config(portal: RecordingPortal, folder: Path, **changes: object) -> AgentConfig:
    fields: dict[str, object] = {
        "portal_urls": [portal.url],
        "data_dir": folder,
        "interval_seconds": 0.2,
        "flush_interval_seconds": 0.1,
        "heartbeat_interval_seconds": 0.5,
        "attempts_interval_seconds": 0.1,
        "poll_wait_seconds": 0.0,
        "docker_url": "unix:///nowhere/docker.sock",
    }
    return AgentConfig(**{**fields, **changes})  # type: ignore[arg-type] # checked by its tests


def simulated(seed: str, **changes: object) -> SimulatedAppliance:
    config = SimulationConfig(seed=seed, **changes)  # type: ignore[arg-type] # the caller's names
    return SimulatedAppliance(config, started_at=utc_now())


@contextmanager
def running(*agents: Agent) -> Iterator[None]:
    stop = Event()
    threads = [Thread(target=agent.run, args=(stop,)) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def last_inventory(portal: RecordingPortal) -> Inventory:
    inventory = portal.recording.heartbeats[-1].inventory
    assert inventory is not None
    return inventory


def measurements(portal: RecordingPortal) -> set[str]:
    with portal.recording.lock:
        return {line.partition(" ")[0].partition(",")[0] for line in portal.recording.lines}


def test_a_real_agent_sends_this_hosts_metrics(portal: RecordingPortal, tmp_path: Path) -> None:
    with running(Agent(quick_config(portal, tmp_path), IDENTITY)):
        eventually(lambda: measurements(portal) >= {"cpu", "memory", "load", "disk", "agent"})
        beat = eventually(lambda: portal.recording.heartbeats)[0]
    assert beat.inventory is not None
    assert beat.inventory.cpu_count >= 1
    assert beat.inventory.memory_bytes > 0
    assert beat.inventory.executors == []


def test_a_simulated_agent_runs_a_job_and_its_gpus_carry_the_job(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    simulation = simulated("acme/dgx-1")
    spec = AttemptSpec(
        attempt_id="a",
        job_id="job-1",
        name="train",
        image="train:1",
        env={"SIM_SECONDS": "2"},
        gpu_uuids=simulation.config.gpu_uuids[:1],
    )
    portal.desire(DesiredState(generation=1, attempts=[spec]))

    def is_done() -> bool:
        seen = portal.recording.observed.get("a")
        return seen is not None and seen.state is ObservedState.SUCCEEDED

    with running(Agent(quick_config(portal, tmp_path), IDENTITY, simulation=simulation)):
        eventually(is_done)
        eventually(lambda: b"training finished" in portal.recording.logs.get("a", b""))
        with portal.recording.lock:
            assert any(",job=job-1" in line for line in portal.recording.lines)
            assert any(line.startswith("attempt,") for line in portal.recording.lines)
        eventually(lambda: last_inventory(portal).executors == ["simulated"])
    assert len(last_inventory(portal).gpus) == 8


def test_the_first_heartbeat_reports_a_lost_gpu_and_health_is_a_sample(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    simulation = simulated("acme/dgx-1", lost_gpu=5)
    with running(Agent(quick_config(portal, tmp_path), IDENTITY, simulation=simulation)):
        health = eventually(lambda: portal.recording.heartbeats)[0].health
        eventually(lambda: "gpu_health" in measurements(portal))
    assert health is not None
    assert [gpu.index for gpu in health.gpus if gpu.state is HealthState.FAILED] == [5]
    assert health.appliance_class == "8 x flagship"


def test_several_agents_live_in_one_process(portal: RecordingPortal, tmp_path: Path) -> None:
    agents = [
        Agent(
            quick_config(portal, tmp_path / name),
            IDENTITY,
            simulation=simulated(name, hostname=name),
        )
        for name in ("dgx-1", "dgx-2", "dgx-3")
    ]

    def hostnames() -> set[str]:
        return {beat.inventory.hostname for beat in portal.recording.heartbeats if beat.inventory}

    with running(*agents):
        eventually(lambda: hostnames() == {"dgx-1", "dgx-2", "dgx-3"})


def test_the_past_is_delivered_through_the_buffer(portal: RecordingPortal, tmp_path: Path) -> None:
    agent = Agent(quick_config(portal, tmp_path), IDENTITY, simulation=simulated("acme/dgx-1"))
    end_at = utc_now()
    pushed = agent.push_history(end_at - timedelta(hours=2), end_at, step_seconds=60)
    # Eight GPUs; eight host points, two disks.
    assert pushed == 120 * (8 + 10)
    assert agent.buffered_points == pushed
    with running(agent):
        eventually(lambda: len(portal.recording.lines) >= pushed)


def test_samples_read_during_a_portal_outage_arrive(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    portal.stop()
    agent = Agent(quick_config(portal, tmp_path), IDENTITY, simulation=simulated("acme/dgx-1"))
    with running(agent):
        eventually(lambda: agent.buffered_points > 30)
        portal.start()
        eventually(lambda: agent.buffered_points < 30)
    assert len(portal.recording.lines) > 30


def test_unsent_samples_are_on_disk_at_the_next_start(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    portal.stop()
    config = quick_config(portal, tmp_path)
    first = Agent(config, IDENTITY, simulation=simulated("acme/dgx-1"))
    with running(first):
        eventually(lambda: first.buffered_points > 0)
    restarted = Agent(config, IDENTITY, simulation=simulated("acme/dgx-1"))
    assert restarted.buffered_points == first.buffered_points > 0


def test_a_simulated_outage_sends_nothing_and_samples_continue(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    simulation = simulated("acme/dgx-1", outage_every_seconds=3600, outage_seconds=3600)
    agent = Agent(quick_config(portal, tmp_path), IDENTITY, simulation=simulation)
    with running(agent):
        eventually(lambda: agent.buffered_points > 30)
    assert portal.recording.heartbeats == []
    assert portal.recording.lines == []


def test_values_that_cant_be_true_are_reported_and_not_sent(
    portal: RecordingPortal, tmp_path: Path
) -> None:
    config = quick_config(portal, tmp_path, executor="simulated")
    simulation = simulated("dgx", gpu_count=1, power_limit_watts=4_294_967.0)
    with running(Agent(config, IDENTITY, simulation=simulation)):

        def reported() -> set[str]:
            healths = [
                heartbeat.health for heartbeat in portal.recording.heartbeats if heartbeat.health
            ]
            return {reading.metric for health in healths for reading in health.implausible_readings}

        eventually(lambda: "gpu.power_limit_watts" in reported())
        eventually(lambda: any("utilization_percent" in line for line in portal.recording.lines))
    assert not any("power_limit_watts" in line for line in portal.recording.lines)
