"""Measures how long a store takes, for the metrics of the server."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import Counter, Histogram

from timeseries.points import Batch
from timeseries.store import RejectedPoint, SeriesStore, Store

if TYPE_CHECKING:  # NumPy is only on servers
    from timeseries.series_batch import SeriesBatch

STORE_SECONDS = Histogram(
    "vedette_store_seconds",
    "Time that operations of the sample store took; a write lasts until it is durable.",
    ["operation"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10),
)
STORE_ERRORS = Counter(
    "vedette_store_errors", "Operations of the sample store that failed.", ["operation"]
)
_TIMED = frozenset({"query_range", "query_columns", "latest", "maintain", "delete_before"})


def timed(store: Store) -> Store:
    """Return the store with measured operations."""
    return cast("Store", _TimedStore(store))


class _TimedStore:
    """A store; all that is not measured is passed on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        for name in _TIMED:
            setattr(self, name, partial(_call, name, getattr(store, name)))
        self._write_seconds = STORE_SECONDS.labels("write")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the store
        return getattr(self._store, name)

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> "Future[list[RejectedPoint]]":
        """Queue a batch for writing."""
        return self._timed(self._store.submit(batch, identity=identity))

    def submit_series(self, batch: "SeriesBatch") -> "Future[list[RejectedPoint]]":
        """Queue samples of numbered series for writing."""
        return self._timed(cast("SeriesStore", self._store).submit_series(batch))

    def _timed(self, written: "Future[list[RejectedPoint]]") -> "Future[list[RejectedPoint]]":
        written.add_done_callback(partial(self._note_write, time.perf_counter()))
        return written

    def _note_write(self, started: float, written: "Future[list[RejectedPoint]]") -> None:
        self._write_seconds.observe(time.perf_counter() - started)
        if not written.cancelled() and written.exception() is not None:
            STORE_ERRORS.labels("write").inc()


def _call(name: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
    started = time.perf_counter()
    try:
        return operation(*args, **options)
    except Exception:
        STORE_ERRORS.labels(name).inc()
        raise
    finally:
        STORE_SECONDS.labels(name).observe(time.perf_counter() - started)
