"""Checkpoints beside the writer: they move the write-ahead log into the file.

In the writer's own commits they would make all senders wait, for hundreds of milliseconds.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.hot.database import CHECKPOINT_MIB, Database

_log = logging.getLogger(__name__)


class Checkpoints:
    """Checkpoints a database in a separate thread whenever the log has grown by enough.

    Args:
        database: which one.
        on_error: is called after one failed, which may have invalidated the database.
    """

    def __init__(self, database: Database, *, on_error: Callable[[], None]) -> None:
        self._database = database
        self._on_error = on_error
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duckdb-checkpoint")
        self._running: Future[None] | None = None
        self._left_bytes = 0

    def begin_if_due(self) -> None:
        """Begin a checkpoint if the log is long; only the writer's thread calls it."""
        if self._running is not None and not self._running.done():
            return
        wal_bytes = self._database.wal_bytes
        # Bytes that a checkpoint could not move do not cause the next one.
        self._left_bytes = min(self._left_bytes, wal_bytes)
        if wal_bytes - self._left_bytes >= CHECKPOINT_MIB * 2**20:
            self._running = self._pool.submit(self._checkpoint)

    def close(self) -> None:
        """Wait for the running checkpoint."""
        self._pool.shutdown()

    def _checkpoint(self) -> None:
        try:
            self._database.checkpoint()
        except (duckdb.Error, VedetteError) as error:
            _log.warning("could not checkpoint the time series database: %s", error)
            self._on_error()
        self._left_bytes = self._database.wal_bytes
