"""The buffer while the disk is not writable: memory stands in, bounded, until it does again."""

import errno
import logging
import os
from pathlib import Path
from random import Random

import pytest

from collector.buffering.buffer import MAX_MEMORY_BYTES, DiskBuffer
from tests.unit.collector.frames import drain, frame, refusing, reopened
from tests.unit.collector.hand_clock import HandClock


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_frames_stay_in_memory_until_the_disk_is_writable_again(
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
        assert (
            len([record for record in caplog.records if "is not writable" in record.message]) == 1
        )
    buffer.append(frame("m v=3"))
    expected = [f"m v={number}" for number in range(1 if call == "open" else 0, 4)]
    assert drain(reopened(tmp_path, hand_clock)) == expected
    assert drain(buffer) == expected


def test_a_segment_that_can_not_be_truncated_is_sealed(
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
    assert buffer.losses.damaged_bytes == 0


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


def test_memory_is_limited_and_dropped_points_are_counted(
    buffer: DiskBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.buffering.segments.os.write", refusing(errno.ENOSPC))
    large = Random(1).randbytes(400_000).hex()  # noqa: S311 - repeatable
    for number in range(20):
        buffer.append(frame(f"m v={number} {large}"))
    assert buffer.size_bytes <= MAX_MEMORY_BYTES
    assert buffer.points + buffer.losses.dropped_by_size_points == 20
    assert drain(buffer)[-1].startswith("m v=19 ")


def test_a_cursor_that_can_not_be_written_is_written_later(
    tmp_path: Path, hand_clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = reopened(tmp_path, hand_clock)
    buffer.append(frame("m v=0"))
    with monkeypatch.context() as full_disk:
        full_disk.setattr("core.atomic_files.os.fsync", refusing(errno.ENOSPC))
        assert drain(buffer) == ["m v=0"]
    assert not list((tmp_path / "buffer").glob(".*"))
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
