"""Known GPUs and XIDs over restarts and reboots."""

from pathlib import Path

import pytest

from collector.health.gpus import accept_present_gpus
from collector.health.monitor import HealthMonitor
from protocol.health import HealthReason, HealthState
from tests.cast import NOON
from tests.unit.collector.health_builders import (
    OTHER_BOOT,
    eight,
    feed,
    first,
    gpu_point,
    inventory,
    monitor,
    reasons,
    xid_point,
)

__all__ = ["eight"]


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
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    health_monitor.observe([xid_point(79, index=0)], NOON)
    health_monitor.set_inventory(inventory(7))
    assert health_monitor.report(NOON).state is HealthState.DEGRADED

    assert [gpu.uuid for gpu in accept_present_gpus(tmp_path / "data")] == ["GPU-7"]
    health = health_monitor.report(NOON)
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
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    health_monitor.observe([xid_point(79)], NOON)

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory())
    assert reasons(restarted) == [HealthReason.XID_FATAL]
    rebooted = monitor(tmp_path, boot=OTHER_BOOT)
    rebooted.set_inventory(inventory())
    assert reasons(rebooted) == []


def test_xids_are_counted_except_those_of_applications(eight: HealthMonitor) -> None:
    feed(eight, [xid_point(31), xid_point(94), xid_point(94, 20)], until=20)
    [finding] = first(eight, 30).findings
    assert finding.detail.startswith("XID 94, 2 times since the boot, last at 2026-03-02 12:00:20")


@pytest.mark.parametrize("name", ["health.json", "known_gpus.json"])
def test_a_file_that_can_not_be_read_is_as_good_as_none(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b'{"boot')
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    assert health_monitor.report(NOON).state is HealthState.HEALTHY
    assert name in caplog.text


def test_an_unwritable_folder_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    health_monitor.observe([xid_point(79)], NOON)
    assert reasons(health_monitor) == [HealthReason.XID_FATAL]
    assert "can't write" in caplog.text


def test_a_bridge_that_was_up_once_is_missed_when_all_its_links_are_down(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path)
    health_monitor.observe([gpu_point(nvlinks=12, nvlinks_active=12)], NOON)
    health_monitor.set_inventory(inventory(1))
    health_monitor.report(NOON)

    restarted = monitor(tmp_path)
    restarted.set_inventory(inventory(1))
    restarted.observe([gpu_point(nvlinks=12, nvlinks_active=0)], NOON)
    assert reasons(restarted) == [HealthReason.NVLINK_DOWN]
