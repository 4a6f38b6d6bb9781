"""The monitor: points in, judgment out; lost GPUs, and what it gives as samples."""

from pathlib import Path

import pytest

from collector.health.monitor import HealthMonitor
from protocol.health import HealthReason, HealthState
from tests.cast import NOON
from tests.unit.collector.health_builders import (
    after,
    eight,
    feed,
    gpu_point,
    inventory,
    monitor,
    xid_point,
)
from timeseries.points import Point

__all__ = ["eight"]


def test_eight_gpus_in_order_are_healthy_and_flagship(eight: HealthMonitor) -> None:
    health = eight.report(NOON)
    assert (health.state, health.appliance_class) == (HealthState.HEALTHY, "8 x flagship")
    assert [(gpu.index, gpu.uuid, gpu.tier) for gpu in health.gpus][:2] == [
        (0, "GPU-0", "flagship"),
        (1, "GPU-1", "flagship"),
    ]


def test_a_lost_gpu_fails_and_the_others_stay_healthy(eight: HealthMonitor) -> None:
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
    assert (lost.uuid, [finding.reason for finding in lost.findings]) == (
        "GPU-7",
        [HealthReason.LOST],
    )


def test_a_lost_gpu_that_nobody_knows_fails_by_its_index(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory(7))
    health_monitor.observe([Point("gpu", {"gpu": "7"}, {"lost": 1}, 1)], NOON)
    health = health_monitor.report(NOON)
    assert [gpu.index for gpu in health.gpus if gpu.state is HealthState.FAILED] == [7]
    assert health.findings[0].detail == "1 of 8 GPUs failed: GPU 7 (lost)."


@pytest.mark.parametrize("tags", [{}, {"uuid": "PCI-0000:db:00.0"}])
def test_a_gpu_that_answers_again_is_the_one_that_could_not_say_its_uuid(
    tmp_path: Path, tags: dict[str, str]
) -> None:
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory(7))
    health_monitor.observe([Point("gpu", {"gpu": "7"} | tags, {"lost": 1}, 1)], NOON)
    health_monitor.observe([gpu_point(index=7, seconds=10)], after(10))
    health_monitor.set_inventory(inventory(8))
    health = health_monitor.report(after(10))
    assert (health.state, len(health.gpus)) == (HealthState.HEALTHY, 8)


def test_the_tags_of_gpus_that_do_not_answer_are_known_by_index(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    assert health_monitor.known_gpus() == {}
    health_monitor.set_inventory(inventory(7))
    assert health_monitor.known_gpus() == {"7": {"uuid": "GPU-7", "model": "NVIDIA H100 80GB HBM3"}}


def test_the_points_say_state_and_findings_by_gpu_and_by_appliance(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path, job_of_gpu=lambda: {"GPU-1": "job-7"})
    health_monitor.set_inventory(inventory(2))
    health_monitor.observe([gpu_point(lost=1), xid_point(79), gpu_point(index=1)], NOON)
    appliance, lost, fine = health_monitor.points(NOON)
    assert (appliance.measurement, appliance.tags) == ("gpu_health", {})
    assert appliance.fields == {"state": 1, "findings": 3, "gpus_missing": 0}
    assert (lost.tags, lost.fields) == (
        {"gpu": "0", "uuid": "GPU-0"},
        {"state": 2, "findings": 2},
    )
    assert (fine.tags, fine.fields) == (
        {"gpu": "1", "uuid": "GPU-1", "job": "job-7"},
        {"state": 0, "findings": 0},
    )


def test_gpus_that_the_inventory_lacks_are_counted_as_missing(tmp_path: Path) -> None:
    health_monitor = monitor(tmp_path)
    for listed in (inventory(8), inventory(6)):
        health_monitor.set_inventory(listed)
    assert health_monitor.points(NOON)[0].fields["gpus_missing"] == 2


def test_points_that_are_not_understood_are_passed_over(eight: HealthMonitor) -> None:
    odd = [
        Point("gpu_xid", {"uuid": "GPU-0", "xid": "lost"}, {"events": 1}, 1),
        Point("gpu", {}, {"utilization_percent": 1.0}, 1),
        Point("disk", {}, {"used_percent": "full"}, 1),
        Point("cpu", {}, {"usage_percent": 100.0}, 1),
    ]
    eight.observe(odd, NOON)
    assert eight.report(NOON).state is HealthState.HEALTHY
