"""The monitor: points in, judgement out, and what it remembers over restarts and reboots."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from collector.health.known_gpus import accept_present_gpus
from collector.health.monitor import HealthMonitor
from collector.inventory import simulated_inventory
from jobqueue.executors.health import GPUHealth, HealthReason, HealthState
from plugins.base import PluginContext
from plugins.simulated_gpu.reader import SimulatedGPUConfig, SimulatedGPUPlugin
from plugins.simulation.appliance import SimulatedAppliance, Workload
from plugins.simulation.config import SimulationConfig
from tests.cast import NOON
from tests.unit.collector.health_builders import (
    GIB,
    OTHER_BOOT,
    after,
    gpu_point,
    inventory,
    monitor,
    process_point,
    xid_point,
)
from timeseries.points import Point

BUSY_PERCENT = 98.0


@pytest.fixture
def eight(tmp_path: Path) -> HealthMonitor:
    """A server of eight GPUs that was just read for the first time."""
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    found.observe([gpu_point(index=index) for index in range(8)], NOON)
    return found


def feed(found: HealthMonitor, points: Iterable[Point], *, until: float) -> None:
    found.observe(points, after(until))


def first(found: HealthMonitor, seconds: float = 0.0) -> GPUHealth:
    return found.report(after(seconds)).gpus[0]


def reasons(found: HealthMonitor, seconds: float = 0.0) -> list[str]:
    return [finding.reason for finding in first(found, seconds).findings]


def test_eight_gpus_in_order_are_healthy_and_flagship(eight: HealthMonitor) -> None:
    health = eight.report(NOON)
    assert (health.state, health.appliance_class) == (HealthState.HEALTHY, "8 x flagship")
    assert [(gpu.index, gpu.uuid, gpu.tier) for gpu in health.gpus][:2] == [
        (0, "GPU-0", "flagship"),
        (1, "GPU-1", "flagship"),
    ]


def test_a_lost_gpu_fails_and_the_others_go_on(eight: HealthMonitor) -> None:
    feed(eight, [gpu_point(10, 0, lost=1), gpu_point(10, 1, lost=0)], until=10)
    health = eight.report(after(10))
    assert [gpu.state for gpu in health.gpus[:2]] == [HealthState.FAILED, HealthState.HEALTHY]
    assert health.state is HealthState.DEGRADED


def test_a_lost_gpu_that_left_the_inventory_is_lost_and_not_missing(eight: HealthMonitor) -> None:
    feed(eight, [gpu_point(10, 7, lost=1)], until=10)
    eight.set_inventory(inventory(7))
    health = eight.report(after(10))
    assert [finding.reason for finding in health.gpus[7].findings] == [HealthReason.LOST]


def test_a_lost_gpu_that_can_not_say_its_uuid_is_known_by_its_index(tmp_path: Path) -> None:
    before = monitor(tmp_path)
    before.set_inventory(inventory())
    before.report(NOON)

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory(7))
    restarted.observe([Point("gpu", {"gpu": "7"}, {"lost": 1}, 1)], NOON)
    lost = restarted.report(NOON).gpus[7]
    assert (lost.uuid, [one.reason for one in lost.findings]) == ("GPU-7", [HealthReason.LOST])


def test_a_gpu_that_was_here_before_a_restart_is_missed(tmp_path: Path) -> None:
    before = monitor(tmp_path)
    before.set_inventory(inventory())
    before.report(NOON)

    restarted = monitor(tmp_path, boot=OTHER_BOOT)
    restarted.set_inventory(inventory(7))
    missing = restarted.report(NOON).gpus[7]
    assert (missing.uuid, missing.state) == ("GPU-7", HealthState.FAILED)
    assert [finding.reason for finding in missing.findings] == [HealthReason.MISSING]


def test_before_the_first_inventory_nothing_is_missing(tmp_path: Path) -> None:
    before = monitor(tmp_path)
    before.set_inventory(inventory())
    before.report(NOON)
    assert monitor(tmp_path).report(NOON).state is HealthState.HEALTHY


def test_accepting_makes_the_present_gpus_all_there_are(tmp_path: Path) -> None:
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    found.observe([xid_point(79, index=0)], NOON)
    found.set_inventory(inventory(7))
    assert found.report(NOON).state is HealthState.DEGRADED

    assert [gpu.uuid for gpu in accept_present_gpus(tmp_path / "data")] == ["GPU-7"]
    health = found.report(NOON)
    assert (health.state, len(health.gpus)) == (HealthState.HEALTHY, 7)
    assert accept_present_gpus(tmp_path / "data") == []


def test_accepting_is_obeyed_by_an_agent_that_starts_later(tmp_path: Path) -> None:
    before = monitor(tmp_path)
    before.set_inventory(inventory())
    before.report(NOON)
    accept_present_gpus(tmp_path / "data")

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory(7))
    assert len(restarted.report(NOON).gpus) == 7


def test_a_restart_of_the_agent_heals_no_gpu_and_a_reboot_does(tmp_path: Path) -> None:
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    found.observe([xid_point(79)], NOON)

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory())
    assert reasons(restarted) == [HealthReason.XID_FATAL]
    rebooted = monitor(tmp_path, boot=OTHER_BOOT)
    rebooted.set_inventory(inventory())
    assert reasons(rebooted) == []


def test_an_xid_is_counted_and_an_applications_is_not_kept(eight: HealthMonitor) -> None:
    feed(eight, [xid_point(31), xid_point(94), xid_point(94, 20)], until=20)
    [finding] = first(eight, 30).findings
    assert finding.detail.startswith("XID 94, 2 times since the boot, last at 2026-03-02 12:00:20")


@pytest.mark.parametrize("name", ["health.json", "known_gpus.json"])
def test_a_file_that_can_not_be_read_is_as_good_as_none(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b'{"boot')
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    assert found.report(NOON).state is HealthState.HEALTHY
    assert name in caplog.text


def test_a_folder_that_takes_no_writes_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    found.observe([xid_point(79)], NOON)
    assert reasons(found) == [HealthReason.XID_FATAL]
    assert "can't be written" in caplog.text


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


def test_a_counter_that_began_anew_counts_from_zero(eight: HealthMonitor) -> None:
    counts = {0: 5000, 600: 120}
    feed(eight, [gpu_point(s, ecc_corrected_volatile=n) for s, n in counts.items()], until=600)
    assert reasons(eight, 600) == [HealthReason.ECC_CORRECTED]


def test_a_pcie_link_may_slow_down_while_idle_but_not_under_load(eight: HealthMonitor) -> None:
    def linked(seconds: int, use: float, generation: int) -> Point:
        return gpu_point(seconds, utilization_percent=use, pcie_generation=generation,
                         pcie_generation_max=5)  # fmt: skip

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
    assert finding.detail == "A program of the host that runs no job holds 4 GiB of its memory."


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


def test_a_bridge_that_was_up_once_is_missed_when_all_its_links_are_down(tmp_path: Path) -> None:
    found = monitor(tmp_path)
    found.observe([gpu_point(nvlinks=12, nvlinks_active=12)], NOON)
    found.set_inventory(inventory(1))
    found.report(NOON)

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory(1))
    restarted.observe([gpu_point(nvlinks=12, nvlinks_active=0)], NOON)
    assert reasons(restarted) == [HealthReason.NVLINK_DOWN]


def test_silence_of_all_gpus_for_a_minute_fails_the_appliance(eight: HealthMonitor) -> None:
    assert eight.report(after(59)).state is HealthState.HEALTHY
    health = eight.report(after(60))
    assert health.state is HealthState.FAILED
    assert [finding.reason for finding in health.findings] == [HealthReason.DRIVER_SILENT]


def test_rare_readings_are_given_three_intervals(tmp_path: Path) -> None:
    found = monitor(tmp_path, gpu_interval_seconds=60.0)
    found.set_inventory(inventory())
    found.observe([gpu_point()], NOON)
    assert found.report(after(179)).state is HealthState.HEALTHY
    assert found.report(after(180)).state is HealthState.FAILED


def test_gpus_that_never_speak_are_silent_from_the_first_question_on(tmp_path: Path) -> None:
    found = monitor(tmp_path)
    found.set_inventory(inventory())
    assert found.report(after(1000)).state is HealthState.HEALTHY
    assert found.report(after(1060)).state is HealthState.FAILED


def test_where_no_plugin_reads_gpus_their_silence_means_nothing(tmp_path: Path) -> None:
    found = monitor(tmp_path, gpu_interval_seconds=None)
    found.set_inventory(inventory())
    found.report(NOON)
    assert found.report(after(3600)).state is HealthState.HEALTHY


def test_a_full_disk_is_a_finding_until_it_is_read_emptier(eight: HealthMonitor) -> None:
    def disk(percent: float) -> Point:
        return Point("disk", {"mount": "/data"}, {"used_percent": percent}, 1)

    eight.observe([disk(96.5)], NOON)
    assert [one.reason for one in eight.report(NOON).findings] == [HealthReason.DISK_FULL]
    eight.observe([disk(60.0)], NOON)
    assert eight.report(NOON).findings == []


def test_the_points_say_state_and_findings_by_gpu_and_by_appliance(tmp_path: Path) -> None:
    found = monitor(tmp_path, job_of_gpu=lambda: {"GPU-1": "job-7"})
    found.set_inventory(inventory(2))
    found.observe([gpu_point(lost=1), xid_point(79), gpu_point(index=1)], NOON)
    whole, lost, fine = found.points(NOON)
    assert (whole.measurement, whole.tags) == ("gpu_health", {})
    assert whole.fields == {"state": 1, "findings": 3}
    assert (lost.tags, lost.fields) == (
        {"gpu": "0", "uuid": "GPU-0"},
        {"state": 2, "findings": 2},
    )
    assert (fine.tags, fine.fields) == (
        {"gpu": "1", "uuid": "GPU-1", "job": "job-7"},
        {"state": 0, "findings": 0},
    )


def test_points_that_are_not_understood_are_passed_over(eight: HealthMonitor) -> None:
    odd = [
        Point("gpu_xid", {"uuid": "GPU-0", "xid": "lost"}, {"events": 1}, 1),
        Point("gpu", {}, {"utilization_percent": 1.0}, 1),
        Point("disk", {}, {"used_percent": "full"}, 1),
        Point("cpu", {}, {"usage_percent": 100.0}, 1),
    ]
    eight.observe(odd, NOON)
    assert eight.report(NOON).state is HealthState.HEALTHY


def test_the_simulated_hot_gpu_is_found_and_classed_lower_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    config = SimulationConfig(seed="acme/dgx-02", hot_gpu=3)
    model = SimulatedAppliance(config, started_at=NOON)
    model.add(Workload(workload_id="train", gpu_uuids=config.gpu_uuids, started_at=NOON))
    plugin = SimulatedGPUPlugin(SimulatedGPUConfig(), PluginContext(simulation=model))
    found = monitor(tmp_path)
    found.set_inventory(simulated_inventory(config))
    for seconds in range(0, 1800, 10):
        found.observe(plugin.gather(after(seconds)), after(seconds))
    gpus = found.report(after(1800)).gpus
    assert [finding.reason for finding in gpus[3].findings] == [HealthReason.THROTTLED_BY_HEAT]
    assert [gpu.tier for gpu in gpus[2:4]] == ["flagship", "performance"]
    assert {gpu.state for gpu in gpus if gpu.index != 3} == {HealthState.HEALTHY}
