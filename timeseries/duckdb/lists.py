"""What a DuckDB store lists: measurements, fields, tags and their values, and of which tenants.

The samples alone would forget a series when they expire, and they are many. So each span of time is
looked up in the coarsest table that has it: the past in the hours, the hour that is not complete in
the minutes, the last minutes and whatever came late in the samples.

Where names are asked for, the small tables (minutes and samples) come first: what is sent today is
nearly always found there. Only names that are missing then are looked for in the hours, each until
its first value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timeseries.duckdb.condition import visible
from timeseries.duckdb.rollups_coverage import HOUR_NS, Progress, Span, sources
from timeseries.duckdb.rollups_schema import Part, part_column, rollup_table
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Table,
    field_column,
    quoted,
    table_name,
    tag_column,
)
from timeseries.duckdb.sql import select
from timeseries.duckdb.writer import DuckDBWriter
from timeseries.lineprotocol_grammar import MAX_INT64, MIN_INT64
from timeseries.store import IDENTITY_TAGS, Resolution

Tenants = tuple[str, ...] | None
Fetch = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

_TIME = quoted(TIME_COLUMN)
_ALWAYS: Span = (MIN_INT64, MAX_INT64 + 1)
# From the table that is quickest to look through to the one that has the most.
_ORDER = (Resolution.RAW, Resolution.MINUTE, Resolution.HOUR)


@dataclass(frozen=True, slots=True)
class _Place:
    """A table that holds some spans of a measurement, and what of it these tenants may see."""

    resolution: Resolution
    table: Table
    source: str
    values: Sequence[object]
    is_small: bool

    def column_of(self, field: str) -> str | None:
        """Return the column that is not NULL where a field has a value; None where it has none."""
        if field not in self.table.fields:
            return None
        if self.resolution is Resolution.RAW:
            return quoted(field_column(field))
        return part_column(Part.COUNT, field)

    def column_of_tag(self, tag: str) -> str | None:
        """Return the column of a tag; None where no row has the tag."""
        return quoted(tag_column(tag)) if tag in self.table.tags else None


class Lists:
    """Answers what there is in a store.

    Args:
        writer: knows the schema and how far the roll-ups are.
        fetch: runs a read.
    """

    def __init__(self, writer: DuckDBWriter, fetch: Fetch) -> None:
        self._writer = writer
        self._fetch = fetch

    def measurements(self, *, tenants: Tenants) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        return [
            name
            for name in self._writer.measurements
            if (table := self._writer.table(name)) and self._has_any(name, table, tenants)
        ]

    def fields(self, measurement: str, *, tenants: Tenants) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted.

        For all tenants these are the fields that have a type, whatever became of their values.
        """
        table = self._writer.table(measurement)
        if table is None:
            return {}
        found = set(table.fields)
        if tenants is not None:
            places = self._places(measurement, table, tenants)
            found = self._present(places, sorted(found), _Place.column_of)
        elif not self._has_any(measurement, table, None):
            return {}
        return {name: str(kind) for name, kind in sorted(table.fields.items()) if name in found}

    def tags(self, measurement: str, *, tenants: Tenants) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        table = self._writer.table(measurement)
        if table is None or not self._has_any(measurement, table, tenants):
            return []
        others = sorted(table.tags.difference(IDENTITY_TAGS))
        if tenants is not None:
            places = self._places(measurement, table, tenants)
            others = sorted(self._present(places, others, _Place.column_of_tag))
        return [*IDENTITY_TAGS, *others]

    def tag_values(self, measurement: str, tag: str, *, tenants: Tenants) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        reads, values = [], list[object]()
        table = self._writer.table(measurement)
        for place in self._places(measurement, table, tenants) if table else ():
            if column := place.column_of_tag(tag):
                reads.append(select([f"DISTINCT {column}"], place.source))
                values += place.values
        found = {value for (value,) in self._fetch(" UNION ".join(reads), values)}
        return sorted(found - {None})

    def _has_any(self, measurement: str, table: Table, tenants: Tenants) -> bool:
        return any(
            self._fetch(select(["1"], f"{place.source} LIMIT 1"), place.values)
            for place in self._places(measurement, table, tenants)
        )

    def _present(
        self,
        places: Iterable[_Place],
        names: Sequence[str],
        column_of: Callable[[_Place, str], str | None],
    ) -> set[str]:
        """Return those of some names whose columns hold anything."""
        found: set[str] = set()
        for place in places:
            columns = {
                name: column
                for name in names
                if name not in found and (column := column_of(place, name))
            }
            if columns:
                look = self._seen_together if place.is_small else self._seen_each
                found |= look(place, columns)
        return found

    def _seen_together(self, place: _Place, columns: Mapping[str, str]) -> set[str]:
        """Look through a small table once."""
        each = [f"bool_or({column} IS NOT NULL)" for column in columns.values()]
        (row,) = self._fetch(select(each, place.source), place.values)
        return {name for name, is_seen in zip(columns, row, strict=True) if is_seen}

    def _seen_each(self, place: _Place, columns: Mapping[str, str]) -> set[str]:
        """Look for each column until its first value."""
        reads = [
            "(" + select([str(index)], f"{place.source} AND {column} IS NOT NULL LIMIT 1") + ")"
            for index, column in enumerate(columns.values())
        ]
        rows = self._fetch(" UNION ALL ".join(reads), [*place.values] * len(reads))
        names = list(columns)
        return {names[index] for (index,) in rows}

    def _places(self, measurement: str, table: Table, tenants: Tenants) -> Iterator[_Place]:
        """Yield the tables that together hold all of a measurement, the quickest first."""
        progress = self._writer.roll_ups.progress(measurement)
        tables = {**progress.tables, Resolution.RAW: table}
        for resolution, spans in _spans(progress):
            kept = tables.get(resolution)
            if kept is None:
                continue
            condition = visible(kept, tenants=tenants)
            if not condition.is_never:
                condition.add(_within(spans))
                yield _Place(
                    resolution,
                    kept,
                    f"{quoted(_table_of(measurement, resolution))} {condition.sql}",
                    condition.values,
                    is_small=bool(progress.until) and resolution is not Resolution.HOUR,
                )


def _spans(progress: Progress) -> Iterator[tuple[Resolution, list[Span]]]:
    plan = sources(_ALWAYS, step_ns=None, has_sketch=False, progress=progress)
    # Late samples of hours whose others have expired wait beside what is rolled up of these.
    late = [(hour, hour + HOUR_NS) for hour in progress.late if progress.is_frozen(hour)]
    plan[Resolution.RAW] = [*plan.get(Resolution.RAW, []), *late]
    for resolution in _ORDER:
        if plan.get(resolution):
            yield resolution, plan[resolution]


def _table_of(measurement: str, resolution: Resolution) -> str:
    if resolution is Resolution.RAW:
        return table_name(measurement)
    return rollup_table(measurement, resolution)


def _within(spans: Sequence[Span]) -> str:
    """Return the condition that keeps to some spans; a bound beyond every time is left out."""
    each = []
    for start, end in spans:
        bounds = [f"{_TIME} >= {start}"] if start > MIN_INT64 else []
        bounds += [f"{_TIME} < {end}"] if end <= MAX_INT64 else []
        each.append(" AND ".join(bounds) or "TRUE")
    return f"({' OR '.join(each)})"
