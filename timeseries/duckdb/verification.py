"""Verification of an embedded store: all of it is read, and files of samples against checksums.

Of files, those that were written before they had checksums are only decompressed.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from timeseries.duckdb.files.files import LocalFiles
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.database import is_damage
from timeseries.duckdb.recovery import set_aside
from timeseries.duckdb.schema import quoted, table_name
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import DamagedStoreError, Resolution, StoreUnavailableError


def verify_tables(store: DuckDBStore) -> None:
    """Read all rows of the tables.

    Raises:
        DamagedStoreError: some can't be read.
    """
    for key in sorted(store.writer.schema):
        table = quoted(table_name(key))
        try:
            # The hash of a row needs all of its columns.
            store.fetch(f"SELECT bit_xor(hash(r)) FROM {table} r", ())  # noqa: S608 - own identifiers only
        except StoreUnavailableError as error:
            if error.__cause__ is not None and is_damage(error.__cause__):
                raise DamagedStoreError(error.message) from error
            raise


def stored_samples(store: DuckDBStore) -> int:
    """Return how many samples the tables and the files with samples have."""
    tables = [quoted(table_name(key)) for key in store.writer.schema]
    hot = sum(
        count
        for table in tables
        for (count,) in store.fetch(f"SELECT count(*) FROM {table}", ())  # noqa: S608 - own identifiers only
    )
    segments = [
        segment for name in store.manifest.measurements for segment in store.manifest.of(name)
    ]
    return int(hot) + sum(segment.rows for segment in segments if Resolution.RAW in segment.sizes)


def drop_damaged_files(store: DuckDBStore, aside: Path) -> Iterator[str]:
    """Copy damaged files to a folder and remove them from the store; yield what is lost."""
    files = store.database.files
    if not isinstance(files, LocalFiles):
        return
    for measurement in store.manifest.measurements:
        for segment in store.manifest.of(measurement):
            damaged = [
                resolution
                for resolution, path in segment.paths.items()
                if not _is_intact(Path(files.address(path)))
            ]
            if damaged:
                for path in segment.paths.values():
                    set_aside(files, path, aside)
                _remove(store, segment, damaged)
                yield (
                    f"{segment.rows:,} samples of {measurement}"
                    if Resolution.RAW in damaged
                    else f"the roll-ups of {segment.rows:,} samples of {measurement}"
                )


def _remove(store: DuckDBStore, segment: Segment, damaged: list[Resolution]) -> None:
    remainder = segment
    for resolution in damaged:
        remainder = remainder.without(resolution)
    with closing(store.database.cursor()) as cursor:
        cursor.begin()
        store.manifest.commit(
            cursor,
            segment.measurement,
            remove=[segment],
            add=[remainder] if remainder.sizes else [],
        )


def _is_intact(path: Path) -> bool:
    """Return whether a file of samples can be read, with the checksums of its pages."""
    from pyarrow import parquet  # noqa: PLC0415 - 5 MiB, for this command only

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (pa.ArrowException, OSError):
        return False
    return True
