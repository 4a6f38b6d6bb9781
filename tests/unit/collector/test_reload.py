"""A new configuration for an agent that runs: nothing is lost, and what can't change is said."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collector.agent import Agent
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.reading.plugin_host import PluginHost
from core.clock import utc_now
from core.errors import ConfigurationError
from plugins.base import PluginContext
from tests.fixtures.polling import eventually
from tests.fixtures.puppets import puppet_plan
from timeseries.points import Point


@pytest.fixture
def points() -> list[Point]:
    return []


@pytest.fixture
def host(points: list[Point]) -> Iterator[PluginHost]:
    plans = [replace(puppet_plan(name=name, worker=""), interval_seconds=0.02) for name in "ab"]
    host = PluginHost(plans, PluginContext(), on_points=points.extend, clock=utc_now)
    host.start()
    eventually(lambda: len(points) > 2)
    yield host
    host.stop()


def readings(points: list[Point]) -> int:
    return max(int(point.fields["readings"]) for point in list(points))


def test_a_plugin_with_the_same_settings_is_not_restarted(
    host: PluginHost, points: list[Point]
) -> None:
    before = readings(points)
    host.apply([replace(puppet_plan(name="a", worker=""), interval_seconds=0.03)])
    eventually(lambda: readings(points) > before + 3)
    assert host.names == ["a"]


def test_a_plugin_with_other_settings_starts_afresh(host: PluginHost, points: list[Point]) -> None:
    eventually(lambda: readings(points) > 3)
    host.apply([replace(puppet_plan("fail", name="a", worker=""), interval_seconds=0.02)])
    eventually(lambda: host.gather_failures)
    points.clear()
    host.apply([replace(puppet_plan(name="a", worker=""), interval_seconds=0.02)])
    eventually(lambda: points)
    assert points[0].fields["readings"] == 1
    assert host.gather_failures >= 1


def test_a_worker_starts_and_ends_with_its_plugins(host: PluginHost, points: list[Point]) -> None:
    host.apply([puppet_plan(name="in-worker")])
    eventually(lambda: any(point.tags["pid"] in map(str, host.worker_pids) for point in points))
    [pid] = host.worker_pids
    host.apply([puppet_plan(name="a", worker="")])
    assert host.worker_pids == []
    assert not Path(f"/proc/{pid}").exists()


def test_plugins_of_a_worker_are_closed_before_it_ends(
    host: PluginHost, points: list[Point], tmp_path: Path
) -> None:
    def is_read_in_worker() -> bool:
        return bool(points) and points[-1].tags["pid"] in map(str, host.worker_pids)

    left, ended = tmp_path / "left", tmp_path / "ended"
    host.apply([puppet_plan(f"note the end in {left}", name="leaves")])
    eventually(is_read_in_worker)
    host.apply([puppet_plan(f"note the end in {ended}", name="stays", worker="others")])
    assert left.read_text() == "closed"
    eventually(is_read_in_worker)
    host.stop()
    assert ended.read_text() == "closed"


def test_settings_that_need_a_restart_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig(portal_urls=["http://127.0.0.1:9"], data_dir=tmp_path, executor="none")
    identity = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token="secret")
    agent = Agent(config, identity)
    wanted = replace(config, executor="docker", interval_seconds=3.0, docker_url="unix:///else")
    with caplog.at_level("INFO"):
        agent.reload(wanted)
    assert "changed: interval_seconds, executor, docker_url" in caplog.text
    assert "to apply: executor, docker_url" in caplog.text


def test_a_bad_plugin_table_leaves_the_old_plugins(tmp_path: Path) -> None:
    config = AgentConfig(portal_urls=["http://127.0.0.1:9"], data_dir=tmp_path, executor="none")
    identity = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token="secret")
    agent = Agent(config, identity)
    with pytest.raises(ConfigurationError, match="unknown plugin"):
        agent.reload(replace(config, plugins={"gpus": {}}))
    agent.reload(replace(config, plugins={"cpu": {"interval_seconds": 2}}))
