"""Sealing: moving settled samples from the table into files, and merging small files.

Late samples, those of an hour that was sealed before, become segments of their own. Once a day is
settled, its small segments are merged. Rows of one series and instant become one, with the last
value of each field; a segment that has an earlier one is written anew, with its roll-ups.

Both run beside the writer. A transaction reads the samples, writes the files, deletes the samples
and adds the segment; it sees and deletes only samples that were committed when it began. After a
crash either the samples or the segment are there; files without a segment are deleted at the start.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

import duckdb
import pyarrow as pa

from core.ids import new_id
from timeseries.duckdb.cold.float_types import float_types
from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.files.parquet import (
    BATCH_ROWS,
    FAST_LEVEL,
    LEVEL,
    ROLLUP_LEVEL,
    write_parquet,
)
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.database import Database
from timeseries.duckdb.query.relation import (
    ALWAYS,
    Relation,
    Statement,
    files_sql,
    stored_columns,
    united_details,
)
from timeseries.duckdb.query.rollup_sql import build_sql
from timeseries.duckdb.query.sql import select
from timeseries.duckdb.query.units import APPLIANCE, Unit, by_appliances
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
    text_fields,
    united,
)
from timeseries.store import (
    APPLIANCE_TAG,
    DAY_NS,
    IDENTITY_TAGS,
    Detail,
    NeededField,
    Resolution,
)
from timeseries.validation import FieldType

MAX_MERGED_ROWS = 4_000_000
"""About how many samples a merged segment has."""
MAX_ROLLED_FIELDS = 128
"""How many fields one statement aggregates: its memory grows with the square of them."""
MAX_NEEDED_FIELDS = 64
"""How many fields of a tenant's measurement have roll-ups because they are asked for."""
MAX_SHARE = 0.5
"""How large a roll-up by five minutes may be, in sizes of its samples, to be worth a file."""
_TIME = quoted(TIME_COLUMN)
_COLUMNS_SQL = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND table_name = ? ORDER BY column_index"
)
DetailOf = Callable[[str, str], Detail]
"""How much of a measurement's field is rolled up, by both names."""
_ROLLUP = "rolled_up"
_TAGS = f'"{tag_column("")}'


