"""Files of samples that no manifest lists, after the database was damaged.

They are described by themselves: the rows of a manifest are read from their schemas and columns.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import duckdb

from timeseries.duckdb.files.files import Files
from timeseries.duckdb.files.layout import is_open_path
from timeseries.duckdb.files.segments import Segment, insert_segment
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Table,
    field_column,
    field_of,
    quoted,
    tag_column,
    tag_of,
)
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Detail, Resolution
from timeseries.validation import FieldType

_log = logging.getLogger(__name__)
# Numbers may be of any smaller type that holds them exactly; as floats they suit any sender.
_KINDS = {"BOOLEAN": FieldType.BOOLEAN, "VARCHAR": FieldType.STRING}
_APPLIANCE, _TENANT = quoted(tag_column(APPLIANCE_TAG)), quoted(tag_column(TENANT_TAG))
# What a roll-up has of a field from which detail on.
_DETAILS = (
    (Resolution.HOUR, "count_", Detail.HOURS),
    (Resolution.FIVE_MINUTES, "count_", Detail.MEANS),
    (Resolution.HOUR, "sketch_", Detail.PERCENTILES),
    (Resolution.FIVE_MINUTES, "min_", Detail.ALL),
)


def adopt(cursor: duckdb.DuckDBPyConnection, files: Files, paths: Iterable[str]) -> list[str]:
    """List files in the manifest; return those that can't be read, or belong to none that can.

    A segment without samples, whose retention has ended, is not adopted: its roll-ups don't have
    the types of the fields.
    """
    segments: dict[str, dict[Resolution, str]] = defaultdict(dict)
    unreadable: list[str] = []
    for path in paths:
        file = PurePosixPath(path).name
        name, _, resolution = file.removesuffix(".parquet").rpartition(".")
        segments[name][Resolution(resolution)] = path
    for resolutions in segments.values():
        try:
            segment = _described(cursor, files, resolutions)
        except (duckdb.Error, KeyError, OSError) as error:
            _log.warning("files of samples can't be read: %s", error)
            unreadable += resolutions.values()
        else:
            insert_segment(cursor, segment)
    return unreadable


def _described(
    cursor: duckdb.DuckDBPyConnection, files: Files, paths: Mapping[Resolution, str]
) -> Segment:
    raw = paths[Resolution.RAW]
    columns = {
        resolution: _columns(cursor, files.address(path)) for resolution, path in paths.items()
    }
    table = _table(columns[Resolution.RAW])
    row = cursor.execute(
        f"SELECT min({TIME_COLUMN}), max({TIME_COLUMN}), min({_APPLIANCE}), max({_APPLIANCE}), "  # noqa: S608 - own identifiers only
        f"count(*), max({_TENANT}) FROM read_parquet(?)",
        [files.address(raw)],
    ).fetchall()
    ((oldest, newest, first, last, rows, tenant),) = row
    _tenant, measurement, *_folders, name = PurePosixPath(raw).parts
    return Segment(
        name=name.partition(".")[0],
        tenant=tenant or "",
        measurement=unquote(measurement.removeprefix("measurement=")),
        oldest_ns=oldest,
        newest_ns=newest,
        first_appliance=first or "",
        last_appliance=last or "",
        rows=rows,
        table=table,
        rolled=_rolled(table, columns),
        sizes={
            resolution: Path(files.address(path)).stat().st_size
            for resolution, path in paths.items()
        },
        is_open=is_open_path(raw),
    )


def _rolled(table: Table, columns: Mapping[Resolution, Mapping[str, str]]) -> Mapping[str, Detail]:
    """Return how much of each field its roll-ups have."""
    rolled = {}
    for name in table.fields:
        suffix = field_column(name).removeprefix(field_column(""))
        details = [
            detail
            for resolution, prefix, detail in _DETAILS
            if prefix + suffix in columns.get(resolution, {})
        ]
        if details:
            rolled[name] = max(details)
    return rolled


def _table(columns: Mapping[str, str]) -> Table:
    tags = {tag_of(column) for column in columns}
    fields = {field_of(column): kind for column, kind in columns.items()}
    return Table(
        frozenset(tag for tag in tags if tag is not None),
        {
            name: _KINDS.get(kind, FieldType.FLOAT)
            for name, kind in fields.items()
            if name is not None
        },
    )


def _columns(cursor: duckdb.DuckDBPyConnection, address: str) -> dict[str, str]:
    rows = cursor.execute("DESCRIBE SELECT * FROM read_parquet(?)", [address]).fetchall()
    return {name: kind for name, kind, *_ in rows}
