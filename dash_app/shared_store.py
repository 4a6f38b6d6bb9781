"""The store as dashboards query it: viewers of a tenant share the answers of the same ranges."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from core.clock import NS_PER_SECOND, Clock, to_ns
from dash_app.context import MINUTE, SharedCache
from timeseries.store import RangeQuery, Series, Store

# A chart of an hour is at most 9 s old, one of a day a minute.
_PARTS = 300
_LONGEST_NS = int(MINUTE / timedelta(seconds=1)) * NS_PER_SECOND
# Of all answers together: some 100 MiB.
MAX_VALUES = 2_000_000


class SharedStore:
    """Shares the answers of range queries for as long as no reader sees the difference.

    Each query names the tenants whose samples it reads, so that answers are never shared between
    tenants. All else goes to the store.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._answers = SharedCache(clock, ttl=MINUTE, most=MAX_VALUES, weigh=_values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    def query_range(self, query: RangeQuery) -> Sequence[Series]:
        """Return the series of a query, or those of a moment ago."""
        width_ns = query.end_ns - query.start_ns
        # A power of two, because widths of live ranges vary a little.
        granule_ns = min(1 << max(0, (width_ns // _PARTS).bit_length() - 1), _LONGEST_NS)
        filters = tuple(sorted(query.filters.items()))
        # A span that ends in the future, such as a new job's, has new samples all the time.
        seen_until_ns = min(query.end_ns, to_ns(self._clock()))
        key = (
            query.measurement,
            query.fields,
            query.aggregate,
            query.step_ns,
            query.tenants,
            filters,
            query.group_by,
            query.start_ns // granule_ns,
            query.end_ns // granule_ns,
            seen_until_ns // granule_ns,
        )
        return self._answers.get(key, lambda: tuple(self._store.query_range(query)))


def _values(answer: Sequence[Series]) -> int:
    return 1 + sum(len(series.values) for series in answer)