class Sealing:
    """Seals and merges; only one call at a time, while nothing else deletes samples.

    Args:
        database: where it opens its own cursors.
        manifest: gets the segments.
        detail_of: how much of a field is always rolled up.

    Attributes:
        manifest: the segments.
    """

    def __init__(self, database: Database, manifest: Manifest, detail_of: DetailOf) -> None:
        self._database = database
        self.manifest = manifest
        self._detail_of = detail_of
        self._needed: frozenset[NeededField] = frozenset()

    def need(self, fields: Iterable[NeededField]) -> None:
        """Roll up more fields, in all detail: the first `MAX_NEEDED_FIELDS` of each measurement."""
        by_name = groupby(sorted(set(fields)), key=lambda field: field[:2])
        self._needed = frozenset(
            field for _, group in by_name for field in islice(group, MAX_NEEDED_FIELDS)
        )

    def is_rolled_up(self, tenant: str, measurement: str, field: str) -> bool:
        """Return whether there are roll-ups of a field of numbers."""
        return self._detail(tenant, measurement, field) is not Detail.NONE

    def seal(self, unit: Unit) -> int:
        """Seal a unit of the shared table and the tenant's own; return how many samples.

        Segments with samples of the same series and instants are replaced: the later ones count.
        """
        with self._transaction() as cursor:
            tables = _tables_of(cursor, unit)
            hot = self._relation(tables, [], condition=unit.condition)
            survey = _survey(cursor, hot)
            if survey is None:
                return 0
            table, span = survey
            earlier = [
                segment
                for segment in self.manifest.of(unit.key.measurement)
                if segment.tenant == unit.tenant
                and Resolution.RAW in segment.sizes
                and segment.overlaps(span)
                and _agree(segment.table, table)
            ]
            replaced = self._overwritten(cursor, hot, earlier, span)
            relation = self._relation(tables, replaced, condition=unit.condition)
            table = united([table, *(segment.table for segment in replaced)])
            parts = self._parts(cursor, relation, unit, table)
            added = [
                segment
                for part, rows in parts
                for segment in self._write(cursor, part, table, rows)
            ]
            for key in tables:
                text, values = unit.condition
                cursor.execute(f"DELETE FROM {quoted(table_name(key))} WHERE {text}", values)  # noqa: S608 - ours
            self.manifest.commit(cursor, unit.key.measurement, remove=replaced, add=added)
        return unit.rows

    def merge(self, unit: Unit, segments: Sequence[Segment]) -> int:
        """Replace segments that have samples of one day by as few as possible."""
        table = united(segment.table for segment in segments)
        with self._transaction() as cursor:
            parts = self._parts(cursor, self._relation({}, segments), unit, table)
            added = [
                segment
                for part, rows in parts
                for segment in self._write(cursor, part, table, rows)
            ]
            self.manifest.commit(cursor, unit.key.measurement, remove=segments, add=added)
        return sum(segment.rows for segment in segments)

    def merge_expired(self, segments: Sequence[Segment]) -> int:
        """Replace segments without samples, of one tenant and measurement, by one."""
        table = united(segment.stored(None) for segment in segments)
        merged = replace(
            segments[0],
            name=new_id(),
            oldest_ns=min(segment.oldest_ns for segment in segments),
            newest_ns=max(segment.newest_ns for segment in segments),
            first_appliance=min(segment.first_appliance for segment in segments),
            last_appliance=max(segment.last_appliance for segment in segments),
            rows=sum(segment.rows for segment in segments),
            table=table,
            rolled=united_details(segments),
            sizes={},
            is_open=self.manifest.files.is_open,
        )
        sizes = {}
        with self._transaction() as cursor:
            for resolution in frozenset(segments[0].sizes).intersection(
                *(segment.sizes for segment in segments)
            ):
                source, values = files_sql(self.manifest.files, segments, resolution)
                types = stored_columns(segments, resolution)
                _create_rollup(cursor, types)
                cursor.execute(f"INSERT INTO {_ROLLUP} {select([*types], source)}", values)
                file = self.manifest.files.create(merged.path(resolution))
                sizes[resolution] = _write_rollup(
                    cursor, file, types, level=ROLLUP_LEVEL, is_open=merged.is_open
                )
                self.manifest.files.publish(file, merged.path(resolution))
            added = replace(merged, sizes=sizes)
            self.manifest.commit(cursor, merged.measurement, remove=segments, add=[added])
        return merged.rows

    def _relation(
        self,
        tables: Mapping[Key, Table],
        segments: Sequence[Segment],
        *,
        condition: Statement = ("", []),
    ) -> Relation:
        return Relation(
            tables=tables,
            segments=segments,
            files=self.manifest.files,
            tenants=None,
            condition=condition,
        )

    def _overwritten(
        self,
        cursor: duckdb.DuckDBPyConnection,
        hot: Relation,
        segments: Sequence[Segment],
        span: Span,
    ) -> list[Segment]:
        """Return the segments that have a series and instant of the rows of tables."""
        shapes = [*hot.tables.values(), *(segment.table for segment in segments)]
        rows, values = replace(hot, later=shapes).samples((), [span])

        def has_any(candidates: Sequence[Segment]) -> bool:
            files, paths = replace(hot, tables={}, segments=candidates, later=shapes).samples(
                (), [span]
            )
            text = f"SELECT 1 FROM (FROM {rows} INTERSECT FROM {files}) LIMIT 1"  # noqa: S608 - ours
            return bool(cursor.execute(text, [*values, *paths]).fetchall())

        if not segments or not has_any(segments):
            return []
        return [segment for segment in segments if has_any([segment])]

    def _parts(
        self, cursor: duckdb.DuckDBPyConnection, relation: Relation, unit: Unit, table: Table
    ) -> Iterator[tuple[Unit, Statement]]:
        """Yield the samples of a relation, those of a series and instant as one, in units."""
        segments = relation.segments
        source, values = relation.samples(table.fields, [ALWAYS])
        series = ", ".join([_TIME, *_series(relation.table)])
        if _has_duplicates(cursor, source, values, series):
            fields = list(table.fields)
            source, values = relation.last_written(fields, [ALWAYS], segments=segments)
        if relation.tables and not segments:
            yield unit, (source, values)
            return
        merged_unit = replace(
            unit,
            span=(
                min([unit.span[0], *(segment.oldest_ns for segment in segments)]),
                max([unit.span[1], *(segment.newest_ns + 1 for segment in segments)]),
            ),
            rows=sum(segment.rows for segment in segments) + (unit.rows if relation.tables else 0),
            appliances=None,
        )
        for part in by_appliances(cursor, merged_unit, source, values, of_rows=MAX_MERGED_ROWS):
            text, condition_values = part.condition
            yield part, (f"(FROM {source} WHERE {text})", [*values, *condition_values])

    def _write(
        self,
        cursor: duckdb.DuckDBPyConnection,
        unit: Unit,
        table: Table,
        rows: Statement,
    ) -> list[Segment]:
        """Write the files of a new segment; none if there are no rows.

        Floats with few decimal places are stored as decimals, which take less space; in the open
        layout they stay floats, as a column has one type in all files.
        """
        source, values = rows
        series, fields = _series(table), [quoted(field_column(name)) for name in table.fields]
        columns = [_TIME, *series, *fields]
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
            rolled=self._details(unit, table),
            sizes={},
            is_open=self.manifest.files.is_open,
        )
        raw = self.manifest.files.create(segment.path(Resolution.RAW))
        kinds = table.fields.items()
        floats = [quoted(field_column(name)) for name, kind in kinds if kind is FieldType.FLOAT]
        types = {} if segment.is_open else float_types(cursor, source, values, floats)
        typed = [
            f"CAST({column} AS {types[column]}) AS {column}" if column in types else column
            for column in columns
        ]
        text = f"{select(typed, source)} ORDER BY {', '.join([*series, _TIME])}"
        is_final = unit.span[1] - unit.span[0] == DAY_NS
        levels = (LEVEL, ROLLUP_LEVEL) if is_final else (FAST_LEVEL, FAST_LEVEL)
        batches = _stream(cursor, text, values)
        raw_bytes = write_parquet(raw, batches, level=levels[0], is_open=segment.is_open)
        sizes = {Resolution.RAW: raw_bytes}
        samples = f"read_parquet({_text(str(raw))}, hive_partitioning = false)"
        counted = [
            "count(*)",
            *(f"{f}({of})" for of in (_TIME, APPLIANCE) for f in ("min", "max")),
        ]
        counted += [f"count({column})" for column in fields]
        row = cursor.execute(select(counted, samples)).fetchall()[0]
        total, oldest, newest, first, last, *counts = row
        if not total:
            self.manifest.files.abandon()
            return []
        files = {Resolution.RAW: raw}
        with_gaps = {
            name for name, count in zip(table.fields, counts, strict=True) if count < total
        }
        for resolution, width_ns in WIDTHS_NS.items():
            stored = segment.stored(resolution)
            # Part of a day will be merged with the rest.
            if stored.fields and (is_final or width_ns < DAY_NS):
                rollup = stored_columns([segment], resolution)
                _roll_up(cursor, samples, resolution, stored, types=rollup, with_gaps=with_gaps)
                file = files[resolution] = self.manifest.files.create(segment.path(resolution))
                sizes[resolution] = _write_rollup(
                    cursor, file, rollup, level=levels[1], is_open=segment.is_open
                )
        if sizes.get(Resolution.FIVE_MINUTES, 0) > sizes[Resolution.RAW] * MAX_SHARE:
            # Samples answer as fast, and when they have expired hours must do.
            del sizes[Resolution.FIVE_MINUTES]
            five_minutes = Resolution.FIVE_MINUTES
            self.manifest.files.discard(files.pop(five_minutes), segment.path(five_minutes))
        for resolution, file in files.items():
            self.manifest.files.publish(file, segment.path(resolution))
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

    def _details(self, unit: Unit, table: Table) -> dict[str, Detail]:
        """Return the fields that are rolled up, and how much."""
        place = (unit.tenant, unit.key.measurement)
        details = {
            name: self._detail(*place, name)
            for name, kind in table.fields.items()
            if kind is not FieldType.STRING
        }
        return {name: detail for name, detail in details.items() if detail}

    def _detail(self, tenant: str, measurement: str, field: str) -> Detail:
        is_needed = (tenant, measurement, field) in self._needed
        return Detail.ALL if is_needed else self._detail_of(measurement, field)

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
                self.manifest.files.abandon()
                raise


