"""Faults of the simulated GPUs: told once, and as a driver would tell them."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from plugins.base import NoSettings, PluginContext
from plugins.simulated_gpu.reader import SimulatedGPUPlugin
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, Workload
from plugins.simulation.history import history
from protocol.gpu_processes import GPUProcess
from tests.unit.plugins.conftest import FIRST_AT
from timeseries.points import Point


def after(seconds: float) -> datetime:
    return FIRST_AT + timedelta(seconds=seconds)


def gathered(
    seconds: Sequence[int],
    publish: Callable[[list[GPUProcess]], object] = lambda _: None,
    **faults: int,
) -> list[list[Point]]:
    """Return the plugin's points at these seconds on an appliance with these faults."""
    config = SimulationConfig(seed="acme/dgx-1", **faults)  # type: ignore[arg-type] # by name
    model = SimulatedAppliance(config, started_at=FIRST_AT)
    model.add(Workload(workload_id="train", gpu_uuids=config.gpu_uuids[:2], started_at=FIRST_AT))
    context = PluginContext(simulation=model, publish_gpu_processes=publish)
    plugin = SimulatedGPUPlugin(NoSettings(), context)
    return [list(plugin.gather(after(second))) for second in seconds]


def readings_of(points: list[Point], gpu: int, measurement: str = "gpu") -> list[Point]:
    return [
        point
        for point in points
        if point.measurement == measurement and point.tags["gpu"] == str(gpu)
    ]


def test_a_lost_gpu_reports_only_that_and_one_event_at_the_start() -> None:
    first, second = gathered([1, 2], lost_gpu=5)
    assert [readings_of(points, 5)[0].fields for points in (first, second)] == [{"lost": 1}] * 2
    [event] = readings_of(first, 5, "gpu_xid")
    assert event.tags["xid"] == "79"
    assert readings_of(second, 5, "gpu_xid") == []


def test_a_restarted_agent_reports_no_event_twice() -> None:
    config = SimulationConfig(seed="acme/dgx-1", lost_gpu=5, xid_gpu=2)
    model = SimulatedAppliance(config, started_at=FIRST_AT, is_restart=True)
    plugin = SimulatedGPUPlugin(NoSettings(), PluginContext(simulation=model))
    points = list(plugin.gather(after(1)))
    assert readings_of(points, 5)[0].fields == {"lost": 1}
    assert [point for point in points if point.measurement == "gpu_xid"] == []


def test_a_reconfigured_plugin_reports_no_event_twice() -> None:
    config = SimulationConfig(seed="acme/dgx-1", lost_gpu=5)
    context = PluginContext(simulation=SimulatedAppliance(config, started_at=FIRST_AT))
    plugins = [SimulatedGPUPlugin(NoSettings(), context) for _ in range(2)]
    events = [readings_of(list(plugin.gather(after(1))), 5, "gpu_xid") for plugin in plugins]
    assert [len(points) for points in events] == [1, 0]


def test_memory_errors_come_every_three_hours() -> None:
    hours = [3600 * hour for hour in range(13)]
    events = [readings_of(points, 2, "gpu_xid") for points in gathered(hours, xid_gpu=2)]
    # At the start, and whenever three more hours are full.
    assert sum(len(points) for points in events) == 5


def test_an_nvlink_that_is_down_is_missing_from_the_active_ones() -> None:
    [points] = gathered([1], nvlink_down_gpu=1)
    links = [readings_of(points, gpu)[0].fields for gpu in (0, 1)]
    assert [(link_fields["nvlinks"], link_fields["nvlinks_active"]) for link_fields in links] == [
        (18, 18),
        (18, 17),
    ]


def test_a_worn_gpu_and_a_degraded_fabric_are_reported() -> None:
    [points] = gathered([1], nvlink_down_gpu=1, worn_gpu=0)
    names = ("sram_ecc_threshold_exceeded", "fabric_registered", "fabric_degraded")
    fields = [readings_of(points, gpu)[0].fields for gpu in (0, 1)]
    assert [[gpu_fields[name] for name in names] for gpu_fields in fields] == [[1, 1, 0], [0, 1, 1]]
    [points] = gathered([1], nvlink_down_gpu=1, has_fabric=False)  # an A100
    assert not any(name.startswith("fabric_") for name in readings_of(points, 1)[0].fields)


def test_gpu_processes_are_reported_every_ten_seconds() -> None:
    first, second, third = gathered([1, 3, 11], external_gpu=7)
    owners = {
        (point.tags["gpu"], point.tags["owner"])
        for point in first
        if point.measurement == "gpu_process"
    }
    assert owners == {("0", "job"), ("1", "job"), ("7", "host")}
    assert [point for point in second if point.measurement == "gpu_process"] == []
    assert len([point for point in third if point.measurement == "gpu_process"]) == 3


def test_the_listed_processes_stay_the_same_while_their_job_runs() -> None:
    listed: list[list[tuple[int, str, int, str]]] = []

    def publish(processes: list[GPUProcess]) -> None:
        listed.append(
            [(process.pid, process.name, process.gpu, process.owner) for process in processes]
        )

    gathered([1, 11], publish, external_gpu=7)
    first, second = listed
    assert first == second
    assert [process[1:] for process in first] == [
        ("python3", 0, "job"),
        ("python3", 1, "job"),
        ("ollama", 7, "host"),
    ]
    assert len({process[0] for process in first}) == 3


def test_an_external_process_uses_memory() -> None:
    [points] = gathered([1], external_gpu=7)
    assert float(readings_of(points, 7)[0].fields["memory_used_bytes"]) > 6 * GIB


def test_the_past_of_a_lost_gpu_is_that_of_a_working_one() -> None:
    config = SimulationConfig(seed="acme/dgx-1", lost_gpu=5)
    step = timedelta(minutes=10)
    points = list(history(config, start_at=FIRST_AT, end_at=FIRST_AT + step, step=step))
    assert "utilization_percent" in readings_of(points, 5)[0].fields
