"""A disk that is really full: the buffer goes on in memory and comes back by itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns, utc_now
from tests.servers import require_program, require_root

pytestmark = pytest.mark.needs_root

DISK_BYTES = 256 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    require_root("mounts a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = require_program("mount", package="mount")
    unmount = require_program("umount", package="mount")
    subprocess.run([mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    yield disk
    subprocess.run([unmount, "--lazy", disk], check=True)


def opened(disk: Path) -> DiskBuffer:
    return DiskBuffer(
        disk / "buffer",
        max_bytes=100_000_000,
        max_age_seconds=3600,
        clock=utc_now,
        backlog_points_per_second=1e9,
    )


def append(buffer: DiskBuffer, number: int, *, size_bytes: int = 2_000) -> None:
    noise = Random(number).randbytes(size_bytes).hex()  # noqa: S311 - repeatable
    buffer.append(Frame(f"m v={number} {noise}".encode(), 1, to_ns(utc_now())))


def drain(buffer: DiskBuffer) -> list[int]:
    numbers = []
    while (batch := buffer.read()) is not None:
        numbers += [int(sent.payload.split()[1].removeprefix(b"v=")) for sent in batch.frames]
        buffer.acknowledge(batch)
    buffer.close()
    return numbers


def used_bytes(disk: Path) -> int:
    return sum(path.stat().st_size for path in disk.rglob("*.seg"))


def test_nothing_is_lost_while_the_disk_is_full(small_disk: Path) -> None:
    buffer = opened(small_disk)
    other = small_disk / "other"
    other.write_bytes(bytes(DISK_BYTES - 64 * 1024))
    for number in range(60):
        append(buffer, number)
    assert buffer.losses.dropped_points == 0
    assert used_bytes(small_disk) < 64 * 1024 < buffer.size_bytes
    other.unlink()
    append(buffer, 60)
    buffer.close()
    assert drain(opened(small_disk)) == list(range(61))


def test_no_half_frame_is_left_on_a_full_disk(small_disk: Path) -> None:
    buffer = opened(small_disk)
    for number in range(60):
        append(buffer, number, size_bytes=8_000)
    buffer.close()
    reopened = opened(small_disk)
    assert reopened.losses.damaged_bytes == 0
    on_disk = drain(reopened)
    assert on_disk == list(range(len(on_disk)))
    assert 10 < len(on_disk) < 60


def test_what_is_acknowledged_on_a_full_disk_makes_room(small_disk: Path) -> None:
    buffer = DiskBuffer(
        small_disk / "buffer", max_bytes=200_000, max_age_seconds=3600, clock=utc_now
    )
    (small_disk / "other").write_bytes(bytes(DISK_BYTES - 64 * 1024))
    for number in range(20):
        append(buffer, number, size_bytes=8_000)
    assert drain(buffer) == list(range(20))
    append(buffer, 20)
    assert drain(buffer) == [20]
    assert used_bytes(small_disk) < 64 * 1024
