"""Sealing: moving settled samples from the table into files, and merging small files.

An hour is *settled* some time after its end, when nearly all its samples have arrived. Settled
samples of one tenant, measurement and day are sealed once they are worth a file, or once their day
is settled. Those that come later are sealed into segments of their own. Once a day is settled, its
small segments are merged. Exact duplicates are left out while sealing, and points of one series and
instant become one while merging.

Both run beside the writer. A transaction reads the samples, writes the files, deletes the samples
and adds the segment; it sees and deletes only samples that were committed when it began. After a
crash either the samples or the segment are there; files without a segment are deleted at the start.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice

import duckdb
import pyarrow as pa

from core.clock import NS_PER_SECOND
from core.ids import new_id
from timeseries.duckdb.database import Database
from timeseries.duckdb.float_types import float_types
from timeseries.duckdb.parquet import ROW_GROUP_ROWS, write_parquet
from timeseries.duckdb.relation import Relation, Statement, files_sql
from timeseries.duckdb.rollup_sql import build_sql, rollup_columns, time_range_sql
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    WIDTHS_NS,
    Key,
    Span,
    Table,
    field_column,
    parse_schema,
    quoted,
    table_name,
    tag_column,
    united,
)
from timeseries.duckdb.segments import Manifest, Segment
from timeseries.duckdb.sql import select
from timeseries.store import (
    APPLIANCE_TAG,
    DAY_NS,
    HOUR_NS,
    IDENTITY_TAGS,
    TENANT_TAG,
    NeededField,
    Resolution,
)
from timeseries.validation import FieldType

GRACE_NS = 1_800 * NS_PER_SECOND
"""How long after its end an hour is settled."""
MIN_ROWS = ROW_GROUP_ROWS
"""How many samples are worth a file before their day is settled."""
MAX_ROWS = 500_000
"""About how many samples are sealed in one transaction."""
MAX_MERGED_ROWS = 4_000_000
"""About how many samples a merged segment has."""
MAX_ROLLED_FIELDS = 128
"""How many fields one statement aggregates: its memory grows with the square of them."""
MAX_NEEDED_FIELDS = 64
"""How many fields of a tenant's measurement have roll-ups because they are asked for."""
MAX_SHARE = 0.5
"""How large a roll-up by five minutes may be, in sizes of its samples, to be worth a file."""
_TIME = quoted(TIME_COLUMN)
_TENANT = f"coalesce({quoted(tag_column(TENANT_TAG))}, '')"
_APPLIANCE = f"coalesce({quoted(tag_column(APPLIANCE_TAG))}, '')"
_COLUMNS_SQL = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND table_name = ? ORDER BY column_index"
)
RolledUp = Callable[[str, str], bool]
"""Whether a field, of a measurement, has roll-ups."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Samples of one tenant and measurement to seal or merge at once.

    Attributes:
        key: the table that they are in.
        span: times within a day.
        appliances: the first and the last one; None for all.
    """

    tenant: str
    key: Key
    span: Span
    rows: int
    appliances: tuple[str, str] | None = None

    @property
    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition and its values."""
        text, values = (
            f"{_TENANT} = ? AND {time_range_sql([self.span])}",
            list[object]([self.tenant]),
        )
        if self.appliances:
            text += f" AND {_APPLIANCE} BETWEEN ? AND ?"
            values += self.appliances
        return text, values


def settled_before(now_ns: int) -> int:
    """Return the end of the last settled hour."""
    return (now_ns - GRACE_NS) // HOUR_NS * HOUR_NS


class Sealing:
    """Seals and merges; only one call at a time, while nothing else deletes samples.

    Args:
        database: where it opens its own cursors.
        manifest: gets the segments.
        is_rolled_up: which fields always have roll-ups.
    """

    def __init__(self, database: Database, manifest: Manifest, is_rolled_up: RolledUp) -> None:
        self._database = database
        self._manifest = manifest
        self._is_rolled_up = is_rolled_up
        self._needed: frozenset[NeededField] = frozenset()

    def need(self, fields: Iterable[NeededField]) -> None:
        """Give roll-ups to more fields: the first `MAX_NEEDED_FIELDS` of each measurement."""
        by_name = groupby(sorted(set(fields)), key=lambda one: one[:2])
        self._needed = frozenset(
            one for _, some in by_name for one in islice(some, MAX_NEEDED_FIELDS)
        )

    def units(self, key: Key, *, now_ns: int) -> list[Unit]:
        """Return what to seal of a table, the largest first."""
        until = settled_before(now_ns)
        table = quoted(table_name(key))
        counted = (
            f"SELECT {_TENANT}, {_TIME} // {DAY_NS}, count(*) FROM {table} "  # noqa: S608 - ours
            f"WHERE {_TIME} >= 0 AND {_TIME} < ? GROUP BY ALL ORDER BY 3 DESC"
        )
        with self._database.cursor() as cursor:
            found = []
            for tenant, day, rows in cursor.execute(counted, [until]).fetchall():
                span = (day * DAY_NS, min((day + 1) * DAY_NS, until))
                if rows >= MIN_ROWS or (day + 1) * DAY_NS <= until:
                    unit = Unit(tenant, key, span, rows)
                    found += _by_hours(cursor, unit) if rows > MAX_ROWS else [unit]
        return found

    def seal(self, unit: Unit) -> int:
        """Seal a unit; return how many samples."""
        name = table_name(unit.key)
        text, values = unit.condition
        source = f"(FROM {quoted(name)} WHERE {text})"
        with self._transaction() as cursor:
            columns = cursor.execute(_COLUMNS_SQL, [name]).fetchall()
            known = parse_schema(columns)[unit.key]
            survey = _survey(cursor, source, values, known)
            if survey is None:
                return 0
            table, span = survey
            earlier = [
                one
                for one in self._manifest.of(unit.key.measurement)
                if one.tenant == unit.tenant and Resolution.RAW in one.sizes and one.overlaps(span)
            ]
            new, some = self._without_known(source, values, table, earlier, span)
            added = self._write(cursor, unit, table, (new, some))
            cursor.execute(f"DELETE FROM {quoted(name)} WHERE {text}", values)  # noqa: S608 - ours
            self._manifest.commit(cursor, unit.key.measurement, add=added)
        return unit.rows

    def merge(self, unit: Unit, segments: Sequence[Segment]) -> int:
        """Replace segments that have samples of one day by as few as possible."""
        source, values = files_sql(self._manifest.files, segments, Resolution.RAW)
        source = f"(FROM {source})"
        table = united(one.table for one in segments)
        with self._transaction() as cursor:
            added = []
            for part in _by_appliances(cursor, unit, source, values, of_rows=MAX_MERGED_ROWS):
                text, some = part.condition
                rows = f"(FROM {source} WHERE {text})"
                added += self._write(cursor, part, table, (rows, [*values, *some]))
            self._manifest.commit(cursor, unit.key.measurement, remove=segments, add=added)
        return sum(one.rows for one in segments)

    def merge_expired(self, segments: Sequence[Segment]) -> int:
        """Replace segments without samples, of one tenant and measurement, by one."""
        table = united(one.stored(None) for one in segments)
        merged = replace(
            segments[0],
            name=new_id(),
            oldest_ns=min(one.oldest_ns for one in segments),
            newest_ns=max(one.newest_ns for one in segments),
            first_appliance=min(one.first_appliance for one in segments),
            last_appliance=max(one.last_appliance for one in segments),
            rows=sum(one.rows for one in segments),
            table=table,
            rolled=frozenset(table.fields),
            sizes={},
        )
        order = ", ".join([*_series(merged.table), _TIME])
        sizes = {}
        with self._transaction() as cursor:
            for resolution in segments[0].sizes:
                source, values = files_sql(self._manifest.files, segments, resolution)
                file = self._manifest.files.create(merged.path(resolution))
                sizes[resolution] = write_parquet(
                    file, _stream(cursor, f"FROM {source} ORDER BY {order}", values)
                )
                self._manifest.files.publish(file, merged.path(resolution))
            added = replace(merged, sizes=sizes)
            self._manifest.commit(cursor, merged.measurement, remove=segments, add=[added])
        return merged.rows

    def _without_known(
        self,
        source: str,
        values: Sequence[object],
        table: Table,
        earlier: Sequence[Segment],
        span: Span,
    ) -> Statement:
        """Return a source without the samples that are in earlier segments already."""
        if not earlier:
            return source, list(values)
        relation = Relation(
            tables={Key("", ""): table},
            segments=earlier,
            files=self._manifest.files,
            tenants=None,
        )
        known, paths = relation.samples_of_files(table.fields, [span], earlier)
        columns = [_TIME, *map(quoted, table.columns)]
        text = f"({select(columns, source)} EXCEPT {select(columns, known)})"
        return text, [*values, *paths]

    def _write(
        self,
        cursor: duckdb.DuckDBPyConnection,
        unit: Unit,
        table: Table,
        rows: Statement,
    ) -> list[Segment]:
        """Write the files of a new segment; none if there are no rows.

        Floats with few decimal places are stored as decimals, which take less space.
        """
        source, values = rows
        series, fields = _series(table), [quoted(field_column(name)) for name in table.fields]
        columns = [_TIME, *series, *fields]
        key = ", ".join([_TIME, *series])
        if _has_duplicates(cursor, source, values, key):
            once = [f"any_value({column}) AS {column}" for column in fields]
            source = f"({select([_TIME, *series, *once], source)} GROUP BY {key})"
        place = (unit.tenant, unit.key.measurement)
        segment = Segment(
            name=new_id(),
            tenant=unit.tenant,
            measurement=unit.key.measurement,
            oldest_ns=unit.span[0],
            newest_ns=unit.span[1] - 1,
            first_appliance="",
            last_appliance="",
            rows=0,
            table=table,
            rolled=frozenset(
                name
                for name, kind in table.fields.items()
                if kind is not FieldType.STRING
                and (self._is_rolled_up(place[1], name) or (*place, name) in self._needed)
            ),
            sizes={},
        )
        raw = self._manifest.files.create(segment.path(Resolution.RAW))
        types = float_types(cursor, source, values, table)
        typed = [
            f"CAST({one} AS {types[one]}) AS {one}" if one in types else one for one in columns
        ]
        text = f"{select(typed, source)} ORDER BY {', '.join([*series, _TIME])}"
        sizes = {Resolution.RAW: write_parquet(raw, _stream(cursor, text, values))}
        samples = f"read_parquet({_text(str(raw))}, hive_partitioning = false)"
        counted = [
            "count(*)",
            *(f"{f}({of})" for of in (_TIME, _APPLIANCE) for f in ("min", "max")),
        ]
        counted += [f"count({column})" for column in fields]
        found = cursor.execute(select(counted, samples)).fetchall()[0]
        total, oldest, newest, first, last, *counts = found
        if not total:
            self._manifest.files.abandon()
            return []
        files = {Resolution.RAW: raw}
        with_gaps = {
            name for name, count in zip(table.fields, counts, strict=True) if count < total
        }
        for resolution in WIDTHS_NS if segment.rolled else ():
            file = files[resolution] = self._manifest.files.create(segment.path(resolution))
            rolled = {name: kind for name, kind in table.fields.items() if name in segment.rolled}
            batches = _rolled_up(
                cursor, samples, resolution, Table(table.tags, rolled), with_gaps=with_gaps
            )
            sizes[resolution] = write_parquet(file, batches)
        if sizes.get(Resolution.FIVE_MINUTES, 0) > sizes[Resolution.RAW] * MAX_SHARE:
            # Samples answer as fast, and when they have expired hours must do.
            del sizes[Resolution.FIVE_MINUTES]
            files.pop(Resolution.FIVE_MINUTES).unlink()
        for resolution, file in files.items():
            self._manifest.files.publish(file, segment.path(resolution))
        return [
            replace(
                segment,
                oldest_ns=oldest,
                newest_ns=newest,
                first_appliance=first,
                last_appliance=last,
                rows=total,
                sizes=sizes,
            )
        ]

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Begin a transaction on a cursor of its own; roll back what is not committed."""
        with self._database.snapshot(), self._database.cursor() as cursor:
            cursor.begin()
            try:
                yield cursor
            except BaseException:
                with suppress(duckdb.Error):
                    cursor.rollback()
                self._manifest.files.abandon()
                raise


