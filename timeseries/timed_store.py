"""Measures how long a store takes, for the metrics of the server."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from prometheus_client import Counter, Histogram

from timeseries.points import Batch
from timeseries.store import RejectedPoint, Store

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
        started = time.perf_counter()
        written = self._store.submit(batch, identity=identity)
        written.add_done_callback(partial(self._note_write, started))
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