def _series(table: Table) -> list[str]:
    """Return the quoted columns of a series, the appliance first."""
    first = [APPLIANCE_TAG, *sorted(table.tags - {APPLIANCE_TAG})]
    return [quoted(tag_column(tag)) for tag in first]


def _tables_of(cursor: duckdb.DuckDBPyConnection, unit: Unit) -> dict[Key, Table]:
    """Return the tables that have samples of a unit: the shared one and the tenant's own."""
    columns: list[tuple[str, str, str]] = []
    for key in {Key("", unit.key.measurement), Key(unit.tenant, unit.key.measurement)}:
        name = table_name(key)
        columns += cursor.execute(_COLUMNS_SQL, [name]).fetchall()
    return parse_schema(columns)


def _survey(cursor: duckdb.DuckDBPyConnection, hot: Relation) -> tuple[Table, Span] | None:
    """Return what has values in tables: tags, fields and span; None if there are no rows."""
    table = hot.table
    source, values = hot.samples(table.fields, [ALWAYS])
    if not source:
        return None
    columns = list(map(quoted, table.columns))
    counted = [f"min({_TIME})", f"max({_TIME})"]
    counted += [f"count({column})" for column in columns]
    oldest, newest, *counts = cursor.execute(select(counted, source), values).fetchall()[0]
    if oldest is None:
        return None
    present = {column for column, count in zip(columns, counts, strict=True) if count}
    tags = {tag for tag in table.tags if quoted(tag_column(tag)) in present}
    fields = {
        name: kind for name, kind in table.fields.items() if quoted(field_column(name)) in present
    }
    return Table(frozenset({*tags, *IDENTITY_TAGS}), fields), (oldest, newest + 1)