def _series(table: Table) -> list[str]:
    """Return the quoted columns of a series, the appliance first."""
    first = [APPLIANCE_TAG, *sorted(table.tags - {APPLIANCE_TAG})]
    return [quoted(tag_column(tag)) for tag in first]


def _survey(
    cursor: duckdb.DuckDBPyConnection, source: str, values: Sequence[object], known: Table
) -> tuple[Table, Span] | None:
    """Return what has values in a source: tags, fields and span; None if it is empty."""
    columns = list(map(quoted, known.columns))
    counted = [f"min({_TIME})", f"max({_TIME})"]
    counted += [f"count({column})" for column in columns]
    oldest, newest, *counts = cursor.execute(select(counted, source), values).fetchall()[0]
    if oldest is None:
        return None
    present = {column for column, count in zip(columns, counts, strict=True) if count}
    tags = {tag for tag in known.tags if quoted(tag_column(tag)) in present}
    fields = {
        name: kind for name, kind in known.fields.items() if quoted(field_column(name)) in present
    }
    return Table(frozenset({*tags, *IDENTITY_TAGS}), fields), (oldest, newest + 1)


def _has_duplicates(
    cursor: duckdb.DuckDBPyConnection, source: str, values: Sequence[object], key: str
) -> bool:
    """Return whether a series has two rows at one instant.

    It compares hashes, in less than half the time; a hash collision costs time but no data.
    """
    hashes = f"(SELECT hash({key}) AS h FROM {source})"  # noqa: S608 - own identifiers only
    text = f"SELECT 1 FROM {hashes} GROUP BY h HAVING count(*) > 1 LIMIT 1"  # noqa: S608 - ours
    return bool(cursor.execute(text, values).fetchall())


