"""A DuckDB database shared by several threads, which can be reopened after a fatal error.

After some errors, such as a disk failure during a write, DuckDB invalidates the database: every
statement fails until all connections are closed and the file is opened again. Committed data is in
the file and its WAL.

Checkpoints, which move the WAL into the file, run beside the writer: in its own commits they would
make all senders wait, for hundreds of milliseconds.
"""

import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.hot.staging import STAGING_TABLE
from timeseries.store import DamagedStoreError, StoreUnavailableError
from timeseries.store_url import files_folder

_log = logging.getLogger(__name__)
REOPEN_EVERY_SECONDS = 1.0
# A statement notices within milliseconds that it is interrupted.
CLOSE_SECONDS = 10.0
_CLOSE_AGAIN_SECONDS = 0.01

CHECKPOINT_MIB = 64
"""The size of the WAL at which it is checkpointed beside the writer."""
MAX_WAL_MIB = 4 * CHECKPOINT_MIB
"""The size at which a commit checkpoints, and its senders wait."""
_CHECKPOINTS = "checkpoints"

# No statement can access anything outside the store's own file and folder.
_SEALED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_TUNED = {
    "checkpoint_threshold": f"{MAX_WAL_MIB}MiB",
    # Freed memory goes back to the system within seconds; without, only when more is allocated.
    "allocator_background_threads": "true",
}
_LOCKED = "Could not set lock on file"
_LOCK_OWNER = re.compile(r"\(PID (\d+)\)")
_INVALIDATED = "invalidated"
_INVALID = "not a valid DuckDB database file"
# Source: https://duckdb.org/docs/stable/internals/storage.
_MAGIC, _MAGIC_OFFSET = b"DUCK", 8
_DAMAGED = re.compile(
    rf"Corrupt (WAL|database) file|{_INVALID}|computed checksum"
    r"|Serialization Error|Failed to deserialize|Could not read enough bytes"
    # Of a file of samples.
    r"|No magic bytes found|Footer length error|Decompression failure|TProtocolException"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the memory and the threads of the database.

    Attributes:
        memory_mib: buffers, caches and intermediate results; above it they go to disk, and a
            statement that can't do so fails. 0: a quarter of the memory, from 512 to 4096.
        threads: for the statements of all readers and writers together. 0: one fewer than the
            cores, from 2 to 8.
    """

    memory_mib: int = 0
    threads: int = 0

    def as_settings(self) -> dict[str, str]:
        """Return them as settings of DuckDB."""
        installed_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        memory_mib = self.memory_mib or min(max(installed_mib // 4, 512), 4096)
        threads = self.threads or min(max((os.cpu_count() or 1) - 1, 2), 8)
        return {"memory_limit": f"{memory_mib}MiB", "threads": str(threads)}


class Database:
    """One open DuckDB file, or a database in memory.

    Args:
        path: the file, created with its folder if missing, or ":memory:".
        limits: what it may use of the machine.
        files: what else it may read; by default its folder only.

    Attributes:
        is_new: whether nothing was in it when it was opened last.

    Raises:
        StoreUnavailableError: the file can't be opened; the message says why.
    """

    def __init__(
        self,
        path: Path | Literal[":memory:"],
        *,
        limits: Limits = Limits(),
        files: Files | None = None,
    ) -> None:
        self.path = path
        self._limits = limits
        self._temporary = tempfile.TemporaryDirectory() if path == ":memory:" else None
        self.folder = Path(self._temporary.name) if self._temporary else files_folder(Path(path))
        self.files = files or LocalFiles(self.folder)
        self._connection: duckdb.DuckDBPyConnection | None = self._connect()
        self._tried_at = time.monotonic()
        self._lock = threading.Lock()
        self._unlocked = threading.Condition(self._lock)
        self._is_closed = False
        self._cursors: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a new cursor; the caller closes it soon.

        Raises:
            StoreUnavailableError: the database is closed, or broken and can't be reopened yet.
        """
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            if self._connection is None:
                raise StoreUnavailableError(
                    f"The time series store {self.path} failed and is being reopened."
                )
            cursor = self._connection.cursor()
            self._cursors.add(cursor)
            return cursor

    def reopen(self) -> duckdb.DuckDBPyConnection:
        """Reopen the file, at most once per interval, and return a cursor.

        The caller has closed its own cursors; readers close theirs because every statement fails.

        Raises:
            StoreUnavailableError: it can't be reopened yet.
        """
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            now = time.monotonic()
            if self._connection is None and now - self._tried_at < REOPEN_EVERY_SECONDS:
                raise StoreUnavailableError(
                    f"The time series store {self.path} failed and is being reopened."
                )
            self._tried_at = now
            self._close_idle()
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            self._connection = _usable(self._connect(), self.path)
            return self._connection.cursor()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold a snapshot during a transaction whose commit may checkpoint.

        Without any, DuckDB locks out all other writers meanwhile, and merges row groups, which
        takes seconds. `CHECKPOINT` still does that.
        """
        with self.cursor() as cursor:
            cursor.begin()
            cursor.execute(f"SELECT 1 FROM {STAGING_TABLE} LIMIT 0").fetchall()  # noqa: S608 - ours
            try:
                yield
            finally:
                with suppress(duckdb.Error):
                    cursor.rollback()

    def checkpoint(self) -> None:
        """Write the WAL into the file while others write.

        No statement does so. A commit does that finds the WAL longer than a setting, which is one
        of the whole database. Beside a snapshot, it doesn't matter whose commit it is, but its
        sender waits: nothing runs between the two statements.

        It does nothing while a reader is older than a change of the tables.
        """
        with self.cursor() as cursor:
            cursor.execute(f"CREATE SEQUENCE IF NOT EXISTS {_CHECKPOINTS}")
            with self.snapshot():
                try:
                    cursor.execute(
                        f"SET checkpoint_threshold = '{self.wal_bytes // 2}B'; "
                        f"SELECT nextval('{_CHECKPOINTS}')"
                    )
                finally:
                    cursor.execute(f"SET checkpoint_threshold = '{MAX_WAL_MIB}MiB'")

    @property
    def wal_bytes(self) -> int:
        """The size of the log, which grows until a checkpoint."""
        try:
            return Path(f"{self.path}.wal").stat().st_size
        except FileNotFoundError:  # nothing was, or a checkpoint has just removed it
            return 0

    @property
    def free_bytes(self) -> int:
        """The free space of the file if that is most of it, else 0."""
        with self.cursor() as cursor:
            rows = cursor.execute(
                "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size()"
            ).fetchall()
        ((block_bytes, total, free),) = rows
        return int(block_bytes * free) if free > total / 2 else 0

    def close(self) -> None:
        """Interrupt what still reads, checkpoint and close the file."""
        with self._lock:
            self._is_closed = True
            self._close_idle()
            if self._temporary is not None:
                self._temporary.cleanup()

    def _close_idle(self) -> None:
        """Close the connection, which DuckDB refuses while one of its cursors runs a statement.

        Who wants a cursor meanwhile is refused and doesn't wait: the lock, which the caller holds,
        is released between tries.
        """
        connection, self._connection = self._connection, None
        until = time.monotonic() + CLOSE_SECONDS
        while connection is not None:
            try:
                connection.close()
            except duckdb.ResourceInUseException:
                if time.monotonic() > until:
                    self._connection = connection
                    raise
                for cursor in list(self._cursors):
                    with suppress(duckdb.Error):  # it is closed already
                        cursor.interrupt()
                self._unlocked.wait(_CLOSE_AGAIN_SECONDS)  # nobody notifies it
            else:
                return

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.is_new = not any(Path(f"{self.path}{end}").exists() for end in ("", ".wal"))
            config: dict[str, Any] = {**_SEALED, **_TUNED, **self._limits.as_settings()}
            connection = duckdb.connect(str(self.path), config=config)
            filesystem = self.files.filesystem
            if filesystem and not connection.filesystem_is_registered(filesystem.protocol):
                connection.register_filesystem(filesystem)
            # Folders can't be set once the database is sealed, nor before it is open.
            folders = [f"{self.folder.resolve()}/", *self.files.allowed]
            connection.execute("SET allowed_directories = ?", [folders])
            connection.execute("SET enable_external_access = false")
            connection.execute("SET parquet_metadata_cache = true")  # files never change
        except OSError as error:
            raise StoreUnavailableError(
                f"Can't create the folder of the time series file {self.path}: {error}. "
                "Set another path in TIMESERIES_URL, or make the folder writable."
            ) from error
        except duckdb.Error as error:
            is_damaged = is_damage(error) and not _is_foreign(self.path, str(error))
            kind = DamagedStoreError if is_damaged else StoreUnavailableError
            raise kind(why_not_opened(self.path, str(error))) from error
        return connection


def is_fatal(error: BaseException) -> bool:
    """Return whether DuckDB invalidated the database with this error."""
    return isinstance(error, duckdb.FatalException) or (
        isinstance(error, duckdb.Error) and _INVALIDATED in str(error)
    )


def is_damage(error: BaseException) -> bool:
    """Return whether DuckDB found bytes that it didn't write; not what another version wrote."""
    return _DAMAGED.search(str(error)) is not None


def _is_foreign(path: Path | str, error: str) -> bool:
    """Return whether a file is none of a store: its beginning is not DuckDB's, nor almost.

    TIMESERIES_URL may name any file by mistake, which must not be set aside.
    """
    if _INVALID not in error:
        return False
    with Path(path).open("rb") as file:
        file.seek(_MAGIC_OFFSET)
        magic = file.read(len(_MAGIC))
    if len(magic) < len(_MAGIC):
        return False
    equal_bytes = sum(read == expected for read, expected in zip(magic, _MAGIC, strict=True))
    return equal_bytes < len(_MAGIC) - 1


def _usable(connection: duckdb.DuckDBPyConnection, path: Path | str) -> duckdb.DuckDBPyConnection:
    """Return the connection if it works: while a reader is open it shares the broken database."""
    try:
        connection.execute("FROM duckdb_tables()").fetchall()
    except duckdb.Error as error:
        connection.close()
        raise StoreUnavailableError(
            f"The time series store {path} can't be reopened yet: {error}"
        ) from error
    return connection


def why_not_opened(path: Path | str, error: str) -> str:
    """Return the message of DuckDB's error about a file, with what to do."""
    if _LOCKED not in error:
        reason = " ".join(error.split()).rstrip(".")
        if _DAMAGED.search(error) and not _is_foreign(path, error):
            return (
                f"The time series file {path} is damaged: {reason}. Run `vedette store repair`, "
                "which sets it aside and retains what can be read, as does a start of the server."
            )
        return (
            f"The time series file {path} can't be opened: {reason}. Check the file and its "
            "permissions, or set another in TIMESERIES_URL."
        )
    owner = _LOCK_OWNER.search(error)
    process = f"process {owner[1]}" if owner else "another process"
    return (
        f"The time series file {path} is in use by {process}; only one process can open it. "
        "Stop that process, or set another file in TIMESERIES_URL."
    )


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
