"""The store as dashboards query it: viewers of a tenant share the answers of the same ranges.

The answer for a range that ends now is put together: what settled comes from an answer of the last
minute, and only the newest steps are queried.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from core.clock import NS_PER_SECOND, Clock, to_ns
from dash_app.context import MINUTE, SharedCache
from timeseries.store import RangeQuery, Series, Store
from timeseries.successive import SUCCESSIVE

# A chart of an hour is at most 9 s old, one of a day a minute; totals of an hour a minute.
_PARTS, _PARTS_OF_TOTALS = 300, 60
_LONGEST_NS = int(MINUTE / timedelta(seconds=1)) * NS_PER_SECOND
# Newer samples may still be on their way.
_SETTLED_NS = 60 * NS_PER_SECOND
# All answers together take some 100 MiB.
MAX_VALUES = 2_000_000


@dataclass(frozen=True, slots=True)
class _Answer:
    query: RangeQuery
    series: tuple[Series, ...]
    # When it was read, or the end of its range if that had passed.
    seen_until_ns: int


class SharedStore:
    """Shares the answers of range queries for as long as no reader sees the difference.

    Each query names the tenants whose samples it reads, so that answers are never shared between
    tenants. All else goes to the store.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._answers = SharedCache(clock, ttl=MINUTE, max_weight=MAX_VALUES, weigh=_values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    def query_range(self, query: RangeQuery) -> Sequence[Series]:
        """Return the series of a query, or those of a moment ago."""
        width_ns = query.end_ns - query.start_ns
        parts = _PARTS_OF_TOTALS if query.step_ns is None else _PARTS
        # A power of two, because widths of live ranges vary a little.
        granule_ns = min(1 << max(0, (width_ns // parts).bit_length() - 1), _LONGEST_NS)
        # A span that ends in the future, such as a new job's, has new samples all the time.
        now_ns = to_ns(self._clock())
        seen_until_ns = min(query.end_ns, now_ns)
        key = (
            *_shape(query),
            query.start_ns // granule_ns,
            query.end_ns // granule_ns,
            seen_until_ns // granule_ns,
        )
        is_live = query.end_ns > now_ns - _SETTLED_NS and _is_extendable(query)
        if is_live:
            return self._answers.get(key, lambda: self._extended(query, seen_until_ns)).series
        return self._answers.get(key, lambda: self._read(query, seen_until_ns)).series

    def _read(self, query: RangeQuery, seen_until_ns: int) -> _Answer:
        return _Answer(query, tuple(self._store.query_range(query)), seen_until_ns)

    def _extended(self, query: RangeQuery, seen_until_ns: int) -> _Answer:
        """Return the answer of a live query: that of the last minute, and the steps since then."""
        step_ns = query.step_ns or 1
        steps = (query.end_ns - query.start_ns) // step_ns
        # Answers of about the same width, so that they begin early enough.
        key = (*_shape(query), steps.bit_length())
        earlier = self._answers.get(key, lambda: self._read(query, seen_until_ns))
        settled_ns = earlier.seen_until_ns - _SETTLED_NS
        settled_ns -= settled_ns % step_ns
        if earlier.query == query and earlier.seen_until_ns == seen_until_ns:
            return earlier
        if not earlier.query.start_ns <= query.start_ns < settled_ns < query.end_ns:
            return self._read(query, seen_until_ns)
        # The past of a new appliance may still be on its way.
        middle_ns = (query.start_ns + query.end_ns) // 2
        if not any(series.times_ns and series.times_ns[0] < middle_ns for series in earlier.series):
            return self._read(query, seen_until_ns)
        newest = self._store.query_range(replace(query, start_ns=settled_ns))
        return _Answer(query, _joined(earlier.series, newest, query, settled_ns), seen_until_ns)


def _shape(query: RangeQuery) -> tuple[Hashable, ...]:
    """Return all of a query but its time range."""
    return (
        query.measurement,
        query.fields,
        query.aggregate,
        query.step_ns,
        query.tenants,
        tuple(sorted(query.filters.items())),
        query.matchers,
        query.group_by,
    )


def _is_extendable(query: RangeQuery) -> bool:
    """Return whether each value depends on the samples of its step only, and steps are whole."""
    is_aligned = query.step_ns is not None and query.start_ns % query.step_ns == 0
    return is_aligned and query.aggregate not in SUCCESSIVE


def _joined(
    earlier: Sequence[Series], newest: Sequence[Series], query: RangeQuery, settled_ns: int
) -> tuple[Series, ...]:
    def key(series: Series) -> tuple[str, ...]:
        return series.field, *(series.tags.get(tag, "") for tag in query.group_by)

    joined = {key(series): series for series in newest}
    for series in earlier:
        times = series.times_ns
        window = slice(bisect_left(times, query.start_ns), bisect_left(times, settled_ns))
        after = joined.get(key(series))
        times, values = times[window], series.values[window]
        if after is not None:
            times, values = times + after.times_ns, values + after.values
        if times:
            joined[key(series)] = Series(series.field, series.tags, times, values)
    return tuple(joined[series_key] for series_key in sorted(joined))


def _values(answer: _Answer) -> int:
    return 1 + sum(len(series.values) for series in answer.series)
