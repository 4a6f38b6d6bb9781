"""Plugins are read at one beat for all of an agent, and another for each agent."""

from datetime import UTC, datetime
from random import Random

import pytest

from collector.reading.plugin_reader import (
    Schedule,
    phase_anchor,
    retry_seconds,
    unavailable_seconds,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def beats(beat: Schedule, at_seconds: float, *, count: int) -> list[float]:
    """Return the first beats of a plugin that is read in time each time."""
    ticks: list[float] = []
    planned: float | None = None
    for _ in range(count):
        wait_seconds = beat.interval_seconds
        planned = beat.next_tick(planned, at_seconds, wait_seconds=wait_seconds)
        ticks.append(planned)
        at_seconds = planned
    return ticks


def test_ticks_include_the_anchor() -> None:
    beat = Schedule(anchor_seconds=3.0, interval_seconds=10.0)
    assert beats(beat, 101.0, count=3) == [113.0, 123.0, 133.0]


def test_ticks_of_a_short_interval_include_those_of_a_long_one() -> None:
    anchor_seconds = phase_anchor("dgx-1", now=NOW, at_seconds=500.0)
    fast = Schedule(anchor_seconds=anchor_seconds, interval_seconds=1.0)
    slow = Schedule(anchor_seconds=anchor_seconds, interval_seconds=10.0)
    in_time = [round(at, 6) for at in beats(fast, 500.0, count=60)]
    assert {round(at, 6) for at in beats(slow, 500.0, count=4)} <= set(in_time)


def test_agents_differ_in_their_phase_and_keep_it_over_restarts() -> None:
    def second_of_minute(seed: str, *, booted_seconds: float) -> float:
        anchor_seconds = phase_anchor(seed, now=NOW, at_seconds=booted_seconds)
        beat = Schedule(anchor_seconds=anchor_seconds, interval_seconds=60.0)
        [first] = beats(beat, booted_seconds, count=1)
        return round((first - booted_seconds) % 60, 3)

    phases = {second_of_minute(f"dgx-{n}", booted_seconds=0.0) for n in range(50)}
    assert len(phases) == 50
    before, after = (second_of_minute("dgx-1", booted_seconds=at) for at in (0.0, 777.7))
    assert before == after


def test_the_first_tick_is_at_least_half_an_interval_away() -> None:
    beat = Schedule(anchor_seconds=0.0, interval_seconds=10.0)
    assert beats(beat, 9.9, count=1) == [20.0]
    assert beats(beat, 2.0, count=1) == [10.0]


@pytest.mark.parametrize(
    ("late_seconds", "expected"), [(0.0, 110.0), (3.0, 110.0), (4.9, 110.0), (13.0, 120.0)]
)
def test_a_late_reading_does_not_shift_the_schedule(late_seconds: float, expected: float) -> None:
    beat = Schedule(anchor_seconds=0.0, interval_seconds=10.0)
    assert beat.next_tick(100.0, 100.0 + late_seconds, wait_seconds=10.0) == expected


def test_jitter_neither_skips_nor_repeats_a_tick() -> None:
    beat = Schedule(anchor_seconds=0.0, interval_seconds=10.0, jitter_seconds=9.0)
    random = Random(7)  # noqa: S311 - the same jitter each time
    planned, read_at = 100.0, []
    for _ in range(100):
        read_at.append(beat.with_jitter(planned, random))
        planned = beat.next_tick(planned, read_at[-1], wait_seconds=10.0)
    assert planned == 1100.0
    delays = [at - (100.0 + 10.0 * turn) for turn, at in enumerate(read_at)]
    assert min(delays) >= 0.0
    assert max(delays) <= 9.0
    assert len(set(delays)) == 100


def test_the_wait_after_failures_doubles_up_to_ten_minutes() -> None:
    waits = [retry_seconds(10.0, failures) for failures in range(1, 9)]
    assert waits == [20, 40, 80, 160, 320, 600, 600, 600]


def test_a_rare_plugin_waits_no_shorter_than_its_interval() -> None:
    assert retry_seconds(3600.0, 1) == 3600.0
    assert unavailable_seconds(3600.0) == 3600.0
    assert unavailable_seconds(1.0) == 300.0
