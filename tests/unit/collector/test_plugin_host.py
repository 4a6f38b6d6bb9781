"""The plugin host: intervals, failures, its own figures, and whose job a GPU works for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest

from collector.config import AgentConfig
from collector.reading.plugin_host import PluginHost, plugin_plans
from collector.reading.plugin_reader import PluginPlan
from core.clock import to_ns
from plugins.base import (
    Metric,
    PluginClass,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from tests.unit.collector.hand_clock import HandClock
from timeseries.points import Point


@dataclass(frozen=True)
class NoConfig:
    """Nothing to set."""


class ScriptedPlugin:
    """Gives a point, or raises what the test has put into `fault`."""

    name: ClassVar[str] = "scripted"
    config_class: ClassVar[type] = NoConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[Sequence[Metric]] = ()

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.measurement = "scripted"
        self.tags: dict[str, str] = {}
        self.read_at: list[datetime] = []
        self.is_closed = False

    def gather(self, now: datetime) -> Iterable[Point]:
        self.read_at.append(now)
        if self.fault:
            raise self.fault
        return [Point(self.measurement, self.tags, {"value": 1.0, "other": 2}, to_ns(now))]

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Stage:
    """A host with hand-moved clocks, and what it delivers."""

    clock: HandClock
    jobs: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def host(
        self, plans: Iterable[PluginPlan], *, context: PluginContext | None = None
    ) -> PluginHost:
        return PluginHost(
            plans,
            context or PluginContext(job_of_gpu=lambda: self.jobs),
            on_points=self.points.extend,
            clock=self.clock,
            monotonic=self.clock.seconds,
        )

    def reads(self, host: PluginHost, plugin: ScriptedPlugin, *, seconds: int) -> int:
        """Return how often the plugin is read while seconds pass."""
        before = len(plugin.read_at)
        for _ in range(seconds):
            self.clock.advance(1)
            host.read_due()
        return len(plugin.read_at) - before


def plan_for(plugin: ScriptedPlugin, **changes: object) -> PluginPlan:
    def build(config: object, context: PluginContext) -> ScriptedPlugin:
        del config, context
        return plugin

    as_class: PluginClass = build  # type: ignore[assignment] # nobody reads its traits
    fields: dict[str, object] = {
        "name": "scripted",
        "plugin_class": as_class,
        "config": NoConfig(),
        "interval_seconds": 10.0,
        "jitter_seconds": 0.0,
        "time_limit_seconds": 10.0,
    }
    return PluginPlan(**{**fields, **changes})  # type: ignore[arg-type] # names of a plan


@pytest.fixture
def scripted() -> ScriptedPlugin:
    return ScriptedPlugin()


@pytest.fixture
def stage(hand_clock: HandClock) -> Stage:
    return Stage(hand_clock)


@pytest.fixture
def host(stage: Stage, scripted: ScriptedPlugin) -> Iterator[PluginHost]:
    host = stage.host([plan_for(scripted)])
    host.read_due()
    yield host
    host.stop()


def test_a_plugin_is_read_at_once_and_then_at_its_interval(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    assert len(scripted.read_at) == 1
    assert stage.reads(host, scripted, seconds=60) == 6


def test_the_host_returns_the_seconds_until_a_plugin_is_due(stage: Stage, host: PluginHost) -> None:
    stage.clock.advance(10)
    wait_seconds = host.read_due()
    assert 5.0 <= wait_seconds <= 15.0
    stage.clock.advance(wait_seconds)
    assert host.read_due() == pytest.approx(10.0)


def test_a_failing_plugin_is_read_ever_less_often_and_counted(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    scripted.fault = PluginError("broken")
    stage.reads(host, scripted, seconds=320)
    first, *later = scripted.read_at[1:]
    seconds = [round((at - first).total_seconds()) for at in later]
    assert seconds == [20, 60, 140, 300]
    assert host.gather_failures == 5


def test_a_plugin_that_works_again_is_back_at_its_interval(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    scripted.fault = ValueError("a bug in a foreign plugin")
    stage.reads(host, scripted, seconds=16)
    scripted.fault = None
    stage.reads(host, scripted, seconds=20)
    assert stage.reads(host, scripted, seconds=30) == 3


def test_an_unavailable_plugin_is_skipped_quietly_and_asked_again(
    stage: Stage,
    host: PluginHost,
    scripted: ScriptedPlugin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted.fault = PluginUnavailableError("no GPU here")
    with caplog.at_level("INFO"):
        assert stage.reads(host, scripted, seconds=620) == 3
    assert caplog.text.count("no GPU here") == 1
    assert host.gather_failures == 0


def test_a_plugin_that_can_not_be_built_is_tried_again(stage: Stage) -> None:
    faults = [ValueError("no such table")]

    def build(config: object, context: PluginContext) -> ScriptedPlugin:
        del config, context
        if faults:
            raise faults.pop()
        return ScriptedPlugin()

    host = stage.host([plan_for(ScriptedPlugin(), plugin_class=build)])
    for _ in range(40):
        host.read_due()
        stage.clock.advance(1)
    assert host.gather_failures == 1
    assert stage.points


def test_the_wall_clock_does_not_move_the_readings(
    stage: Stage, scripted: ScriptedPlugin, hand_clock: HandClock
) -> None:
    elapsed = {"seconds": 0.0}
    host = PluginHost(
        [plan_for(scripted)],
        PluginContext(),
        on_points=stage.points.extend,
        clock=hand_clock,
        monotonic=lambda: elapsed["seconds"],
    )
    host.read_due()
    hand_clock.advance(-86_400)
    for _ in range(30):
        elapsed["seconds"] += 1
        host.read_due()
    assert len(scripted.read_at) == 4


def test_own_figures_come_once_a_minute(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    counted = 0
    for _ in range(30):
        stage.reads(host, scripted, seconds=10)
        counted += len(host.own_points(stage.clock.now))
    assert counted == 5


def test_own_metrics_have_the_last_readings_samples_and_all_failures(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    [point] = host.own_points(stage.clock.now)
    assert point.measurement == "plugin"
    assert point.tags == {"plugin": "scripted"}
    assert point.fields["samples"] == 2
    assert point.fields["errors"] == 0
    assert point.fields["timeouts"] == 0
    assert isinstance(point.fields["duration_seconds"], float)
    scripted.fault = PluginError("broken")
    stage.reads(host, scripted, seconds=16)
    [point] = host.own_points(stage.clock.now)
    assert (point.fields["samples"], point.fields["errors"]) == (0, 1)


def test_a_plugin_with_nothing_to_read_has_no_figures(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    host.own_points(stage.clock.now)
    scripted.fault = PluginUnavailableError("no GPU here")
    stage.reads(host, scripted, seconds=700)
    assert host.own_points(stage.clock.now) == []


def test_an_allocated_gpu_is_tagged_with_its_job(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    stage.jobs["GPU-1"] = "job-1"
    scripted.tags = {"uuid": "GPU-1"}
    stage.reads(host, scripted, seconds=10)
    scripted.tags = {"uuid": "GPU-2"}
    stage.reads(host, scripted, seconds=10)
    assert [point.tags.get("job") for point in stage.points[-2:]] == ["job-1", None]


def test_a_lost_gpu_has_its_former_tags_and_job(stage: Stage, scripted: ScriptedPlugin) -> None:
    known_tags = {"3": {"uuid": "GPU-3", "model": "NVIDIA H100 80GB HBM3"}}
    context = PluginContext(job_of_gpu=lambda: {"GPU-3": "job-1"}, known_gpus=lambda: known_tags)
    host = stage.host([plan_for(scripted)], context=context)
    scripted.measurement, scripted.tags = "gpu", {"gpu": "3"}
    stage.reads(host, scripted, seconds=10)
    assert stage.points[-1].tags == {"gpu": "3", **known_tags["3"], "job": "job-1"}


def test_a_job_that_a_plugin_found_itself_stays(
    stage: Stage, host: PluginHost, scripted: ScriptedPlugin
) -> None:
    stage.jobs["GPU-1"] = "job-1"
    scripted.tags = {"uuid": "GPU-1", "job": "job-of-the-container"}
    stage.reads(host, scripted, seconds=10)
    assert stage.points[-1].tags["job"] == "job-of-the-container"


def agent_config(folder: Path, plugins: Mapping[str, Mapping[str, object]]) -> AgentConfig:
    tables = {name: dict(table) for name, table in plugins.items()}
    return AgentConfig(portal_urls=["http://portal"], data_dir=folder, plugins=tables)


def test_a_simulated_appliance_runs_the_simulated_plugins_only(
    tmp_path: Path, stage: Stage
) -> None:
    model = SimulatedAppliance(SimulationConfig(seed="a"), started_at=stage.clock.now)
    plans = plugin_plans(agent_config(tmp_path, {}), is_simulated=True)
    host = stage.host(plans, context=PluginContext(simulation=model))
    assert host.names == ["simulated_gpu", "simulated_host"]


def test_a_plugin_can_be_switched_off(tmp_path: Path) -> None:
    config = agent_config(tmp_path, {"nvml": {"enabled": False}})
    names = {plan.name for plan in plugin_plans(config, is_simulated=False)}
    assert {"cpu", "inventory", "gpu_processes"} <= names
    assert not {"nvml", "simulated_gpu"} & names


def test_generic_settings_win_over_a_plugins_traits(tmp_path: Path) -> None:
    table = {"interval_seconds": 7, "jitter_seconds": 2, "time_limit_seconds": 3}
    config = agent_config(tmp_path, {"nvml": table})
    [plan] = [
        candidate
        for candidate in plugin_plans(config, is_simulated=False)
        if candidate.name == "nvml"
    ]
    assert (plan.interval_seconds, plan.jitter_seconds, plan.time_limit_seconds) == (7, 2, 3)
    assert plan.worker == "nvml"