def _stream(
    cursor: duckdb.DuckDBPyConnection, text: str, values: Sequence[object] = ()
) -> pa.RecordBatchReader:
    return cursor.sql(text, params=values).to_arrow_reader(ROW_GROUP_ROWS)


def _rolled_up(
    cursor: duckdb.DuckDBPyConnection,
    samples: str,
    resolution: Resolution,
    table: Table,
    *,
    with_gaps: Collection[str],
) -> pa.RecordBatchReader:
    """Return the roll-up of some samples; of many fields, some in each row."""
    columns = rollup_columns(table, resolution)
    names = list(table.fields)
    parts = [names[at : at + MAX_ROLLED_FIELDS] for at in range(0, len(names), MAX_ROLLED_FIELDS)]
    if len(parts) == 1:
        return _stream(cursor, build_sql(samples, resolution, table=table, with_gaps=with_gaps))
    empty = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns.items())
    schema = _stream(cursor, f"SELECT {empty} LIMIT 0").schema

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            some = Table(table.tags, {name: table.fields[name] for name in part})
            text = build_sql(samples, resolution, table=some, with_gaps=with_gaps)
            for batch in _stream(cursor, text):
                arrays = [
                    batch.column(one.name)
                    if one.name in batch.schema.names
                    else pa.nulls(batch.num_rows, one.type)
                    for one in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _by_hours(cursor: duckdb.DuckDBPyConnection, unit: Unit) -> list[Unit]:
    """Split a large unit by hours, and large hours by appliances."""
    source = quoted(table_name(unit.key))
    text, values = unit.condition
    counted = (
        f"SELECT {_TIME} // {HOUR_NS}, count(*) FROM {source} WHERE {text} GROUP BY 1 ORDER BY 1"  # noqa: S608 - ours
    )
    found: list[Unit] = []
    for hour, rows in cursor.execute(counted, values).fetchall():
        part = replace(unit, span=(hour * HOUR_NS, (hour + 1) * HOUR_NS), rows=rows)
        found += _by_appliances(cursor, part, source, [], of_rows=MAX_ROWS)
    return found


def _by_appliances(
    cursor: duckdb.DuckDBPyConnection,
    unit: Unit,
    source: str,
    values: Sequence[object],
    *,
    of_rows: int,
) -> list[Unit]:
    """Split a unit into ranges of appliances with about so many rows."""
    if unit.rows <= of_rows:
        return [unit]
    text, some = unit.condition
    counted = f"SELECT {_APPLIANCE}, count(*) FROM {source} WHERE {text} GROUP BY 1 ORDER BY 1"  # noqa: S608 - ours
    found: list[Unit] = []
    first, last, total = "", "", 0
    for name, rows in cursor.execute(counted, [*values, *some]).fetchall():
        if total and total + rows > of_rows:
            found.append(replace(unit, appliances=(first, last), rows=total))
            total = 0
        first = first if total else name
        last = name
        total += rows
    found.append(replace(unit, appliances=(first, last), rows=total))
    return found


def _text(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"
