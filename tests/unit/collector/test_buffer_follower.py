"""The buffer's second reader: its position, restarts, and what the limits do to it."""

from pathlib import Path

from collector.buffering.buffer import DiskBuffer
from tests.unit.collector.frames import drain, frame, noise
from tests.unit.collector.hand_clock import HandClock


def opened(
    tmp_path: Path, clock: HandClock, *, max_bytes: int = 1_000_000, is_followed: bool = True
) -> DiskBuffer:
    return DiskBuffer(
        tmp_path / "buffer",
        max_bytes=max_bytes,
        max_age_seconds=3600,
        clock=clock,
        is_followed=is_followed,
    )


def followed(buffer: DiskBuffer, *, max_batches: int = 1_000) -> list[str]:
    """Read and advance; return the lines."""
    texts = list[str]()
    for _ in range(max_batches):
        batch = buffer.follow(max_points=100)
        if batch is None:
            break
        texts += [own.payload.decode() for own in batch.frames]
        buffer.advance(batch)
    return texts


def segments(tmp_path: Path) -> int:
    return len(list((tmp_path / "buffer").glob("*.seg")))


def test_both_readers_get_every_frame(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    lines = [noise(number) for number in range(300)]
    for line in lines:
        buffer.append(frame(line, points=5))
    assert drain(buffer) == lines
    assert followed(buffer) == lines
    assert not buffer.wait_to_follow(0)
    buffer.append(frame("m v=1"))
    assert buffer.wait_to_follow(0)
    assert (followed(buffer), drain(buffer)) == (["m v=1"], ["m v=1"])
    assert segments(tmp_path) == 1


def test_the_position_outlives_the_process(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    lines = [noise(number) for number in range(400)]
    for line in lines:
        buffer.append(frame(line, points=50))
    assert drain(buffer) == lines
    first = followed(buffer, max_batches=30)
    # A batch that was not delivered is read again.
    assert buffer.follow() is not None

    restarted = opened(tmp_path, hand_clock)
    assert restarted.points == 0
    assert first + followed(restarted) == lines
    assert restarted.losses.unfollowed_points == 0


def test_a_buffer_that_is_no_longer_followed_is_freed(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = opened(tmp_path, hand_clock)
    for number in range(400):
        buffer.append(frame(noise(number)))
    drain(buffer)
    assert segments(tmp_path) > 2
    alone = opened(tmp_path, hand_clock, is_followed=False)
    assert (segments(tmp_path), alone.follow(), alone.wait_to_follow(0)) == (0, None, False)


def test_a_follower_that_stops_costs_the_portal_nothing(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    """Its samples are dropped first, though those that the portal still needs are older."""
    buffer = opened(tmp_path, hand_clock, max_bytes=200_000)
    waiting = [noise(number) for number in range(50)]
    for line in waiting:
        buffer.append(frame(line, points=2))
    hand_clock.advance(120)
    for number in range(1_000, 1_600):
        buffer.append(frame(noise(number), points=2, time_ns=int(hand_clock.seconds() * 1e9)))
        batch = buffer.read()
        assert batch is not None
        assert batch.is_live
        buffer.acknowledge(batch)

    assert buffer.size_bytes < 250_000
    assert buffer.losses.dropped_points == 0
    read = followed(buffer)
    assert buffer.losses.unfollowed_points + 2 * len(read) == 2 * 650
    assert buffer.losses.unfollowed_points > 0
    hand_clock.advance(120)
    assert drain(buffer)[:1] == waiting[:1]


def test_damage_is_skipped(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    for number in range(3):
        buffer.append(frame(noise(number)))
    (path,) = (tmp_path / "buffer").glob("*.seg")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert followed(buffer) == [noise(0), noise(2)]


def test_a_lost_segment_is_skipped(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    for number in range(400):
        buffer.append(frame(noise(number)))
    min((tmp_path / "buffer").glob("*.seg")).unlink()
    read = followed(buffer)
    assert noise(0) not in read
    assert read[-1] == noise(399)
