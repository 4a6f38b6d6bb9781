"""The simulated appliance: telemetry follows the work on it, and is the same for the same seed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from core.clock import to_ns
from plugins.base import NoSettings, PluginContext, PluginUnavailableError
from plugins.registry import load_plugin_class
from plugins.simulated_gpu.reader import SimulatedGPUPlugin
from plugins.simulated_host.reader import SimulatedHostPlugin
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, Workload
from plugins.simulation.gpu import GPUReading
from plugins.simulation.history import LONGEST_REST, continue_history, history
from tests.unit.plugins.conftest import FIRST_AT
from timeseries.points import Point

CONFIG = SimulationConfig(seed="acme/dgx-1", hot_gpu=3, xid_gpu=6, external_gpu=7)


@pytest.fixture
def model() -> SimulatedAppliance:
    return SimulatedAppliance(CONFIG, started_at=FIRST_AT)


def training(*gpus: int, **changes: object) -> Workload:
    workload = Workload(
        workload_id="train",
        gpu_uuids=[CONFIG.gpu_uuids[gpu] for gpu in gpus],
        cpus=16,
        memory_bytes=100 * GIB,
        started_at=FIRST_AT,
    )
    return replace(workload, **changes)  # type: ignore[arg-type] # the caller's names


def after(seconds: float) -> datetime:
    return FIRST_AT + timedelta(seconds=seconds)


def readings(model: SimulatedAppliance, gpu: int, *, seconds: Sequence[int]) -> list[GPUReading]:
    return [model.read(after(second)).gpus[CONFIG.gpu_uuids[gpu]] for second in seconds]


def test_an_idle_gpu_is_cool_and_draws_little(model: SimulatedAppliance) -> None:
    [reading] = readings(model, 0, seconds=[60])
    assert reading.utilization_percent == 0
    assert reading.power_watts < 80
    assert reading.temperature_celsius < 40


def test_memory_fills_over_seconds(model: SimulatedAppliance) -> None:
    model.add(training(0))
    used = [reading.memory_used_bytes for reading in readings(model, 0, seconds=[1, 5, 10, 60])]
    assert used == sorted(used)
    assert used[0] < 0.2 * CONFIG.gpu_memory_bytes
    assert used[-1] > 0.5 * CONFIG.gpu_memory_bytes


def test_temperature_lags_behind_power(model: SimulatedAppliance) -> None:
    model.add(training(0))
    early, late = readings(model, 0, seconds=[20, 75])
    assert early.power_watts > 400
    assert early.temperature_celsius < late.temperature_celsius - 10


def test_utilization_dips_between_epochs(model: SimulatedAppliance) -> None:
    model.add(training(0))
    values = [reading.utilization_percent for reading in readings(model, 0, seconds=range(20, 220))]
    assert max(values) > 90
    assert min(values) < 40
    assert sorted(values)[len(values) // 2] > 85


def test_the_hot_gpu_throttles_and_its_clock_drops(model: SimulatedAppliance) -> None:
    model.add(training(2, 3))
    cool = readings(model, 2, seconds=range(1, 400))
    hot = [model.read(after(second)).gpus[CONFIG.gpu_uuids[3]] for second in range(400, 800)]
    assert not any(reading.is_throttled for reading in cool)
    throttled = [reading for reading in hot if reading.is_throttled]
    assert throttled
    assert all(reading.sm_clock_hertz < 1_500_000_000 for reading in throttled)
    assert max(reading.temperature_celsius for reading in hot) < 95


def test_a_gpu_becomes_idle_when_its_workload_is_removed(model: SimulatedAppliance) -> None:
    model.add(training(0))
    readings(model, 0, seconds=range(1, 120))
    model.remove("train")
    [reading] = readings(model, 0, seconds=[600])
    assert reading.utilization_percent == 0
    assert reading.memory_used_bytes < GIB
    assert reading.temperature_celsius < 40


def test_the_host_follows_the_work(model: SimulatedAppliance) -> None:
    idle = model.read(after(1)).host
    model.add(training(0, 1))
    busy = [model.read(after(second)).host for second in range(2, 180)][-1]
    assert busy.cpu_percent > idle.cpu_percent + 5
    assert busy.memory_used_bytes > idle.memory_used_bytes + 60 * GIB
    assert busy.loads[0] > idle.loads[0] + 5
    assert busy.received_bytes_per_second > 100 * idle.received_bytes_per_second


def test_the_same_seed_gives_the_same_readings() -> None:
    first, second = (SimulatedAppliance(CONFIG, started_at=FIRST_AT) for _ in range(2))
    for model in (first, second):
        model.add(training(0, 3))
    assert [first.read(after(n)) for n in range(60)] == [second.read(after(n)) for n in range(60)]


def test_two_plugins_reading_at_one_instant_see_the_same(model: SimulatedAppliance) -> None:
    assert model.read(after(5)) is model.read(after(5))


def test_other_seeds_have_other_gpus() -> None:
    other = SimulationConfig(seed="acme/dgx-2")
    assert not set(other.gpu_uuids) & set(CONFIG.gpu_uuids)
    assert all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in other.gpu_uuids)


def test_outages_come_as_configured() -> None:
    config = SimulationConfig(seed="a", outage_every_seconds=600, outage_seconds=90)
    model = SimulatedAppliance(config, started_at=FIRST_AT)
    offline = [second for second in range(1200) if model.is_offline(after(second))]
    assert offline == [*range(510, 600), *range(1110, 1200)]


def test_outages_are_off_by_default(model: SimulatedAppliance) -> None:
    assert not any(model.is_offline(after(second)) for second in range(0, 86_400, 60))


def simulated_points(model: SimulatedAppliance) -> list[Point]:
    model.mig.set_mode(CONFIG.gpu_uuids[1], enabled=True)
    model.mig.create(CONFIG.gpu_uuids[1], "1g.10gb", 0)
    context = PluginContext(simulation=model)
    return [
        *SimulatedGPUPlugin(NoSettings(), context).gather(after(1)),
        *SimulatedHostPlugin(NoSettings(), context).gather(after(1)),
    ]


def declared_fields(name: str) -> set[str]:
    return {metric.name for metric in load_plugin_class(name).metrics}


def test_simulated_points_have_the_declared_fields_only(model: SimulatedAppliance) -> None:
    fields: dict[str, set[str]] = {}
    for point in simulated_points(model):
        fields.setdefault(point.measurement, set()).update(point.fields)
    on_gpus = [fields.pop(name) for name in ("gpu", "gpu_slice", "gpu_process", "gpu_xid")]
    assert set().union(*on_gpus) == declared_fields("simulated_gpu")
    assert fields.keys() == {
        "cpu",
        "memory",
        "swap",
        "load",
        "disk",
        "diskio",
        "network",
        "processes",
        "uptime",
    }
    assert set().union(*fields.values()) == declared_fields("simulated_host")


def test_a_field_has_the_type_that_the_real_plugin_gives_it(model: SimulatedAppliance) -> None:
    integers = {
        field
        for point in simulated_points(model)
        for field, value in point.fields.items()
        if isinstance(value, int)
    }
    assert integers == {
        "total_bytes",
        "used_bytes",
        "available_bytes",
        "cached_bytes",
        "free_bytes",
        "buffers_bytes",
        "slab_bytes",
        "shared_bytes",
        "dirty_bytes",
        "inodes_total",
        "inodes_used",
        "inodes_free",
        "in_flight",
        "total",
        "running",
        "blocked",
        "sleeping",
        "idle",
        "stopped",
        "zombies",
        "cpu_count",
        "threads",
        "memory_total_bytes",
        "memory_used_bytes",
        "memory_reserved_bytes",
        "memory_free_bytes",
        "sm_clock_hertz",
        "sm_clock_max_hertz",
        "memory_clock_hertz",
        "performance_state",
        "throttled",
        "throttled_by_heat",
        "throttled_by_power",
        "throttled_by_hardware",
        "clocks_idle",
        "pcie_generation",
        "pcie_generation_max",
        "pcie_width",
        "pcie_width_max",
        "link_up",
        "nvlinks",
        "nvlinks_active",
        "ecc_enabled",
        "ecc_corrected_volatile",
        "ecc_uncorrected_volatile",
        "remapped_rows_pending",
        "sram_ecc_corrected_aggregate",
        "sram_ecc_uncorrected_aggregate",
        "sram_ecc_threshold_exceeded",
        "fabric_registered",
        "fabric_degraded",
        "remapped_rows_failed",
        "lost",
        "mig_enabled",
        "multiprocessors",
        "processes",
        "events",
    }


def test_the_simulated_hosts_shares_and_states_add_up(model: SimulatedAppliance) -> None:
    model.add(training(0, 1, cpus=96))
    fields = {point.measurement: point.fields for point in simulated_points(model)}
    kinds = ("user", "nice", "system", "iowait", "irq", "softirq", "steal", "guest", "idle")
    cpu, processes = fields["cpu"], fields["processes"]
    assert sum(float(cpu[f"{kind}_percent"]) for kind in kinds) == pytest.approx(100, abs=0.01)
    states = ("running", "blocked", "sleeping", "idle", "stopped", "zombies")
    assert sum(int(processes[state]) for state in states) == processes["total"]
    assert float(fields["uptime"]["uptime_seconds"]) > 0


def test_an_appliance_that_is_not_simulated_has_nothing_to_read() -> None:
    with pytest.raises(PluginUnavailableError):
        SimulatedGPUPlugin(NoSettings(), PluginContext()).gather(FIRST_AT)
    with pytest.raises(PluginUnavailableError):
        SimulatedHostPlugin(NoSettings(), PluginContext()).gather(FIRST_AT)


def test_a_past_day_has_busy_and_idle_hours_and_ends_where_it_should() -> None:
    end_at = FIRST_AT + timedelta(days=1)
    step = timedelta(minutes=10)
    day, recent_at = (FIRST_AT, end_at), end_at - timedelta(hours=1)
    points = list(history(CONFIG, start_at=FIRST_AT, end_at=end_at, step=step))
    gpu0 = [
        point.fields["utilization_percent"]
        for point in points
        if point.measurement == "gpu" and point.tags["gpu"] == "0"
    ]
    assert len(gpu0) == 24 * 6
    assert 0 in gpu0
    assert max(gpu0) > 60  # type: ignore[operator] # floats by contract
    times = [point.time_ns for point in points]
    assert times == sorted(times)
    # The last hour alone shows the same workloads.
    part = history(CONFIG, start_at=recent_at, end_at=end_at, step=step, planned=day)
    assert [is_used(point) for point in part if point.measurement == "gpu"] == [
        is_used(point)
        for point in points
        if point.measurement == "gpu" and point.time_ns >= to_ns(recent_at)
    ]


def test_no_slow_value_jumps_between_two_parts_of_a_history() -> None:
    end_at, step = FIRST_AT + timedelta(hours=12), timedelta(seconds=30)

    def load15(start_at: datetime) -> list[float]:
        points = history(
            CONFIG, start_at=start_at, end_at=end_at, step=step, planned=(FIRST_AT, end_at)
        )
        recent_ns = to_ns(end_at - timedelta(hours=1))
        return [
            float(point.fields["load15"])
            for point in points
            if point.measurement == "load" and point.time_ns >= recent_ns
        ]

    complete, part = (load15(end_at - timedelta(hours=hours)) for hours in (9, 1))
    assert part == pytest.approx(complete, abs=0.5)
    assert max(complete) > 5


def is_used(point: Point) -> bool:
    return float(point.fields["utilization_percent"]) > 0


def test_a_new_appliance_goes_on_as_its_history_ends_until_jobs_take_its_gpus() -> None:
    end_at = FIRST_AT + timedelta(hours=12)
    points = history(CONFIG, start_at=FIRST_AT, end_at=end_at, step=timedelta(minutes=2))
    last = {point.tags["gpu"]: point.fields for point in points if point.measurement == "gpu"}
    model = SimulatedAppliance(CONFIG, started_at=end_at)
    continue_history(model, start_at=FIRST_AT, end_at=end_at)

    present = list(model.read(end_at + timedelta(seconds=5)).gpus.values())
    before = sum(float(fields["power_watts"]) for fields in last.values())
    assert sum(gpu.power_watts for gpu in present) == pytest.approx(before, rel=0.2)
    assert before > 300  # some GPUs work
    assert not any(gpu.is_held for gpu in present)

    model.add(training(0, started_at=end_at))
    assert [gpu.is_held for gpu in model.read(end_at + timedelta(seconds=10)).gpus.values()] == [
        index == 0 for index in range(CONFIG.gpu_count)
    ]
    later = model.read(end_at + LONGEST_REST).gpus.values()
    assert {gpu.utilization_percent for gpu in list(later)[1:]} == {0}
