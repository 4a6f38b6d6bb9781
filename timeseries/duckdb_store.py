"""The embedded store: one DuckDB file, no server.

Writes go through one thread that commits many submissions together; a submission's future resolves
after the commit that holds it has reached the disk, so an acknowledged sample outlives kill -9.
Reads run beside it on cursors of their own. DuckDB lets one process at a time open the file.

A sender that retries can deliver a point twice and both rows are kept. `latest`, and of the
aggregates min, max and last, are the same with or without them; sum and count are made from one
row per series and instant; avg and percentiles weigh such an instant twice.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import duckdb

from timeseries.duckdb_schema import TIME_COLUMN, Table, quoted, tag_column
from timeseries.duckdb_sql import exists_sql, latest_sql, range_sql, tag_values_sql, visible
from timeseries.duckdb_writer import DuckDBWriter
from timeseries.points import Point
from timeseries.store import (
    IDENTITY_TAGS,
    TENANT_TAG,
    Latest,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    Series,
    StoreUnavailableError,
)

MEMORY: Literal[":memory:"] = ":memory:"
MAX_QUEUED_POINTS = 500_000

# A statement can reach nothing but the store's own file, whatever its text.
_SEALED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
}
_LOCK_HOLDER = re.compile(r"\(PID (\d+)\)")


class DuckDBStore:
    """A `Store` in one DuckDB file, or in memory.

    Args:
        path: the file, made with its folder where missing, or ":memory:".
        max_queued_points: how many points may wait for the writer before `submit` refuses.

    Raises:
        StoreUnavailableError: the file can't be opened; the message says why.
    """

    def __init__(
        self, path: Path | Literal[":memory:"], *, max_queued_points: int = MAX_QUEUED_POINTS
    ) -> None:
        self._path = path
        self._connection = _connect(path)
        self._lock = threading.Lock()
        self._is_closed = False
        self._writer = DuckDBWriter(self._cursor(), max_queued_points=max_queued_points)

    def submit(
        self, points: Sequence[Point], *, identity: Mapping[str, str]
    ) -> Future[list[RejectedPoint]]:
        """Queue points for the next commit; the future holds those refused.

        Raises:
            OverloadedError: too many points wait already.
        """
        return self._writer.submit(points, identity)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""
        table = self._table(query.measurement)
        fields = sorted(table.fields.keys() & set(query.fields))
        if not fields:
            return []
        rows = self._fetch(*range_sql(query, table, fields))
        width = len(query.group_by)
        series = []
        for index, name in enumerate(fields):
            for row in rows:
                times, values = row[width + 2 * index : width + 2 * index + 2]
                if times:
                    tags = dict(zip(query.group_by, row[:width], strict=True))
                    series.append(Series(name, tags, times, values))
        return series

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group."""
        table = self._table(query.measurement)
        fields = sorted(table.fields.keys() & set(query.fields))
        if not fields:
            return []
        width = len(query.group_by)
        found = []
        for row in self._fetch(*latest_sql(query, table, fields)):
            time_ns = row[width]
            pairs = zip(fields, row[width + 1 :], strict=True)
            values = {name: value for name, value in pairs if value is not None}
            if time_ns is not None:
                tags = dict(zip(query.group_by, row[:width], strict=True))
                found.append(Latest(tags, time_ns, values))
        return found

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        found = []
        for measurement, table in self._writer.schema.items():
            condition = visible(table, tenants=tenants)
            text = "" if condition.is_never else exists_sql(measurement, condition)
            if self._fetch(text, condition.values):
                found.append(measurement)
        return sorted(found)

    def fields(self, measurement: str) -> dict[str, str]:
        """Return field name to type: `float`, `integer`, `boolean` or `string`."""
        return {name: str(kind) for name, kind in sorted(self._table(measurement).fields.items())}

    def tags(self, measurement: str) -> list[str]:
        """Return the names of the measurement's tags, identity tags first, then sorted."""
        table = self._writer.schema.get(measurement)
        return [*IDENTITY_TAGS, *sorted(table.tags.difference(IDENTITY_TAGS))] if table else []

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        table = self._table(measurement)
        if tag not in table.tags or measurement not in self._writer.schema:
            return []
        condition = visible(table, tenants=tenants)
        text = "" if condition.is_never else tag_values_sql(measurement, tag, condition)
        return [value for (value,) in self._fetch(text, condition.values)]

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, those still queued included."""
        self._writer.delete(f"{quoted(tag_column(TENANT_TAG))} = ?", tenant)

    def delete_before(self, before_ns: int) -> None:
        """Delete every sample older than `before_ns`."""
        self._writer.delete(f"{quoted(TIME_COLUMN)} < ?", before_ns)

    def close(self) -> None:
        """Write what is queued, fold the log into the file and release it."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._writer.close()
        self._connection.close()

    def _table(self, measurement: str) -> Table:
        return self._writer.schema.get(measurement, Table())

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            return self._connection.cursor()

    def _fetch(self, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a read on a cursor of its own; no text gives no rows."""
        if not text:
            return []
        try:
            with self._cursor() as cursor:
                return cursor.execute(text, values).fetchall()
        except duckdb.Error as error:
            raise StoreUnavailableError(
                f"The time series store {self._path} could not answer: {error}"
            ) from error


def _connect(path: Path | str) -> duckdb.DuckDBPyConnection:
    try:
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return duckdb.connect(str(path), config={**_SEALED})
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
