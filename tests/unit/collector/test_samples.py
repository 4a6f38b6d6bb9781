"""From points to the buffer: flushed in time, from any thread, and never twice."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.own_metrics import ProcessUsage, process_cpu_seconds, resident_bytes
from collector.samples import SampleWriter
from tests.unit.collector.hand_clock import HandClock
from timeseries.points import Point

POINT = Point("cpu", {}, {"usage_percent": 1.0}, 1_772_366_400_000_000_000)


@pytest.fixture
def flow(buffer: DiskBuffer, hand_clock: HandClock) -> SampleWriter:
    return SampleWriter(buffer, flush_interval_seconds=5.0, monotonic=hand_clock.seconds)


def test_points_are_flushed_at_the_interval(
    flow: SampleWriter, buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    assert flow.flush_when_due() == 5.0
    flow.add([POINT])
    hand_clock.advance(3)
    assert flow.flush_when_due() == 2.0
    assert buffer.points == 0
    hand_clock.advance(2)
    flow.flush_when_due()
    assert buffer.points == 1


def test_a_flush_that_is_nearly_due_is_done_with_the_readings(
    flow: SampleWriter, buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    flow.flush_when_due()
    flow.add([POINT])
    hand_clock.advance(4.9)
    assert flow.flush_when_due() == 5.0
    assert buffer.points == 1


def test_no_point_is_lost_or_doubled_between_threads(
    flow: SampleWriter, buffer: DiskBuffer
) -> None:
    def add() -> None:
        for _ in range(500):
            flow.add([POINT])

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        flow.flush()
    flow.flush()
    assert buffer.points == 2000


def test_a_point_that_can_not_be_written_does_not_take_the_others_with_it(
    flow: SampleWriter, buffer: DiskBuffer
) -> None:
    bad = Point("cpu", {}, {"usage_percent": float("nan")}, POINT.time_ns)
    flow.add([POINT, bad, POINT])
    flow.flush()
    assert buffer.points == 2


@pytest.mark.parametrize(
    "fields", [{"v": None}, {"v": [1]}, {"v": {}}, {}, {"v": 2**70}, {"v": "\ud800"}]
)
def test_a_plugin_with_invalid_points_loses_no_other_plugins_samples(
    flow: SampleWriter,
    buffer: DiskBuffer,
    fields: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow.add([POINT, Point("foreign", {}, fields, POINT.time_ns), POINT])
    flow.add([Point("foreign", {"n": 5}, {"v": 1}, POINT.time_ns)])  # type: ignore[dict-item] # as read
    flow.flush()
    assert buffer.points == 2
    assert "dropped 2 invalid points, the first: " in caplog.text
    assert "foreign" in caplog.text


def test_the_agents_cpu_time_includes_its_workers(tmp_path: Path) -> None:
    del tmp_path
    usage = ProcessUsage(lambda: [1, 2**22 + 1])
    fields = usage.fields()
    assert fields["cpu_percent"] >= 0.0
    assert fields["resident_bytes"] == pytest.approx(resident_bytes(), rel=0.2)
    assert process_cpu_seconds(2**22 + 1) == 0.0
    assert process_cpu_seconds(1) > 0.0
