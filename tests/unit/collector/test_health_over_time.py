"""Conditions that must last before they are findings: heat, errors, foreign programs, silence."""

from dataclasses import replace
from pathlib import Path

from collector.health.monitor import HealthMonitor
from collector.inventory import simulated_inventory
from plugins.base import NoSettings, PluginContext
from plugins.simulated_gpu.reader import SimulatedGPUPlugin
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig, Workload
from protocol.health import HealthReason, HealthState
from tests.cast import NOON
from tests.unit.collector.health_builders import (
    GIB,
    after,
    eight,
    feed,
    first,
    gpu_point,
    inventory,
    monitor,
    process_point,
    reasons,
)
from timeseries.points import Point

__all__ = ["eight"]

BUSY_PERCENT = 98.0


def test_five_minutes_of_heat_are_a_finding_and_it_ends_ten_minutes_later(
    eight: HealthMonitor,
) -> None:
    hot = [gpu_point(seconds, throttled_by_heat=1) for seconds in range(10, 310, 10)]
    feed(eight, hot[:-1], until=299)
    assert reasons(eight, 299) == []
    feed(eight, hot[-1:], until=300)
    assert reasons(eight, 300) == [HealthReason.THROTTLED_BY_HEAT]
    cool = [gpu_point(seconds, throttled_by_heat=0) for seconds in range(310, 1000, 10)]
    feed(eight, cool, until=1000)
    assert reasons(eight, 1000) == []


def test_a_gpu_that_throttles_on_and_off_stays_degraded_until_it_is_well_below(
    eight: HealthMonitor,
) -> None:
    def throttled(share: float, since: int, until: int) -> list[Point]:
        """Points every 10 s, of which this share of each minute is throttled."""
        return [
            gpu_point(seconds, throttled_by_heat=int(seconds % 60 < share * 60))
            for seconds in range(since, until, 10)
        ]

    feed(eight, throttled(1.0, 10, 400), until=400)
    assert reasons(eight, 400) == [HealthReason.THROTTLED_BY_HEAT]
    feed(eight, throttled(0.3, 400, 1600), until=1600)
    assert reasons(eight, 1600) == [HealthReason.THROTTLED_BY_HEAT]
    feed(eight, throttled(0.1, 1600, 2800), until=2800)
    assert reasons(eight, 2800) == []
    feed(eight, throttled(0.3, 2800, 4000), until=4000)
    assert reasons(eight, 4000) == []


def test_a_gap_in_the_readings_is_no_time_under_throttling(eight: HealthMonitor) -> None:
    feed(eight, [gpu_point(900, throttled_by_hardware=1)], until=900)
    assert reasons(eight, 900) == []


def test_a_hundred_corrected_errors_within_an_hour_are_a_finding(eight: HealthMonitor) -> None:
    counts = {0: 5000, 600: 5060, 1200: 5099}
    feed(eight, [gpu_point(s, ecc_corrected_volatile=n) for s, n in counts.items()], until=1200)
    assert reasons(eight, 1200) == []
    feed(eight, [gpu_point(1800, ecc_corrected_volatile=5100)], until=1800)
    assert reasons(eight, 1800) == [HealthReason.ECC_CORRECTED]
    assert reasons(eight, 7200) == []


def test_errors_of_links_count_within_an_hour(eight: HealthMonitor) -> None:
    counts = {0: 7, 600: 60, 1200: 107}
    feed(eight, [gpu_point(s, nvlink_errors=n) for s, n in counts.items()], until=1200)
    assert reasons(eight, 1200) == [HealthReason.NVLINK_ERRORS]
    assert reasons(eight, 6000) == []


def test_a_counter_that_was_reset_counts_from_zero(eight: HealthMonitor) -> None:
    counts = {0: 5000, 600: 120}
    feed(eight, [gpu_point(s, ecc_corrected_volatile=n) for s, n in counts.items()], until=600)
    assert reasons(eight, 600) == [HealthReason.ECC_CORRECTED]


def test_a_pcie_link_may_slow_down_while_idle_but_not_under_load(eight: HealthMonitor) -> None:
    def linked(seconds: int, use: float, generation: int) -> Point:
        return gpu_point(
            seconds, utilization_percent=use, pcie_generation=generation, pcie_generation_max=5
        )

    idle = [linked(s, 0.0, 1) for s in range(10, 310, 10)]
    feed(eight, idle, until=300)
    assert reasons(eight, 300) == []
    loaded = [linked(s, BUSY_PERCENT, 1) for s in range(310, 380, 10)]
    feed(eight, loaded, until=380)
    assert reasons(eight, 380) == [HealthReason.PCIE_DEGRADED]
    feed(eight, [linked(390, BUSY_PERCENT, 5)], until=390)
    assert reasons(eight, 390) == []


