"""The buffer on disk: order, restarts, damage, bounds, and a disk that is full."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.buffer import DiskBuffer
from collector.frames import Frame
from core.clock import to_ns
from tests.unit.collector.conftest import HandClock

START_NS = to_ns(HandClock().now)


def frame(text: str, *, points: int = 1, time_ns: int = START_NS) -> Frame:
    return Frame(text.encode(), points, time_ns)


def reopened(tmp_path: Path, clock: HandClock, *, max_bytes: int = 1_000_000) -> DiskBuffer:
    return DiskBuffer(tmp_path / "buffer", max_bytes=max_bytes, max_age_seconds=3600, clock=clock)


def refuse(*_: object) -> int:
    """Write as on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def drain(buffer: DiskBuffer) -> list[str]:
    texts = []
    while (batch := buffer.read()) is not None:
        texts += [one.payload.decode() for one in batch.frames]
        buffer.acknowledge(batch)
    return texts


def test_frames_come_back_in_order(buffer: DiskBuffer) -> None:
    for number in range(5):
        buffer.append(frame(f"m v={number}"))
    assert drain(buffer) == [f"m v={number}" for number in range(5)]


def test_an_empty_buffer_gives_no_batch(buffer: DiskBuffer) -> None:
    assert buffer.read() is None


def test_a_batch_that_is_not_acknowledged_is_read_again(buffer: DiskBuffer) -> None:
    buffer.append(frame("m v=1"))
    assert buffer.read() == buffer.read()


def test_a_batch_holds_no_more_points_than_asked_for(buffer: DiskBuffer) -> None:
    for number in range(5):
        buffer.append(frame(f"m v={number}", points=40))
    batch = buffer.read(max_points=100)
    assert batch is not None
    assert batch.points == 80


def test_a_frame_larger_than_a_batch_is_read_alone(buffer: DiskBuffer) -> None:
    buffer.append(frame("m v=1", points=400))
    batch = buffer.read(max_points=100)
    assert batch is not None
    assert batch.points == 400


def test_points_waiting_are_counted(buffer: DiskBuffer) -> None:
    buffer.append(frame("m v=1", points=3))
    buffer.append(frame("m v=2", points=4))
    assert buffer.points == 7
    drain(buffer)
    assert buffer.points == 0


def test_frames_outlive_the_process(tmp_path: Path, hand_clock: HandClock) -> None:
    reopened(tmp_path, hand_clock).append(frame("m v=1", points=3))
    again = reopened(tmp_path, hand_clock)
    assert again.points == 3
    assert drain(again) == ["m v=1"]


def test_what_was_acknowledged_is_not_sent_after_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    first = reopened(tmp_path, hand_clock)
    for number in range(4):
        first.append(frame(f"m v={number}", points=50))
    batch = first.read(max_points=100)
    assert batch is not None
    first.acknowledge(batch)
    again = reopened(tmp_path, hand_clock)
    assert again.points == 100
    assert drain(again) == ["m v=2", "m v=3"]


