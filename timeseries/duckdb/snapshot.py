"""A consistent copy of an embedded store, made by the process that has it open, for backups."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from timeseries.duckdb.files.segments import MANIFEST_TABLE, read_segments
from timeseries.duckdb.schema import quoted
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import StoreUnavailableError

_COPY = "snapshot"
# Tables of samples; see `schema`.
_TABLES = (
    "SELECT table_name FROM duckdb_tables() "
    "WHERE starts_with(table_name, 'm_') OR starts_with(table_name, 't_')"
)
_SEALED = f"SELECT coalesce(sum(rows), 0) FROM {MANIFEST_TABLE} WHERE raw_bytes IS NOT NULL"  # noqa: S608 - ours


@contextmanager
def snapshot(store: DuckDBStore) -> Iterator[Path]:
    """Give a copy of the store's file in which all files of samples are that it lists.

    They are not deleted during the block, whatever retention does. Writers and readers go on. The
    copy is deleted at the end of the block.

    Raises:
        StoreUnavailableError: the file can't be copied, for example because the disk is full.
    """
    # DuckDB may write to no other folder.
    copy = store.database.folder / f"{_COPY}.duckdb"
    # Staged samples would be in the copy, too, but not be counted.
    store.writer.run(lambda _cursor, _schema: None)
    with store.manifest.pinned():
        try:
            _copy(store, copy)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def _copy(store: DuckDBStore, copy: Path) -> None:
    for left in (copy, copy.with_name(f"{copy.name}.wal")):
        left.unlink(missing_ok=True)  # by a process that was killed
    path = str(copy).replace("'", "''")
    with store.database.cursor() as cursor:
        try:
            name = cursor.execute("SELECT current_database()").fetchall()[0][0]
            cursor.execute(f"ATTACH '{path}' AS {_COPY}")
            try:
                cursor.execute(f"COPY FROM DATABASE {quoted(name)} TO {_COPY}")
            finally:
                with suppress(duckdb.Error):
                    cursor.execute(f"DETACH {_COPY}")
        except duckdb.Error as error:
            raise StoreUnavailableError(
                f"The time series file {store.database.path} can't be copied: {error}"
            ) from error


def stored_samples_of(copy: Path) -> int:
    """Return how many samples a copy has, in its tables and in the files that it lists."""
    with duckdb.connect(str(copy), read_only=True) as connection:
        tables = connection.execute(_TABLES).fetchall()
        hot = sum(
            connection.execute(f"SELECT count(*) FROM {quoted(name)}").fetchall()[0][0]  # noqa: S608 - own identifiers only
            for (name,) in tables
        )
        ((sealed,),) = connection.execute(_SEALED).fetchall()
    return int(hot + sealed)


def listed_files(copy: Path) -> dict[str, int]:
    """Return the files that a copy lists, relative to their folder, with their sizes in bytes."""
    with duckdb.connect(str(copy), read_only=True) as connection:
        return {
            path: segment.sizes[resolution]
            for segment in read_segments(connection)
            for resolution, path in segment.paths.items()
        }
