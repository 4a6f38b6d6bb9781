"""What the database remembers of its roll-ups, read once and then kept in step by the writer.

A *draft* is changed along with the transaction that is open, and replaces what readers see once
that has been committed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from timeseries.duckdb.rollups_coverage import HOUR_NS, Progress
from timeseries.duckdb.rollups_schema import (
    LATE_TABLE,
    PROGRESS_TABLE,
    STATE_DDL,
    rollup_tables_from,
)
from timeseries.duckdb.schema import (
    READ_COLUMNS,
    TIME_COLUMN,
    schema_from,
    tag_column,
)
from timeseries.store import APPLIANCE_TAG, Resolution

_APPLIANCE_COLUMN = tag_column(APPLIANCE_TAG)
_NOTHING = Progress()


class RollUpState:
    """The progress of every measurement's roll-ups, as of the last commit.

    Args:
        cursor: the writing cursor; used only here and within the transactions of its owner.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        for statement in STATE_DDL:
            cursor.execute(statement)
        self._seen: Mapping[str, Progress] = _read(cursor)
        self._draft: dict[str, Progress] = {}
        self._claims: dict[str, int] = {}

    def progress(self, measurement: str) -> Progress:
        """Return how far a measurement's roll-ups are, as readers may use it."""
        return self._seen.get(measurement, _NOTHING)

    def begin(self) -> None:
        """Forget a draft whose transaction was not committed."""
        self._draft = {}

    def committed(self) -> None:
        """Show the draft to readers."""
        if self._draft:
            self._seen = {**self._seen, **self._draft}
            self._draft = {}

    def drafted(self, measurement: str) -> Progress:
        """Return a measurement's progress within the open transaction."""
        return self._draft.get(measurement) or self.progress(measurement)

    def in_transaction(
        self, cursor: duckdb.DuckDBPyConnection, written: Mapping[str, pa.Table]
    ) -> None:
        """Note which hours that are rolled up already are made late by samples being written.

        Args:
            written: measurement to the columns that go into its table in the open transaction.
        """
        for measurement, data in written.items():
            until = self._marked_before(measurement)
            times = data.column(TIME_COLUMN)
            if pc.min(times).as_py() < until:
                late = data.select([TIME_COLUMN, _APPLIANCE_COLUMN]).filter(pc.less(times, until))
                self._mark(cursor, measurement, _hours(late))

    def claim(self, measurement: str, until: int) -> None:
        """Take samples before this as late from now on, though it is not rolled up yet."""
        self._claims[measurement] = max(until, self._claims.get(measurement, 0))

    def save(self, cursor: duckdb.DuckDBPyConnection, measurement: str, progress: Progress) -> None:
        """Write a measurement's progress, but for its late hours, in the open transaction."""
        self._draft[measurement] = progress
        cursor.execute(f"DELETE FROM {PROGRESS_TABLE} WHERE measurement = ?", [measurement])  # noqa: S608 - ours
        until, since = progress.until, progress.since
        cursor.execute(
            f"INSERT INTO {PROGRESS_TABLE} VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - ours
            [
                measurement,
                until.get(Resolution.MINUTE),
                until.get(Resolution.HOUR),
                since.get(Resolution.RAW),
                since.get(Resolution.MINUTE),
                since.get(Resolution.HOUR),
            ],
        )

    def unmark(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        *,
        hour_ns: int,
        appliances: Iterable[str],
    ) -> None:
        """Note in the open transaction that an hour has these appliances' late samples now."""
        done = list(appliances)
        progress = self.drafted(measurement)
        rest = progress.late.get(hour_ns, frozenset()).difference(done)
        late = {hour: marked for hour, marked in progress.late.items() if hour != hour_ns}
        if rest:
            late[hour_ns] = rest
        self._draft[measurement] = replace(progress, late=late)
        cursor.execute(
            f"DELETE FROM {LATE_TABLE} WHERE measurement = ? AND hour = ? "  # noqa: S608 - ours
            f"AND appliance IN ({', '.join('?' * len(done))})",
            [measurement, hour_ns, *done],
        )

    def _marked_before(self, measurement: str) -> int:
        reached = self.progress(measurement).until.get(Resolution.MINUTE, 0)
        return max(reached, self._claims.get(measurement, 0))

    def _mark(
        self, cursor: duckdb.DuckDBPyConnection, measurement: str, hours: Mapping[int, set[str]]
    ) -> None:
        progress = self.drafted(measurement)
        late = dict(progress.late)
        rows = []
        for hour, appliances in hours.items():
            known = late.get(hour, frozenset())
            rows += [(measurement, hour, name) for name in sorted(appliances - known)]
            late[hour] = known | appliances
        if rows:
            places = ", ".join(["(?, ?, ?)"] * len(rows))
            cursor.execute(
                f"INSERT INTO {LATE_TABLE} VALUES {places}",  # noqa: S608 - ours
                [value for row in rows for value in row],
            )
            self._draft[measurement] = replace(progress, late=late)


def _hours(late: pa.Table) -> dict[int, set[str]]:
    """Return the hours of some samples, and whose they are."""
    hours = pc.multiply(pc.divide(late.column(TIME_COLUMN), HOUR_NS), HOUR_NS)
    names = late.column(_APPLIANCE_COLUMN).cast(pa.string())
    pairs = pa.table({"hour": hours, "name": names}).group_by(["hour", "name"]).aggregate([])
    found: dict[int, set[str]] = {}
    for pair in pairs.to_pylist():
        if pair["hour"] >= 0:
            found.setdefault(pair["hour"], set()).add(pair["name"] or "")
    return found


def _read(cursor: duckdb.DuckDBPyConnection) -> dict[str, Progress]:
    columns = cursor.execute(READ_COLUMNS).fetchall()
    tables = rollup_tables_from(columns, schema_from(columns))
    rows = cursor.execute(f"FROM {PROGRESS_TABLE}").fetchall()
    late: dict[str, dict[int, frozenset[str]]] = {}
    for measurement, hour, appliance in cursor.execute(f"FROM {LATE_TABLE}").fetchall():
        hours = late.setdefault(measurement, {})
        hours[hour] = hours.get(hour, frozenset()) | {appliance}
    return {
        measurement: Progress(
            until=_given({Resolution.MINUTE: minute_until, Resolution.HOUR: hour_until}),
            since=_given(
                {
                    Resolution.RAW: raw_since,
                    Resolution.MINUTE: minute_since,
                    Resolution.HOUR: hour_since,
                }
            ),
            late=late.get(measurement, {}),
            tables=tables.get(measurement, {}),
        )
        for measurement, minute_until, hour_until, raw_since, minute_since, hour_since in rows
    }


def _given(times: Mapping[Resolution, int | None]) -> dict[Resolution, int]:
    return {resolution: time for resolution, time in times.items() if time is not None}
