"""Periodic tasks: waits between steps, and backoff after failures."""

from collections.abc import Iterator
from threading import Event, Semaphore

import pytest

from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.periodic_task import MAX_REFUSED_SECONDS, MAX_SECONDS, Backoff, PeriodicTask


class HeldStop(Event):
    """Notes how long the loop wants to wait, does not wait, and stops it after `turns`."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._turns = turns

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) >= self._turns:
            self.set()
        return self.is_set()


def waits_of(faults: Iterator[Exception | float], turns: int) -> list[float]:
    stop, ended = HeldStop(turns), Event()

    def step() -> float:
        outcome = next(faults)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    loop = PeriodicTask("test", step, stop=stop, on_end=ended.set)
    loop.start()
    loop.join(30)
    assert ended.is_set()
    return stop.waits


def always(fault: Exception) -> Iterator[Exception | float]:
    while True:
        yield fault


def test_a_portal_that_is_away_is_asked_twice_a_minute() -> None:
    waits = waits_of(always(PortalUnreachableError("away")), 12)
    assert waits[0] <= 1
    assert all(MAX_SECONDS / 2 <= wait <= MAX_SECONDS for wait in waits[6:])


@pytest.mark.parametrize("status", [401, 403])
def test_a_portal_that_refuses_the_agent_is_retried_every_few_minutes(status: int) -> None:
    waits = waits_of(always(PortalRefusedError("retired", http_status=status)), 12)
    assert waits[0] <= 1
    assert all(wait >= MAX_REFUSED_SECONDS / 2 for wait in waits[10:])
    assert max(waits) <= MAX_REFUSED_SECONDS


def test_another_refusal_is_no_reason_to_stay_away() -> None:
    waits = waits_of(always(PortalRefusedError("what?", http_status=404)), 12)
    assert max(waits) <= MAX_SECONDS


def test_a_step_that_goes_well_ends_the_waiting() -> None:
    faults: list[Exception | float] = [PortalUnreachableError("away")] * 6
    waits = waits_of(iter([*faults, 0.0, *faults]), 8)
    assert waits[5] > 8
    assert waits[6] == 0
    assert waits[7] <= 1


def test_the_portals_word_makes_a_wait_longer_and_never_shorter() -> None:
    backoff = Backoff()
    assert backoff.next_seconds(at_least=7) == 7
    for _ in range(8):
        backoff.next_seconds()
    assert backoff.next_seconds(at_least=1) >= MAX_SECONDS / 2


def test_a_step_that_is_wanted_does_not_wait_for_its_interval_and_nor_does_the_end() -> None:
    stop, wake, steps = Event(), Event(), Semaphore(0)

    def step() -> float:
        wake.clear()
        steps.release()
        return 3600.0

    ended = Event()
    task = PeriodicTask("test", step, stop=stop, wake=wake, on_end=ended.set)
    task.start()
    for _ in range(3):
        assert steps.acquire(timeout=30)
        wake.set()
    stop.set()
    task.join(30)
    assert ended.is_set()
