"""A DuckDB database that several threads use, opened again after it has shut itself down.

After some errors (a disk that failed in the middle of a write) DuckDB refuses every statement until
the file was closed by all and opened anew; what was committed before is in the file and its log.
"""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import duckdb

from timeseries.store import StoreUnavailableError

REOPEN_EVERY_SECONDS = 1.0

# A statement can reach nothing but the store's own file, whatever its text.
_SEALED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
}
# The larger the log may grow, the fewer row groups are written more than once, and the longer it
# takes to read it after a crash.
_TUNED = {"checkpoint_threshold": "128MiB"}
_LOCK_HOLDER = re.compile(r"\(PID (\d+)\)")
_INVALIDATED = "invalidated"


class Database:
    """One open DuckDB file, or a database in memory.

    Args:
        path: the file, made with its folder where missing, or ":memory:".
        monotonic: seconds that only grow; how often a broken file is tried again goes by them.

    Raises:
        StoreUnavailableError: the file can't be opened; the message says why.
    """

    def __init__(
        self, path: Path | Literal[":memory:"], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._monotonic = monotonic
        self._connection: duckdb.DuckDBPyConnection | None = _connect(path)
        self._tried_at = monotonic()
        self._lock = threading.Lock()
        self._is_closed = False

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a cursor of its own for the caller, who closes it soon.

        Raises:
            StoreUnavailableError: the database is closed, or broke and can't be opened yet.
        """
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            if self._connection is None:
                raise StoreUnavailableError(
                    f"The time series store {self.path} failed and is being opened again."
                )
            return self._connection.cursor()

    def reopen(self) -> duckdb.DuckDBPyConnection:
        """Open the file anew, at most once in a while, and return a cursor.

        The caller has closed its own cursors; those of readers close by themselves, as every
        statement of theirs fails.

        Raises:
            StoreUnavailableError: it can't be opened yet.
        """
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            now = self._monotonic()
            if self._connection is None and now - self._tried_at < REOPEN_EVERY_SECONDS:
                raise StoreUnavailableError(
                    f"The time series store {self.path} failed and is being opened again."
                )
            self._tried_at = now
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._connection = _usable(_connect(self.path), self.path)
            return self._connection.cursor()

    def close(self) -> None:
        """Fold the log into the file and release it."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def is_fatal(error: BaseException) -> bool:
    """Return whether the database shut itself down with this error."""
    return isinstance(error, duckdb.FatalException) or (
        isinstance(error, duckdb.Error) and _INVALIDATED in str(error)
    )


def _usable(connection: duckdb.DuckDBPyConnection, path: Path | str) -> duckdb.DuckDBPyConnection:
    """Return the connection if its database answers: it is the old one while a reader has it."""
    try:
        connection.execute("FROM duckdb_tables()").fetchall()
    except duckdb.Error as error:
        connection.close()
        raise StoreUnavailableError(
            f"The time series store {path} can't be opened again yet: {error}"
        ) from error
    return connection


def _connect(path: Path | str) -> duckdb.DuckDBPyConnection:
    try:
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return duckdb.connect(str(path), config={**_SEALED, **_TUNED})
    except OSError as error:
        raise StoreUnavailableError(
            f"The folder of the time series file {path} can't be made: {error}. "
            "Give another path in TIMESERIES_URL, or make the folder writable."
        ) from error
    except duckdb.Error as error:
        raise StoreUnavailableError(_why_not_opened(path, str(error))) from error


def _why_not_opened(path: Path | str, error: str) -> str:
    if "lock" not in error:
        return f"The time series file {path} can't be opened: {error}"
    holder = _LOCK_HOLDER.search(error)
    process = f"process {holder[1]}" if holder else "another process"
    return (
        f"The time series file {path} is in use by {process}, and DuckDB lets one process at a "
        "time open it. Stop that process, or give this one another file in TIMESERIES_URL."
    )