def test_a_foreign_program_is_a_finding_after_a_minute_and_until_it_is_gone(
    eight: HealthMonitor,
) -> None:
    uses = [process_point(s, used=4 * GIB) for s in range(0, 80, 10)]
    feed(eight, uses[:7], until=60)
    assert reasons(eight, 60) == []
    feed(eight, uses[7:], until=70)
    assert reasons(eight, 70) == [HealthReason.EXTERNAL_PROCESS]
    assert reasons(eight, 300) == []


def test_of_several_foreign_programs_none_hides_that_another_lasts(eight: HealthMonitor) -> None:
    for second in range(0, 80, 10):
        passing = {"owner": "container", "container": f"c{second}"}
        host = process_point(second, used=4 * GIB)
        other = replace(host, tags={**host.tags, **passing})
        feed(eight, [host, other], until=second)
    [finding] = first(eight, 70).findings
    assert "host process" in finding.detail
    assert "4 GiB" in finding.detail


def test_a_foreign_program_on_a_slice_is_its_gpus_finding(eight: HealthMonitor) -> None:
    use = [process_point(seconds, used=GIB, uuid="MIG-0-3") for seconds in (0, 30, 61)]
    feed(eight, use, until=61)
    assert reasons(eight, 61) == [HealthReason.EXTERNAL_PROCESS]
    assert len(eight.report(after(61)).gpus) == 8


def test_jobs_and_small_programs_are_no_finding(eight: HealthMonitor) -> None:
    jobs = [process_point(s, used=40 * GIB, owner="job") for s in range(0, 200, 10)]
    small = [process_point(s, used=256 * 1024**2) for s in range(0, 200, 10)]
    feed(eight, [*jobs, *small], until=200)
    assert reasons(eight, 200) == []


def test_a_gpu_that_ran_slowly_for_an_hour_is_a_tier_lower(eight: HealthMonitor) -> None:
    readings = [
        gpu_point(s, utilization_percent=BUSY_PERCENT, sm_clock_hertz=1_155_000_000)
        for s in range(0, 600, 10)
    ]
    feed(eight, readings[:-6], until=530)
    assert first(eight, 530).tier == "flagship"
    feed(eight, readings[-6:], until=590)
    assert first(eight, 590).tier == "performance"


def test_silence_of_all_gpus_for_a_minute_fails_the_appliance(eight: HealthMonitor) -> None:
    assert eight.report(after(59)).state is HealthState.HEALTHY
    health = eight.report(after(60))
    assert health.state is HealthState.FAILED
    assert [finding.reason for finding in health.findings] == [HealthReason.DRIVER_SILENT]


def test_rare_readings_are_given_three_intervals(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path, gpu_interval_seconds=60.0)
    health_monitor.set_inventory(inventory())
    health_monitor.observe([gpu_point()], NOON)
    assert health_monitor.report(after(179)).state is HealthState.HEALTHY
    assert health_monitor.report(after(180)).state is HealthState.FAILED


def test_gpus_without_readings_are_silent_from_the_first_evaluation(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    assert health_monitor.report(after(1000)).state is HealthState.HEALTHY
    assert health_monitor.report(after(1060)).state is HealthState.FAILED


def test_where_no_plugin_reads_gpus_their_silence_means_nothing(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path, gpu_interval_seconds=None)
    health_monitor.set_inventory(inventory())
    health_monitor.report(NOON)
    assert health_monitor.report(after(3600)).state is HealthState.HEALTHY


def test_a_full_disk_is_a_finding_until_it_is_read_emptier(eight: HealthMonitor) -> None:
    def disk(percent: float) -> Point:
        return Point("disk", {"mount": "/data"}, {"used_percent": percent}, 1)

    eight.observe([disk(96.5)], NOON)
    assert [finding.reason for finding in eight.report(NOON).findings] == [HealthReason.DISK_FULL]
    eight.observe([disk(60.0)], NOON)
    assert eight.report(NOON).findings == []


def test_the_simulated_hot_gpu_is_found_and_classed_lower_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    config = SimulationConfig(seed="acme/dgx-02", hot_gpu=3)
    model = SimulatedAppliance(config, started_at=NOON)
    model.add(Workload(workload_id="train", gpu_uuids=config.gpu_uuids, started_at=NOON))
    plugin = SimulatedGPUPlugin(NoSettings(), PluginContext(simulation=model))
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(simulated_inventory(config))
    for seconds in range(0, 1800, 10):
        health_monitor.observe(plugin.gather(after(seconds)), after(seconds))
    gpus = health_monitor.report(after(1800)).gpus
    assert [finding.reason for finding in gpus[3].findings] == [HealthReason.THROTTLED_BY_HEAT]
    assert [gpu.tier for gpu in gpus[2:4]] == ["flagship", "performance"]
    assert {gpu.state for gpu in gpus if gpu.index != 3} == {HealthState.HEALTHY}
