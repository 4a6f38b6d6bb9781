"""The plugin host: intervals, failures, and whose job a GPU works for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest

from collector.config import AgentConfig
from collector.plugin_host import PluginHost, build_plugins
from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginError, PluginUnavailableError
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from tests.unit.collector.conftest import HandClock
from timeseries.points import Point


@dataclass(frozen=True)
class NoConfig:
    """Nothing to set."""


class ScriptedPlugin:
    """Gives a point, or raises what the test has put into `fault`."""

    name: ClassVar[str] = "scripted"
    config_class: ClassVar[type] = NoConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[Sequence[Metric]] = ()

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.read_at: list[datetime] = []

    def gather(self, now: datetime) -> Iterable[Point]:
        self.read_at.append(now)
        if self.fault:
            raise self.fault
        return [Point("scripted", {}, {"value": 1.0}, to_ns(now))]

    def close(self) -> None:
        """Release nothing."""


def no_holders() -> Mapping[str, str]:
    return {}


@pytest.fixture
def scripted() -> ScriptedPlugin:
    return ScriptedPlugin()


@pytest.fixture
def host(scripted: ScriptedPlugin) -> PluginHost:
    return PluginHost([(scripted, 10.0)], gpu_holders=no_holders)


def reads(host: PluginHost, plugin: ScriptedPlugin, clock: HandClock, *, seconds: int) -> int:
    """Return how often the plugin is read while seconds pass."""
    before = len(plugin.read_at)
    for _ in range(seconds):
        host.gather_due(clock.advance(1))
    return len(plugin.read_at) - before


def test_a_plugin_is_read_at_its_interval(
    host: PluginHost, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    assert reads(host, scripted, hand_clock, seconds=60) == 6


def test_a_late_reading_does_not_shift_the_beat(
    host: PluginHost, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    host.gather_due(hand_clock.now)
    host.gather_due(hand_clock.advance(13))
    host.gather_due(hand_clock.advance(7))
    seconds = [(at - scripted.read_at[0]).total_seconds() for at in scripted.read_at]
    assert seconds == [0, 13, 20]


def test_a_failing_plugin_is_read_ever_less_often_and_counted(
    host: PluginHost, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    scripted.fault = PluginError("broken")
    assert reads(host, scripted, hand_clock, seconds=150) == 4  # after 0, 20, 60 and 140 s
    assert host.gather_failures == 4


def test_a_plugin_that_works_again_is_back_at_its_interval(
    host: PluginHost, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    scripted.fault = ValueError("a bug in a foreign plugin")
    host.gather_due(hand_clock.now)
    scripted.fault = None
    hand_clock.advance(19)
    assert reads(host, scripted, hand_clock, seconds=30) == 3


def test_an_unavailable_plugin_is_skipped_quietly_and_asked_again(
    host: PluginHost,
    scripted: ScriptedPlugin,
    hand_clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted.fault = PluginUnavailableError("no GPU here")
    with caplog.at_level("INFO"):
        assert reads(host, scripted, hand_clock, seconds=601) == 3
    assert caplog.text.count("no GPU here") == 1
    assert host.gather_failures == 0


def test_a_clock_set_back_does_not_stop_the_readings(
    host: PluginHost, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    host.gather_due(hand_clock.now)
    hand_clock.advance(-86_400)
    assert reads(host, scripted, hand_clock, seconds=30) == 3


def test_a_gpu_that_is_held_is_tagged_with_its_job(tmp_path: Path, hand_clock: HandClock) -> None:
    config = SimulationConfig(seed="acme/dgx-1")
    model = SimulatedAppliance(config, started_at=hand_clock.now)
    agent = AgentConfig(portal_urls=["http://portal"], data_dir=tmp_path)
    host = PluginHost(
        build_plugins(agent, PluginContext(model)),
        gpu_holders=lambda: {config.gpu_uuids[2]: "job-1"},
    )
    points = [point for point in host.gather_due(hand_clock.now) if point.measurement == "gpu"]
    assert {point.tags["gpu"]: point.tags.get("job") for point in points} == {
        **dict.fromkeys("01234567"),
        "2": "job-1",
    }


def test_a_simulated_appliance_runs_the_simulated_plugins_only(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    model = SimulatedAppliance(SimulationConfig(seed="a"), started_at=hand_clock.now)
    config = AgentConfig(portal_urls=["http://portal"], data_dir=tmp_path)
    host = PluginHost(build_plugins(config, PluginContext(model)), gpu_holders=no_holders)
    assert host.names == ["simulated_gpu", "simulated_host"]


def test_a_plugin_can_be_switched_off(tmp_path: Path) -> None:
    config = AgentConfig(
        portal_urls=["http://portal"], data_dir=tmp_path, plugins={"nvml": {"enabled": False}}
    )
    host = PluginHost(build_plugins(config, PluginContext()), gpu_holders=no_holders)
    assert host.names == ["cpu", "disk", "diskio", "load", "memory", "network"]
