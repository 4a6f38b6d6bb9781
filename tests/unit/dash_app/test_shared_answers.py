"""Viewers share what a refresh computes and what the store answers."""

from dataclasses import replace
from datetime import timedelta

import pytest

from core.clock import to_ns
from dash_app.context import MAX_ENTRIES, SharedCache
from dash_app.shared_store import SharedStore
from dash_app.timerange import Controls, span_between
from tests.cast import FrozenClock
from tests.unit.dash_app.browsing import CountingStore
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, write


def test_a_failed_refresh_is_computed_again(clock: FrozenClock) -> None:
    cache = SharedCache(clock, ttl=timedelta(seconds=2))
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 7) == 7
    assert cache.get("key", lambda: 8) == 7


class CountedAnswers:
    asked = 0

    def query_range(self, _query: RangeQuery) -> list[Series]:
        self.asked += 1
        return [Series("x", {}, [0], [1.0])]


def test_the_first_minute_of_a_job_shows_new_samples_although_its_span_ends_later(
    clock: FrozenClock,
) -> None:
    counting = CountedAnswers()
    shared = SharedStore(counting, clock)  # type: ignore[arg-type] # the one method that it needs
    span = span_between(clock.now, clock.now)
    query = RangeQuery(
        measurement="gpu", fields=("x",), start_ns=span.start_ns, end_ns=span.end_ns, tenants=None
    )
    for _ in range(3):
        shared.query_range(query)
        clock.advance(5)
    assert counting.asked == 3


def test_viewers_share_the_answers_of_a_range_but_not_between_tenants(clock: FrozenClock) -> None:
    counting = CountedAnswers()
    shared = SharedStore(counting, clock)  # type: ignore[arg-type] # the one method that it needs
    second = 10**9
    end_ns = 2**20 * 2**33
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=end_ns - 3600 * second,
        end_ns=end_ns,
        step_ns=15 * second,
        tenants=("acme",),
    )
    for later_ns in (0, second, 5 * second):
        shared.query_range(replace(query, end_ns=end_ns + later_ns))
    assert counting.asked == 1
    shared.query_range(replace(query, end_ns=end_ns + 9 * second))
    shared.query_range(replace(query, tenants=("globex",)))
    shared.query_range(replace(query, tenants=None))
    assert counting.asked == 4
    clock.advance(60)
    shared.query_range(query)
    assert counting.asked == 5


def test_a_range_that_ends_in_the_future_shows_new_samples_in_it(
    store: Store, clock: FrozenClock
) -> None:
    shared = SharedStore(store, clock)
    second, began_ns = 10**9, to_ns(clock.now)
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=began_ns,
        end_ns=began_ns + 120 * second,
        step_ns=10 * second,
        tenants=("t",),
    )
    for _ in range(12):
        point = Point("gpu", {"gpu": "0"}, {"power_watts": 100.0}, to_ns(clock.now))
        write(store, [point], identity={"tenant": "t", "appliance": "a"})
        assert list(shared.query_range(query)) == store.query_range(query)
        clock.advance(10)


class WidthsStore(CountingStore):
    """Records the seconds that each range query spans."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.widths: list[float] = []

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.widths.append((query.end_ns - query.start_ns) / 10**9)
        return super().query_range(query)


def test_a_live_range_queries_only_its_newest_steps_and_misses_nothing(
    store: Store, clock: FrozenClock
) -> None:
    widths = WidthsStore(store)
    shared = SharedStore(widths, clock)  # type: ignore[arg-type] # the methods that it needs
    second = 10**9
    for turn in range(5):
        at_ns = to_ns(clock.now)
        # A GPU appears, another one leaves, and a sample is late.
        gpus = ("0", "1") if turn < 2 else ("1", "2")
        times = [*range(at_ns - 3600 * second, at_ns, 300 * second)] if turn == 0 else []
        late = [at_ns - 25 * second] if turn == 3 else []
        for time_ns in [*times, *late, at_ns - second]:
            power = {"power_watts": 100.0 + turn}
            points = [Point("gpu", {"gpu": gpu}, power, time_ns) for gpu in gpus]
            write(store, points, identity={"tenant": "t", "appliance": "a"})
        span = Controls.parse("?range=1h").span(clock.now)
        query = RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            step_ns=span.step_ns,
            tenants=("t",),
            group_by=("gpu",),
        )
        assert list(shared.query_range(query)) == store.query_range(query)
        clock.advance(11)
    assert [width >= 3600 for width in widths.widths] == [True, False, False, False, False]
    clock.advance(60)
    shared.query_range(replace(query, end_ns=to_ns(clock.now)))
    assert widths.widths[-1] >= 3600


def test_the_oldest_results_make_room_in_the_cache(clock: FrozenClock) -> None:
    cache = SharedCache(clock, ttl=timedelta(seconds=2))
    for number in range(MAX_ENTRIES + 1):
        cache.get(number, lambda number=number: number)  # type: ignore[misc] # bound now
    assert cache.get(MAX_ENTRIES, lambda: -1) == MAX_ENTRIES
    assert cache.get(0, lambda: -1) == -1
