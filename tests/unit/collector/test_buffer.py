"""The buffer on disk: order, restarts and bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from tests.unit.collector.frames import START_NS, drain, frame, noise, reopened
from tests.unit.collector.hand_clock import HandClock


def test_frames_come_back_in_order(buffer: DiskBuffer) -> None:
    for number in range(5):
        buffer.append(frame(f"m v={number}"))
    assert drain(buffer) == [f"m v={number}" for number in range(5)]


def test_an_empty_buffer_gives_no_batch(buffer: DiskBuffer) -> None:
    assert buffer.read() is None


def test_a_batch_that_is_not_acknowledged_is_read_again(buffer: DiskBuffer) -> None:
    buffer.append(frame("m v=1"))
    assert buffer.read() == buffer.read()


def test_a_batch_has_at_most_the_requested_points(buffer: DiskBuffer) -> None:
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
    restarted = reopened(tmp_path, hand_clock)
    assert restarted.points == 3
    assert drain(restarted) == ["m v=1"]


def test_acknowledged_frames_are_not_sent_after_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    first = reopened(tmp_path, hand_clock)
    for number in range(4):
        first.append(frame(f"m v={number}", points=50))
    batch = first.read(max_points=100)
    assert batch is not None
    first.acknowledge(batch)
    restarted = reopened(tmp_path, hand_clock)
    assert restarted.points == 100
    assert drain(restarted) == ["m v=2", "m v=3"]


def test_nothing_flushed_is_lost_when_the_process_is_killed(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from collector.buffering.buffer import DiskBuffer\n"
        "from collector.buffering.frames import Frame\n"
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
def test_a_frame_truncated_by_a_crash_is_set_aside_and_the_rest_survives(
    tmp_path: Path, hand_clock: HandClock, cut: int
) -> None:
    first = reopened(tmp_path, hand_clock)
    for number in range(3):
        first.append(frame(f"m v={number}"))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    os.truncate(segment, segment.stat().st_size - cut)
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=0", "m v=1"]
    assert len(list((tmp_path / "buffer").glob("*.damaged-*"))) == 1


def test_lines_are_compressed_on_disk(tmp_path: Path, hand_clock: HandClock) -> None:
    lines = "\n".join(f"cpu_core,core={core} usage_percent=1.5" for core in range(64))
    reopened(tmp_path, hand_clock).append(frame(lines, points=64))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    assert segment.stat().st_size < len(lines) / 4
    assert drain(reopened(tmp_path, hand_clock)) == [lines]


def test_a_segments_number_is_never_used_again(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=8_000)
    for number in range(4):
        buffer.append(frame(noise(number)))
        drain(buffer)
    drain(reopened(tmp_path, hand_clock, max_bytes=8_000))
    restarted = reopened(tmp_path, hand_clock, max_bytes=8_000)
    restarted.append(frame("m v=9"))
    assert drain(reopened(tmp_path, hand_clock, max_bytes=8_000)) == ["m v=9"]


def test_a_segment_that_can_not_be_read_is_left_alone(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    (tmp_path / "buffer" / f"{3:012d}.seg").mkdir(parents=True)
    buffer = reopened(tmp_path, hand_clock)
    buffer.append(frame("m v=0"))
    assert drain(buffer) == ["m v=0"]


def test_a_segment_that_vanished_is_given_up(tmp_path: Path, hand_clock: HandClock) -> None:
    reopened(tmp_path, hand_clock).append(frame("m v=0", points=7))
    buffer = reopened(tmp_path, hand_clock)
    [segment] = (tmp_path / "buffer").glob("*.seg")
    segment.unlink()
    assert buffer.read() is None
    assert (buffer.points, buffer.losses.damaged_points) == (0, 7)
    buffer.append(frame("m v=1"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=1"]


def test_frames_appended_after_a_cut_are_read(tmp_path: Path, hand_clock: HandClock) -> None:
    first = reopened(tmp_path, hand_clock)
    first.append(frame("m v=0"))
    first.append(frame("m v=1"))
    drain(first)
    [segment] = (tmp_path / "buffer").glob("*.seg")
    os.truncate(segment, segment.stat().st_size - 3)
    restarted = reopened(tmp_path, hand_clock)
    restarted.append(frame("m v=2"))
    assert drain(restarted) == ["m v=2"]


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
        buffer.append(frame(noise(number)))
    remaining = drain(buffer)
    assert (
        buffer.losses.dropped_points == buffer.losses.dropped_by_size_points == 200 - len(remaining)
    )
    assert 0 < buffer.losses.dropped_points < 200
    assert remaining[-1].startswith("m v=199 ")
    assert remaining[0].startswith(f"m v={buffer.losses.dropped_points} ")


def test_the_count_of_dropped_points_outlives_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=80_000)
    for number in range(200):
        buffer.append(frame(noise(number)))
    buffer.read()
    dropped = buffer.losses.dropped_points
    assert reopened(tmp_path, hand_clock, max_bytes=80_000).losses.dropped_points == dropped > 0


def test_samples_older_than_the_bound_are_dropped(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    buffer.append(frame("m v=0", points=9))
    hand_clock.advance(3601)
    assert buffer.read() is None
    assert buffer.losses.dropped_points == buffer.losses.dropped_by_age_points == 9


def test_segments_that_were_sent_are_deleted(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=400_000)
    for number in range(300):
        buffer.append(frame(noise(number)))
    drain(buffer)
    assert len(list((tmp_path / "buffer").glob("*.seg"))) <= 1