def _agree(table: Table, other: Table) -> bool:
    """Return whether no field is text in one table and a number in the other."""
    return text_fields(united([table, other])) == text_fields(table) | text_fields(other)


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
    return cursor.sql(text, params=values).to_arrow_reader(BATCH_ROWS)


def _create_rollup(cursor: duckdb.DuckDBPyConnection, types: Mapping[str, str]) -> None:
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in types.items())
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE {_ROLLUP} ({columns})")


def _roll_up(
    cursor: duckdb.DuckDBPyConnection,
    samples: str,
    resolution: Resolution,
    table: Table,
    *,
    types: Mapping[str, str],
    with_gaps: Collection[str],
) -> None:
    """Fill the temporary table with a roll-up; of many fields, each row has some."""
    _create_rollup(cursor, types)
    names = list(table.fields)
    for at in range(0, len(names), MAX_ROLLED_FIELDS):
        fields = {name: table.fields[name] for name in names[at : at + MAX_ROLLED_FIELDS]}
        part = Table(table.tags, fields)
        text = build_sql(samples, resolution, table=part, types=types, with_gaps=with_gaps)
        cursor.execute(f"INSERT INTO {_ROLLUP} BY NAME {text}")


def _write_rollup(
    cursor: duckdb.DuckDBPyConnection,
    path: Path,
    types: Mapping[str, str],
    *,
    level: int,
    is_open: bool,
) -> int:
    """Write the temporary table to a file, its floats as decimals like those of samples."""
    floats = [name for name, sql_type in types.items() if sql_type == "DOUBLE" and not is_open]
    stored = {**types, **float_types(cursor, _ROLLUP, [], floats)}
    typed = [f"CAST({name} AS {sql_type}) AS {name}" for name, sql_type in stored.items()]
    tags = [name for name in types if name.startswith(_TAGS)]
    order = ", ".join([quoted(tag_column(APPLIANCE_TAG)), *tags, _TIME])
    batches = _stream(cursor, f"{select(typed, _ROLLUP)} ORDER BY {order}")
    size = write_parquet(path, batches, level=level, is_open=is_open)
    cursor.execute(f"DROP TABLE {_ROLLUP}")
    return size


def _text(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"
