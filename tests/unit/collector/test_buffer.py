"""The buffer on disk: order, restarts, bounds, and a disk that takes no writes."""

import errno
import logging
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NoReturn

import msgspec
import pytest

from collector.buffering.buffer import MEMORY_BOUND_BYTES, DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns
from tests.unit.collector.conftest import HandClock

START_NS = to_ns(HandClock().now)


def frame(text: str, *, points: int = 1, time_ns: int = START_NS) -> Frame:
    return Frame(text.encode(), points, time_ns)


def reopened(tmp_path: Path, clock: HandClock, *, max_bytes: int = 1_000_000) -> DiskBuffer:
    return DiskBuffer(tmp_path / "buffer", max_bytes=max_bytes, max_age_seconds=3600, clock=clock)


def refusing(code: int) -> Callable[..., NoReturn]:
    """Return a call that fails as a broken disk's does."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return refuse


def noise(number: int) -> str:
    """Return a kilobyte that compression does not shorten much."""
    return f"m v={number} " + Random(number).randbytes(700).hex()  # noqa: S311 - repeatable


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


def test_lines_are_compressed_on_disk(tmp_path: Path, hand_clock: HandClock) -> None:
    lines = "\n".join(f"cpu_core,core={core} usage_percent=1.5" for core in range(64))
    reopened(tmp_path, hand_clock).append(frame(lines, points=64))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    assert segment.stat().st_size < len(lines) / 4
    assert drain(reopened(tmp_path, hand_clock)) == [lines]


def test_segments_and_cursor_of_the_first_release_are_read(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    folder = tmp_path / "buffer"
    folder.mkdir()
    texts = [b"m v=0", b"m v=1", b"m v=2"]
    frames = []
    for text in texts:
        summed = struct.pack("<IIQ", len(text), 1, START_NS)
        checksum = zlib.crc32(text, zlib.crc32(summed))
        frames.append(b"VDF1" + summed + struct.pack("<I", checksum) + text)
    (folder / f"{6:012d}.seg").write_bytes(frames[0])
    (folder / f"{7:012d}.seg").write_bytes(b"".join(frames))
    cursor = {"segment": 7, "offset": len(frames[0]), "dropped_points": 5}
    (folder / "cursor.json").write_bytes(msgspec.json.encode(cursor))
    buffer = reopened(tmp_path, hand_clock)
    assert buffer.dropped_points == 5
    buffer.append(frame("m v=3"))
    assert drain(buffer) == ["m v=1", "m v=2", "m v=3"]
    assert [path.stem for path in folder.glob("*.seg")] == [f"{7:012d}"]


def test_a_segments_number_is_never_used_again(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=8_000)
    for number in range(4):
        buffer.append(frame(noise(number)))
        drain(buffer)
    drain(reopened(tmp_path, hand_clock, max_bytes=8_000))
    again = reopened(tmp_path, hand_clock, max_bytes=8_000)
    again.append(frame("m v=9"))
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
    assert (buffer.points, buffer.damaged_points) == (0, 7)
    buffer.append(frame("m v=1"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=1"]


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
        buffer.append(frame(noise(number)))
    left = drain(buffer)
    assert buffer.dropped_points == buffer.dropped_by_size_points == 200 - len(left)
    assert 0 < buffer.dropped_points < 200
    assert left[-1].startswith("m v=199 ")
    assert left[0].startswith(f"m v={buffer.dropped_points} ")


def test_the_count_of_dropped_points_outlives_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=80_000)
    for number in range(200):
        buffer.append(frame(noise(number)))
    buffer.read()
    dropped = buffer.dropped_points
    assert reopened(tmp_path, hand_clock, max_bytes=80_000).dropped_points == dropped > 0


def test_samples_older_than_the_bound_are_dropped(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    buffer.append(frame("m v=0", points=9))
    hand_clock.advance(3601)
    assert buffer.read() is None
    assert buffer.dropped_points == buffer.dropped_by_age_points == 9


def test_segments_that_were_sent_are_deleted(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = reopened(tmp_path, hand_clock, max_bytes=400_000)
    for number in range(300):
        buffer.append(frame(noise(number)))
    drain(buffer)
    assert len(list((tmp_path / "buffer").glob("*.seg"))) <= 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_disk_that_takes_no_writes_is_replaced_by_memory_and_recovers(
    tmp_path: Path,
    hand_clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    call: str,
    code: int,
) -> None:
    buffer = reopened(tmp_path, hand_clock)
    if call != "open":
        buffer.append(frame("m v=0"))
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(f"collector.buffering.segments.os.{call}", refusing(code))
        buffer.append(frame("m v=1"))
        buffer.append(frame("m v=2"))
        assert len([one for one in caplog.records if "takes no writes" in one.message]) == 1
    buffer.append(frame("m v=3"))
    expected = [f"m v={number}" for number in range(1 if call == "open" else 0, 4)]
    assert drain(reopened(tmp_path, hand_clock)) == expected
    assert drain(buffer) == expected


def test_a_segment_that_can_not_be_cut_back_is_written_to_no_more(
    tmp_path: Path, hand_clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = reopened(tmp_path, hand_clock)
    buffer.append(frame("m v=0"))
    with monkeypatch.context() as broken:
        broken.setattr("collector.buffering.segments.os.fsync", refusing(errno.EIO))
        broken.setattr("collector.buffering.segments.os.ftruncate", refusing(errno.EROFS))
        buffer.append(frame("m v=1"))
    buffer.append(frame("m v=2"))
    assert drain(buffer) == ["m v=0", "m v=1", "m v=2"]
    assert buffer.damaged_bytes == 0


def test_a_folder_that_can_not_be_made_is_replaced_by_memory(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    (tmp_path / "buffer").write_text("in the way")
    buffer = reopened(tmp_path, hand_clock)
    buffer.append(frame("m v=0"))
    (tmp_path / "buffer").unlink()
    buffer.append(frame("m v=1"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=0", "m v=1"]


def test_frames_in_memory_are_sent_while_the_disk_is_full(
    buffer: DiskBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.buffering.segments.os.write", refusing(errno.ENOSPC))
    buffer.append(frame("m v=1"))
    assert drain(buffer) == ["m v=1"]
    assert (buffer.points, buffer.size_bytes) == (0, 0)


def test_memory_is_bounded_and_what_has_no_room_there_is_counted(
    buffer: DiskBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.buffering.segments.os.write", refusing(errno.ENOSPC))
    large = Random(1).randbytes(400_000).hex()  # noqa: S311 - repeatable
    for number in range(20):
        buffer.append(frame(f"m v={number} {large}"))
    assert buffer.size_bytes <= MEMORY_BOUND_BYTES
    assert buffer.points + buffer.dropped_by_size_points == 20
    assert drain(buffer)[-1].startswith("m v=19 ")


def test_a_cursor_that_can_not_be_written_is_written_later(
    tmp_path: Path, hand_clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = reopened(tmp_path, hand_clock)
    buffer.append(frame("m v=0"))
    with monkeypatch.context() as full_disk:
        full_disk.setattr("collector.files.os.fsync", refusing(errno.ENOSPC))
        assert drain(buffer) == ["m v=0"]
    assert not list((tmp_path / "buffer").glob("*.partial"))
    buffer.append(frame("m v=1"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=1"]


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
        full_disk.setattr("collector.buffering.segments.os.write", write_some)
        buffer.append(frame("m v=1"))
    [segment] = (tmp_path / "buffer").glob("*.seg")
    assert segment.stat().st_size == 0
    buffer.append(frame("m v=2"))
    assert drain(reopened(tmp_path, hand_clock)) == ["m v=1", "m v=2"]
