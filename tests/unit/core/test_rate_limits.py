"""Rate limits allow bursts and a sustained rate per key."""

import sys
from collections.abc import Iterator

import pytest

from core.rate_limits import BURST_SECONDS, RateLimit, WindowStorage
from tests.cast import FrozenClock
from tests.fixtures.racing import race

PER_SECOND = 0.5  # bursts of five
BURST = int(PER_SECOND * BURST_SECONDS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FrozenClock:
    clock = FrozenClock()
    monkeypatch.setattr("time.time", lambda: clock().timestamp())
    return clock


def test_a_burst_is_allowed_and_then_the_wait_is_returned(clock: FrozenClock) -> None:
    limit = RateLimit(PER_SECOND)
    assert limit.hit("alice") == 0
    clock.advance(4)
    assert [limit.hit("alice") for _ in range(BURST)] == [0.0] * (BURST - 1) + [6.0]
    assert limit.hit("bob") == 0


def test_after_the_wait_another_burst_is_allowed_and_no_more(clock: FrozenClock) -> None:
    limit = RateLimit(PER_SECOND)
    for _ in range(BURST + 1):
        limit.hit("alice")
    clock.advance(10_000)
    assert [limit.hit("alice") for _ in range(BURST + 1)] == [0.0] * BURST + [10.0]


def test_rejected_requests_do_not_extend_the_wait(clock: FrozenClock) -> None:
    limit = RateLimit(PER_SECOND)
    assert {limit.hit("alice") for _ in range(100)} == {0.0, 10.0}
    clock.advance(10)
    assert limit.hit("alice") == 0


@pytest.mark.usefixtures("clock")
def test_reading_the_wait_counts_nothing() -> None:
    limit = RateLimit(PER_SECOND)
    assert [limit.wait_seconds("alice") for _ in range(BURST + 1)] == [0.0] * (BURST + 1)
    for _ in range(BURST):
        limit.hit("alice")
    assert [limit.wait_seconds("alice"), limit.wait_seconds("bob")] == [10.0, 0.0]


def test_expired_counters_are_deleted_within_a_window_and_without_a_thread(
    clock: FrozenClock,
) -> None:
    storage = WindowStorage()
    storage.timer.join()  # the library's, which runs once
    for number in range(1000):
        storage.incr(str(number), 10)
    clock.advance(10)
    assert storage.incr("last", 10) == 1
    assert list(storage.storage) == list(storage.expirations) == ["last"]
    assert not storage.timer.is_alive()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads run in turns of a microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_hits_at_the_same_moment_are_all_counted() -> None:
    limit = RateLimit(2000.0)  # bursts of 20,000

    def hit() -> int:
        return sum(limit.hit("alice") == 0 for _ in range(10_000))

    assert sum(race([hit] * 4)) == 20_000


def test_a_rate_of_zero_disables_the_limit() -> None:
    limit = RateLimit(0.0)
    assert not any(limit.hit("alice") for _ in range(1000))
    assert limit.wait_seconds("alice") == 0


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("per_second", "allowed", "wait"), [(0.0001, 1, 10_000), (0.15, 1, 7), (7.77, 77, 10)]
)
def test_other_rates_have_a_window_that_fits(per_second: float, allowed: int, wait: float) -> None:
    limit = RateLimit(per_second)
    assert [limit.hit("alice") for _ in range(allowed + 1)] == [0.0] * allowed + [wait]


def test_a_batch_above_the_limit_counts_and_the_next_one_waits(clock: FrozenClock) -> None:
    limit = RateLimit(100)
    assert limit.wait_seconds("acme") == 0
    limit.hit("acme", cost=5_000)  # the limit is 1,000
    clock.advance(4)
    assert limit.wait_seconds("acme") == 6
    assert limit.wait_seconds("globex") == 0
    clock.advance(6)
    assert limit.wait_seconds("acme") == 0
