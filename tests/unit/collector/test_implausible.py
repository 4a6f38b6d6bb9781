"""Readings that can't be true reach neither buffer nor health; they are counted and listed."""

import json
import math
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from collector.buffering.buffer import DiskBuffer
from collector.implausible import implausible_fields
from collector.samples import SampleWriter
from protocol.health import (
    MAX_IMPLAUSIBLE_READINGS,
    ApplianceHealth,
    HealthState,
    ImplausibleReading,
)
from tests.unit.collector.hand_clock import HandClock
from timeseries.points import FieldValue, Point

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_NS = 1_772_366_400_000_000_000


def gpu_point(watts: float, *, index: int = 3, at_ns: int = NOON_NS) -> Point:
    tags = {"gpu": str(index), "uuid": f"GPU-{index}", "model": "H100"}
    return Point("gpu", tags, {"power_watts": watts, "lost": 0}, at_ns)


def writer(buffer: DiskBuffer, hand_clock: HandClock) -> SampleWriter:
    return SampleWriter(buffer, flush_interval_seconds=5.0, monotonic=hand_clock.seconds)


@pytest.mark.parametrize(
    ("measurement", "fields", "implausible"),
    [
        ("gpu", {"utilization_percent": 4294967295}, {"utilization_percent"}),
        ("gpu", {"power_watts": 4294967.295, "lost": 0}, {"power_watts"}),
        ("gpu", {"temperature_celsius": 255.0}, {"temperature_celsius"}),
        ("gpu", {"temperature_celsius": math.nan}, {"temperature_celsius"}),
        ("gpu", {"memory_total_bytes": 10, "memory_free_bytes": 11}, {"memory_free_bytes"}),
        ("diskio", {"in_flight": -1}, {"in_flight"}),
        ("memory", {"total_bytes": 100, "available_bytes": 101}, {"available_bytes"}),
        ("memory", {"total_bytes": 100, "used_bytes": -1}, {"used_bytes"}),
        ("swap", {"total_bytes": 0, "free_bytes": 2**64 - 4}, {"free_bytes"}),
        ("swap", {"total_bytes": 0, "free_bytes": 4}, {"free_bytes"}),
        ("disk", {"inodes_total": 5, "inodes_free": 6}, {"inodes_free"}),
        ("weather", {"power_watts": 4294967.295}, set()),
        ("gpu", {"power_watts": "ok", "own_percent": 4294967295}, set()),
        ("container", {"cpu_percent": 6400.0}, set()),
        ("appliance_status", {"clock_offset_seconds": -3.5}, set()),
    ],
)
def test_a_value_out_of_its_metrics_range_or_above_its_whole_is_implausible(
    measurement: str, fields: dict[str, FieldValue], implausible: set[str]
) -> None:
    assert set(implausible_fields(measurement, fields)) == implausible


def test_what_cant_be_true_is_dropped_and_the_rest_of_the_point_stays(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    samples = writer(buffer, hand_clock)
    disk_point = Point("diskio", {"device": "sda"}, {"in_flight": -1}, NOON_NS)
    added = samples.add([gpu_point(300.0), gpu_point(4294967.295), disk_point])
    assert [dict(point.fields) for point in added] == [
        {"power_watts": 300.0, "lost": 0},
        {"lost": 0},
    ]
    samples.flush()
    assert buffer.points == 2
    assert samples.implausible.count == 2


def test_what_was_dropped_is_listed_with_series_value_count_and_time(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    samples = writer(buffer, hand_clock)
    later_ns = NOON_NS + 10 * 10**9
    samples.add([gpu_point(4294967.295), gpu_point(-1.0, at_ns=later_ns), gpu_point(-2.0, index=5)])
    assert samples.implausible.readings() == [
        ImplausibleReading(
            metric="gpu.power_watts",
            series="gpu=5",
            value="-2.0",
            detail="outside 0 to 50,000",
            count=1,
            last_at=NOON,
        ),
        ImplausibleReading(
            metric="gpu.power_watts",
            series="gpu=3",
            value="-1.0",
            detail="outside 0 to 50,000",
            count=2,
            last_at=NOON + timedelta(seconds=10),
        ),
    ]


def test_the_list_is_bounded_and_older_agents_send_none(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    samples = writer(buffer, hand_clock)
    twice = 2 * MAX_IMPLAUSIBLE_READINGS
    samples.add(gpu_point(float("inf"), index=number) for number in range(twice))
    readings = samples.implausible.readings()
    assert len(readings) == MAX_IMPLAUSIBLE_READINGS
    assert readings[0].series == f"gpu={twice - 1}"
    assert samples.implausible.count == twice
    health = ApplianceHealth(state=HealthState.HEALTHY, implausible_readings=readings)
    body = msgspec.json.encode(health)
    assert msgspec.json.decode(body, type=ApplianceHealth) == health
    older = {name: value for name, value in json.loads(body).items() if "implausible" not in name}
    assert msgspec.convert(older, ApplianceHealth).implausible_readings == []
