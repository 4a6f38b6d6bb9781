"""Live samples first, the backlog after them at a limited rate."""

import threading
from pathlib import Path

import pytest

from collector.buffering.buffer import Batch, DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns
from tests.unit.collector.hand_clock import HandClock


@pytest.fixture
def buffer(tmp_path: Path, hand_clock: HandClock) -> DiskBuffer:
    return opened(tmp_path, hand_clock)


def opened(tmp_path: Path, clock: HandClock, *, rate: float = 100) -> DiskBuffer:
    return DiskBuffer(
        tmp_path / "buffer",
        max_bytes=1_000_000,
        max_age_seconds=7 * 24 * 3600,
        clock=clock,
        backlog_points_per_second=rate,
        monotonic=clock.seconds,
    )


def fill(buffer: DiskBuffer, clock: HandClock, *numbers: int, points: int = 50) -> None:
    for number in numbers:
        buffer.append(Frame(b"m v=%d" % number, points, to_ns(clock.now)))


def texts(batch: Batch | None) -> list[str]:
    return [] if batch is None else [frame.payload.decode() for frame in batch.frames]


def taken(buffer: DiskBuffer) -> list[str]:
    """Read once and acknowledge."""
    batch = buffer.read()
    if batch is not None:
        buffer.acknowledge(batch)
    return texts(batch)


def test_after_an_outage_fresh_samples_go_first(buffer: DiskBuffer, hand_clock: HandClock) -> None:
    fill(buffer, hand_clock, 1, 2)
    hand_clock.advance(600)
    fill(buffer, hand_clock, 3)
    assert taken(buffer) == ["m v=3"]
    assert taken(buffer) == ["m v=1", "m v=2"]


def test_fresh_samples_overtake_a_backlog_that_is_being_sent(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, 1, 2, 3, 4)
    hand_clock.advance(600)
    assert taken(buffer) == ["m v=1", "m v=2"]
    hand_clock.advance(1)
    fill(buffer, hand_clock, 5)
    assert taken(buffer) == ["m v=5"]
    assert taken(buffer) == ["m v=3", "m v=4"]


def test_the_backlog_comes_no_faster_than_its_rate(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, *range(8))
    hand_clock.advance(600)
    sent = []
    for _ in range(40):
        sent += taken(buffer)
        hand_clock.advance(0.1)
    assert sent == [f"m v={number}" for number in range(8)]  # 400 points in 4 s at 100 a second


def test_a_batch_that_did_not_arrive_does_not_use_up_the_rate(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, 1)
    hand_clock.advance(600)
    assert texts(buffer.read()) == texts(buffer.read()) == ["m v=1"]


def test_samples_of_the_last_minute_stay_in_order(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, 1)
    hand_clock.advance(59)
    fill(buffer, hand_clock, 2)
    assert taken(buffer) == ["m v=1", "m v=2"]


def test_old_samples_of_an_earlier_run_are_backlog(tmp_path: Path, hand_clock: HandClock) -> None:
    fill(opened(tmp_path, hand_clock), hand_clock, 1, 2)
    hand_clock.advance(600)
    buffer = opened(tmp_path, hand_clock)
    assert buffer.backlog_points == 100
    fill(buffer, hand_clock, 3)
    assert taken(buffer) == ["m v=3"]
    assert taken(buffer) == ["m v=1", "m v=2"]


def test_frames_out_of_order_are_not_sent_again_after_a_restart(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = opened(tmp_path, hand_clock)
    fill(buffer, hand_clock, 1, 2, 3, 4)
    hand_clock.advance(600)
    fill(buffer, hand_clock, 5)
    assert taken(buffer) == ["m v=5"]
    assert taken(buffer) == ["m v=1", "m v=2"]
    restarted = opened(tmp_path, hand_clock)
    assert restarted.points == 100
    assert taken(restarted) == ["m v=3", "m v=4"]
    assert taken(restarted) == []


def test_a_batch_that_grew_old_on_its_way_is_acknowledged(
    buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, 1)
    hand_clock.advance(50)
    batch = buffer.read()
    assert batch is not None
    hand_clock.advance(20)
    fill(buffer, hand_clock, 2)
    buffer.acknowledge(batch)
    assert taken(buffer) == ["m v=2"]
    assert buffer.points == 0


def test_nobody_reading_leaves_few_live_frames(buffer: DiskBuffer, hand_clock: HandClock) -> None:
    for number in range(100):
        fill(buffer, hand_clock, number)
        hand_clock.advance(10)
    assert buffer.points - buffer.backlog_points <= 7 * 50


def test_a_week_of_outage_makes_few_files(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = opened(tmp_path, hand_clock)
    for number in range(1000):
        fill(buffer, hand_clock, number)
        buffer.read()
        hand_clock.advance(600)
    assert len(list((tmp_path / "buffer").glob("*.seg"))) == 1


def test_the_oldest_are_dropped_before_live_samples(tmp_path: Path, hand_clock: HandClock) -> None:
    buffer = DiskBuffer(
        tmp_path / "buffer", max_bytes=2_000, max_age_seconds=3600, clock=hand_clock
    )
    fill(buffer, hand_clock, *range(100), points=1)
    hand_clock.advance(600)
    fill(buffer, hand_clock, *range(100, 110), points=1)
    assert buffer.losses.dropped_by_size_points > 0
    assert taken(buffer) == [f"m v={number}" for number in range(100, 110)]


def test_a_waiting_thread_is_woken_by_a_flush(buffer: DiskBuffer, hand_clock: HandClock) -> None:
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(buffer.wait_for_frames(30)))
    waiter.start()
    fill(buffer, hand_clock, 1)
    waiter.join(30)
    assert woken == [True]


def test_waiting_for_frames_returns_false_after_the_timeout(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = DiskBuffer(tmp_path, max_bytes=100_000, max_age_seconds=3600, clock=hand_clock)
    assert not buffer.wait_for_frames(0.01)


def test_a_waiting_thread_is_woken_when_the_backlogs_turn_comes(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    buffer = DiskBuffer(
        tmp_path,
        max_bytes=100_000,
        max_age_seconds=3600,
        clock=hand_clock,
        backlog_points_per_second=1000,
    )
    fill(buffer, hand_clock, *range(40))
    hand_clock.advance(600)
    assert len(taken(buffer)) == 20
    assert taken(buffer) == []
    assert buffer.wait_for_frames(30)


def test_a_waiting_thread_is_released_when_the_agent_ends(buffer: DiskBuffer) -> None:
    buffer.stop_waiting()
    assert not buffer.wait_for_frames(30)