def test_nothing_flushed_is_lost_when_the_process_is_killed(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from collector.buffer import DiskBuffer\n"
        "from collector.frames import Frame\n"
        "from core.clock import utc_now\n"
        "buffer = DiskBuffer(Path(sys.argv[1]), max_bytes=10**6, max_age_seconds=10**9,"
        " clock=utc_now)\n"
        "for number in range(100):\n"
        f"    buffer.append(Frame(b'm v=%d' % number, 1, {START_NS}))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "buffer")],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert killed.returncode == -9
    assert drain(reopened(tmp_path, hand_clock)) == [f"m v={number}" for number in range(100)]


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_tail_cut_by_a_crash_is_set_aside_and_the_rest_survives(
    tmp_path: Path, hand_clock: HandClock, cut: int
) -> None:
    first = reopened(tmp_path, hand_clock)
    for number in range(3):
        first.append(frame(f"m v={number}"))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    os.truncate(segment, segment.stat().st_size - cut)
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=0", "m v=1"]
    assert len(list((tmp_path / "buffer").glob("*.damaged-*"))) == 1


def test_a_damaged_byte_costs_only_what_follows_it_in_its_segment(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    first = reopened(tmp_path, hand_clock)
    for number in range(3):
        first.append(frame(f"m v={number}"))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[-2] ^= 0xFF
    segment.write_bytes(content)
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=0", "m v=1"]


def test_frames_appended_after_a_cut_are_read(tmp_path: Path, hand_clock: HandClock) -> None:
    first = reopened(tmp_path, hand_clock)
    first.append(frame("m v=0"))
    first.append(frame("m v=1"))
    drain(first)
    [segment] = (tmp_path / "buffer").glob("*.seg")
    os.truncate(segment, segment.stat().st_size - 3)
    again = reopened(tmp_path, hand_clock)
    again.append(frame("m v=2"))
    assert drain(again) == ["m v=2"]


def test_a_damaged_cursor_sends_again_rather_than_losing(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    first = reopened(tmp_path, hand_clock)
    first.append(frame("m v=0"))
    drain(first)
    (tmp_path / "buffer" / "cursor.json").write_text("{")
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=0"]


def test_over_its_bound_the_oldest_are_dropped_and_counted(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=80_000)
    for number in range(200):
        buffer.append(frame(f"m v={number} {'x' * 1000}"))
    left = drain(buffer)
    assert buffer.dropped_points == 200 - len(left)
    assert 0 < buffer.dropped_points < 200
    assert left[-1].startswith("m v=199 ")
    assert left[0].startswith(f"m v={buffer.dropped_points} ")


def test_the_count_of_dropped_points_outlives_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=80_000)
    for number in range(200):
        buffer.append(frame(f"m v={number} {'x' * 1000}"))
    buffer.read()
    dropped = buffer.dropped_points
    assert reopened(tmp_path, hand_clock, max_bytes=80_000).dropped_points == dropped > 0


def test_samples_older_than_the_bound_are_dropped(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    buffer.append(frame("m v=0", points=9))
    hand_clock.advance(3601)
    assert buffer.read() is None
    assert buffer.dropped_points == 9


def test_segments_that_were_sent_are_deleted(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=400_000)
    for number in range(300):
        buffer.append(frame(f"m v={number} {'x' * 1000}"))
    drain(buffer)
    assert len(list((tmp_path / "buffer").glob("*.seg"))) <= 1


def test_a_full_disk_buffers_in_memory_and_recovers(
    buffer: DiskBuffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    buffer.append(frame("m v=0"))
    with monkeypatch.context() as full_disk, caplog.at_level(logging.WARNING):
        full_disk.setattr("collector.segments.os.write", refuse)
        buffer.append(frame("m v=1"))
        buffer.append(frame("m v=2"))
    assert buffer.points == 3
    assert len([record for record in caplog.records if "takes no writes" in record.message]) == 1
    buffer.append(frame("m v=3"))
    assert drain(buffer) == ["m v=0", "m v=1", "m v=2", "m v=3"]


def test_frames_in_memory_are_sent_while_the_disk_is_full(
    buffer: DiskBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.segments.os.write", refuse)
    buffer.append(frame("m v=1"))
    assert drain(buffer) == ["m v=1"]


def test_a_write_that_fits_only_in_part_leaves_no_part_behind(
    tmp_path: Path, hand_clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, calls = os.write, []

    def write_some(descriptor: int, content: bytes) -> int:
        calls.append(len(content))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, bytes(content)[:5])

    buffer = reopened(tmp_path, hand_clock)
    with monkeypatch.context() as full_disk:
        full_disk.setattr("collector.segments.os.write", write_some)
        buffer.append(frame("m v=1"))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    assert segment.stat().st_size == 0
    buffer.append(frame("m v=2"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=1", "m v=2"]
