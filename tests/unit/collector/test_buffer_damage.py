"""A flipped bit costs the frame that it is in, at the start and while the agent runs."""

from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Extent, Frame, encode_frame
from collector.buffering.queues import CACHE_BYTES
from collector.buffering.segments import Segment, set_aside
from core.clock import to_ns
from tests.unit.collector.hand_clock import HandClock

LINES = b"\n".join(b"cpu_core,core=%d usage_percent=1.5" % core for core in range(9))
NOON_NS = to_ns(HandClock().now)
PARTS = {
    "magic": range(4),
    "stored_length": range(4, 8),
    "plain_length": range(8, 12),
    "points": range(12, 16),
    "time": range(16, 24),
    "checksum": range(24, 28),
}


def opened(tmp_path: Path, clock: HandClock) -> DiskBuffer:
    return DiskBuffer(
        tmp_path / "buffer",
        max_bytes=100_000_000,
        max_age_seconds=3600,
        clock=clock,
        monotonic=clock.seconds,
    )


def frames() -> list[Frame]:
    return [Frame(LINES + b" %d" % number, 9, NOON_NS) for number in range(3)]


def filled(tmp_path: Path, clock: HandClock) -> Path:
    """Write three frames and return their segment."""
    buffer = opened(tmp_path, clock)
    for written in frames():
        buffer.append(written)
    buffer.close()
    [segment] = (tmp_path / "buffer").glob("*.seg")
    return segment


def flip(segment: Path, offset: int, *, bit: int = 3) -> None:
    content = bytearray(segment.read_bytes())
    content[offset] ^= 1 << bit
    segment.write_bytes(content)


def drain(buffer: DiskBuffer, clock: HandClock) -> list[Frame]:
    taken: list[Frame] = []
    while buffer.points:
        clock.advance(1)
        batch = buffer.read()
        if batch is not None:
            taken += batch.frames
            buffer.acknowledge(batch)
    buffer.close()
    return taken


def offsets_of(part: str, middle: bytes) -> range:
    return PARTS.get(part, range(28, len(middle)))


@pytest.mark.parametrize("part", [*PARTS, "payload"])
def test_a_bit_flipped_at_rest_loses_one_frame(
    tmp_path: Path, hand_clock: HandClock, part: str
) -> None:
    first, middle, last = frames()
    start = len(encode_frame(first))
    for offset in offsets_of(part, encode_frame(middle)):
        folder = tmp_path / str(offset)
        flip(filled(folder, hand_clock), start + offset)
        buffer = opened(folder, hand_clock)
        assert buffer.losses.damaged_bytes == len(encode_frame(middle))
        assert drain(buffer, hand_clock) == [first, last]
        assert [path.suffix for path in folder.rglob("*.damaged-*")] == [f".damaged-{start}"]


@pytest.mark.parametrize("age_seconds", [0, 600], ids=["live", "backlog"])
@pytest.mark.parametrize("part", [*PARTS, "payload"])
def test_a_bit_flipped_while_the_agent_runs_loses_one_frame(
    tmp_path: Path, hand_clock: HandClock, part: str, age_seconds: float
) -> None:
    first, middle, last = frames()
    start = len(encode_frame(first))
    for offset in offsets_of(part, encode_frame(middle)):
        folder = tmp_path / str(offset)
        segment = filled(folder, hand_clock)
        clock = HandClock()
        clock.advance(age_seconds)
        buffer = opened(folder, clock)
        flip(segment, start + offset)
        assert drain(buffer, clock) == [first, last]
        assert buffer.losses.damaged_points == 9
        assert buffer.losses.damaged_bytes == len(encode_frame(middle))


def test_the_points_of_a_damaged_frame_are_known_from_its_header(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    flip(filled(tmp_path, hand_clock), len(encode_frame(frames()[0])) + 40)
    assert opened(tmp_path, hand_clock).losses.damaged_points == 9


def test_damage_is_counted_once_over_restarts(tmp_path: Path, hand_clock: HandClock) -> None:
    flip(filled(tmp_path, hand_clock), 30)
    counts = [opened(tmp_path, hand_clock).losses.damaged_bytes for _ in range(3)]
    assert counts == [len(encode_frame(frames()[0]))] * 3


def test_a_segment_of_nothing_but_damage_is_removed(tmp_path: Path, hand_clock: HandClock) -> None:
    segment = filled(tmp_path, hand_clock)
    segment.write_bytes(b"\xff" * 1000)
    buffer = opened(tmp_path, hand_clock)
    assert (buffer.read(), buffer.points, segment.exists()) == (None, 0, False)


def test_a_segment_cut_while_the_agent_runs_ends_there(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    segment = filled(tmp_path, hand_clock)
    buffer = opened(tmp_path, hand_clock)
    segment.write_bytes(segment.read_bytes()[: len(encode_frame(frames()[0])) + 10])
    assert drain(buffer, hand_clock) == frames()[:1]
    assert buffer.losses.damaged_points == 18


def test_the_number_of_damaged_copies_is_limited(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    for number in range(40):
        buffer.append(Frame(b"m v=%d" % number, 1, NOON_NS))
    buffer.close()
    [segment] = (tmp_path / "buffer").glob("*.seg")
    size = len(encode_frame(Frame(b"m v=1", 1, 0)))
    for number in range(0, 20, 2):
        flip(segment, number * size)
    remaining = drain(opened(tmp_path, hand_clock), hand_clock)
    assert len(remaining) == 30
    assert len(list((tmp_path / "buffer").glob("*.damaged-*"))) == 8


def test_live_frames_that_exceed_the_cache_are_read_from_disk(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = opened(tmp_path, hand_clock)
    large = [
        Frame(b"m v=%d " % number + b"x" * (CACHE_BYTES // 3), 1, NOON_NS) for number in range(8)
    ]
    for written in large:
        buffer.append(written)
    assert drain(buffer, hand_clock) == large


def test_damage_of_one_segment_is_never_overwritten_by_later_damage(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "000000000001.seg", 1, size_bytes=8)
    segment.path.write_bytes(b"first---")
    assert set_aside(segment, Extent(0, 5, 0, is_damaged=True))
    segment.path.write_bytes(b"--second")
    assert not set_aside(segment, Extent(0, 5, 0, is_damaged=True))
    assert set_aside(segment, Extent(2, 8, 0, is_damaged=True))
    aside = sorted(tmp_path.glob("*.damaged-*"))
    assert [path.name for path in aside] == ["000000000001.damaged-0", "000000000001.damaged-2"]
    assert [path.read_bytes() for path in aside] == [b"first", b"second"]
