"""One relation of the samples of a measurement: its tables, and the files of its segments.

The statements of queries have it as their source. Only files that may have samples of the tenants,
appliances and time span are read. Where a table or file lacks a column, the column is NULL.

Rows of one series and instant are in order of writing: those of files come before those of tables,
those of the shared table before those of a tenant's own, and in a table its row numbers ascend.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from timeseries.duckdb.files.files import Files
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.rollup_sql import rollup_columns, time_range_sql
from timeseries.duckdb.query.sql import Where, select, where_visible
from timeseries.duckdb.schema import (
    SQL_TYPES,
    TIME_COLUMN,
    WIDTHS_NS,
    Key,
    Span,
    Table,
    TextFields,
    field_column,
    other_part,
    quoted,
    shared_part,
    table_name,
    tag_column,
    text_fields,
    united,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.store import APPLIANCE_TAG, Detail, Resolution, TagMatcher

Statement = tuple[str, list[object]]
"""A statement, or the source of one, and its values; an empty text if nothing can match."""
ALWAYS: Span = (MIN_INT64, MAX_INT64 + 1)
_RANK, _OWN_RANK = "written", 2**60
MANY_ROWS = 500_000
"""To compare the times of so many samples takes longer than to plan another part of a statement."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """The tables and segments of a measurement that a query may read.

    Attributes:
        tables: its tables.
        segments: its segments.
        files: their files.
        tenants: the tenants whose samples are visible; None for all.
        filters: tag to allowed values.
        matchers: more conditions on tags.
        later: its tables with only later samples, which are not read; they count for types.
        overwritten: times at which a series may have several rows, of which the last counts.
        condition: the rows of the tables that count.
    """

    tables: Mapping[Key, Table]
    segments: Sequence[Segment]
    files: Files
    tenants: Sequence[str] | None
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    matchers: Sequence[TagMatcher] = ()
    later: Sequence[Table] = ()
    overwritten: Sequence[Span] = ()
    condition: Statement = ("", [])

    @cached_property
    def table(self) -> Table:
        """All tags and fields of what is visible."""
        shapes = {
            (segment.table.tags, *segment.table.fields.items()): segment.table
            for segment in self.visible()
        }
        return united([*self.tables.values(), *self.later, *shapes.values()])

    def consistent(self) -> list["Relation"]:
        """Return relations in which no field is a number for some and text for others."""
        tables = [*self.tables.values(), *(segment.table for segment in self.segments)]
        texts = {name for table in tables for name, _ in text_fields(table)}
        mixed = {name for name in texts if len({t.fields.get(name) for t in tables} - {None}) > 1}
        relations: dict[TextFields, Relation] = {}

        def part(table: Table) -> tuple[TextFields, Relation]:
            key = frozenset(pair for pair in text_fields(table) if pair[0] in mixed)
            return key, relations.get(key, replace(self, tables={}, segments=(), later=()))

        for name, table in self.tables.items():
            key, relation = part(table)
            relations[key] = replace(relation, tables={**relation.tables, name: table})
        for segment in self.segments:
            key, relation = part(segment.table)
            relations[key] = replace(relation, segments=(*relation.segments, segment))
        return list(relations.values())

    def visible(self, span: Span = ALWAYS, *, margin_ns: int = 0) -> list[Segment]:
        """Return the segments that may have samples in a span."""
        names = self.filters.get(APPLIANCE_TAG, ())
        return [
            segment
            for segment in self.segments
            if segment.overlaps(span, margin_ns=margin_ns)
            and (self.tenants is None or segment.tenant in self.tenants)
            and (
                not names
                or any(segment.first_appliance <= name <= segment.last_appliance for name in names)
            )
        ]

    def samples(
        self,
        fields: Iterable[str],
        spans: Sequence[Span],
        *,
        segments: Sequence[Segment] | None = None,
        tags: Iterable[str] | None = None,
    ) -> Statement:
        """Return a source with the time, some tags and some fields of the samples.

        Args:
            fields: the fields.
            spans: the times.
            segments: the segments whose samples to read; by default those in the spans.
            tags: the tags, without those that no sample has; by default all.
        """
        if segments is None:
            visible = self.visible((spans[0][0], spans[-1][1]))
            segments = [segment for segment in visible if Resolution.RAW in segment.sizes]
        twice = shared_part(spans, self.overwritten)
        if not twice:
            return union(self._rows(segments, self._columns(fields, tags), spans))
        names = list(fields)
        wanted = self._columns(names, tags)
        text, values = self.last_written(names, twice, segments=segments)
        last = (select([*wanted], text), values) if text else ("", [])
        once = other_part(spans, self.overwritten)
        return union([*(self._rows(segments, wanted, once) if once else ()), last])

    def last_written(
        self, fields: Sequence[str], spans: Sequence[Span], *, segments: Sequence[Segment]
    ) -> Statement:
        """Return a source with one row for each series and instant: the last value of each field.

        Args:
            fields: the fields.
            spans: the times.
            segments: the segments whose samples to read.
        """
        columns = self._columns(fields, None)
        source, values = union(self._rows(segments, columns, spans, is_ranked=True))
        if not source:
            return "", []
        of_fields = [quoted(field_column(name)) for name in fields]
        series = [name for name in columns if name not in of_fields]
        last = [f"arg_max({column}, {_RANK}) AS {column}" for column in of_fields]
        text = f"{select([*series, *last], source)} GROUP BY {', '.join(series)}"
        return f"({text})", values

    def _rows(
        self,
        segments: Sequence[Segment],
        columns: Mapping[str, str],
        spans: Sequence[Span],
        *,
        is_ranked: bool = False,
    ) -> list[Statement]:
        """Return the rows of tables and files, with their order of writing if ranked."""
        text, values = self.condition
        hot = []
        for key, table in self.tables.items():
            ranked = {_RANK: f"rowid + {_OWN_RANK if key.owner else 0}"} if is_ranked else {}
            where = Where([text] if text else [], [*values])
            source = (quoted(table_name(key)), list[object]())
            hot.append(self._part(source, table, columns, spans, extra=ranked, where=where))
        ranked = {_RANK: "-1"} if is_ranked else {}
        return [*hot, *self._files(segments, Resolution.RAW, columns, spans, extra=ranked)]

    def samples_of_files(
        self,
        fields: Iterable[str],
        spans: Sequence[Span],
        segments: Sequence[Segment],
        *,
        tags: Iterable[str] | None = None,
    ) -> Statement:
        """Return the same source of some segments only, without the table."""
        return union(self._files(segments, Resolution.RAW, self._columns(fields, tags), spans))

    def rolled_up(
        self,
        resolution: Resolution,
        fields: Iterable[str],
        spans: Sequence[Span],
        *,
        segments: Sequence[Segment],
    ) -> Statement:
        """Return a source with the roll-ups of some segments, for windows that start in spans."""
        wanted = {name: self.table.fields[name] for name in fields}
        details = dict.fromkeys(wanted, Detail.ALL)
        columns = rollup_columns(Table(self.table.tags, wanted), resolution, details)
        return union(self._files(segments, resolution, columns, spans))

    def _columns(self, fields: Iterable[str], tags: Iterable[str] | None) -> dict[str, str]:
        columns = {quoted(TIME_COLUMN): "BIGINT"}
        wanted = self.table.tags if tags is None else self.table.tags.intersection(tags)
        columns |= {quoted(tag_column(tag)): "VARCHAR" for tag in sorted(wanted)}
        kinds = self.table.fields
        return columns | {quoted(field_column(name)): SQL_TYPES[kinds[name]] for name in fields}

    def _files(
        self,
        segments: Sequence[Segment],
        resolution: Resolution,
        columns: Mapping[str, str],
        spans: Sequence[Span],
        *,
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Statement]:
        inside = _inside(segments, resolution, spans)
        alike: dict[tuple[TextFields, bool], list[Segment]] = {}
        for segment in segments:
            key = text_fields(segment.stored(resolution)), segment.name in inside
            alike.setdefault(key, []).append(segment)
        return [
            self._part(
                files_sql(self.files, group, resolution),
                united(segment.stored(resolution) for segment in group),
                columns,
                None if is_inside else spans,
                present=stored_columns(group, resolution),
                extra=extra,
            )
            for (_, is_inside), group in alike.items()
        ]

    def _part(
        self,
        source: Statement,
        table: Table,
        columns: Mapping[str, str],
        spans: Sequence[Span] | None,
        *,
        present: Mapping[str, str] | None = None,
        extra: Mapping[str, str] = MappingProxyType({}),
        where: Where | None = None,
    ) -> Statement:
        """Return some columns of a table or of files, and extra ones with expressions."""
        condition = where_visible(table, tenants=self.tenants, filters=self.filters)
        for matcher in self.matchers:
            condition.add_matcher(matcher, table)
        if where:
            condition.clauses += where.clauses
            condition.values += where.values
        if spans is not None:
            condition.add(time_range_sql(spans))
        if condition.matches_nothing:
            return "", []
        present = present or sample_columns(table)
        castable = {"BIGINT", "DOUBLE", "BOOLEAN"}
        listed = []
        for name, sql_type in columns.items():
            stored_type = present.get(name)
            value = name if stored_type in castable else "NULL"
            is_exact = stored_type == sql_type and (stored_type != "DOUBLE" or not source[1])
            listed.append(name if is_exact else f"CAST({value} AS {sql_type}) AS {name}")
        listed += [f"{value} AS {name}" for name, value in extra.items()]
        text, values = source
        return select(listed, f"{text} {condition.sql}"), [*values, *condition.values]


def _inside(segments: Sequence[Segment], resolution: Resolution, spans: Sequence[Span]) -> set[str]:
    """Return the names of the segments to read without comparing times, as these all match.

    If others must be compared, to read the files in two parts is worth it for many samples only.
    """
    width_ns = WIDTHS_NS.get(resolution, 1)
    inside = [segment for segment in segments if segment.is_inside(spans, width_ns=width_ns)]
    if len(inside) < len(segments) and sum(segment.rows for segment in inside) < MANY_ROWS:
        return set()
    return {segment.name for segment in inside}


def sample_columns(table: Table) -> dict[str, str]:
    """Return the quoted columns of samples, with their SQL types."""
    columns = {quoted(name): sql_type for name, sql_type in table.columns.items()}
    return {quoted(TIME_COLUMN): "BIGINT", **columns}


def stored_columns(segments: Sequence[Segment], resolution: Resolution) -> dict[str, str]:
    """Return the quoted columns of the files of some segments together, with their SQL types."""
    table = united(segment.stored(resolution) for segment in segments)
    if resolution is Resolution.RAW:
        return sample_columns(table)
    return rollup_columns(table, resolution, united_details(segments))


def united_details(segments: Iterable[Segment]) -> dict[str, Detail]:
    """Return the fields that some segments roll up together, and how much."""
    details: dict[str, Detail] = {}
    for segment in segments:
        for name, detail in segment.rolled.items():
            details[name] = max(detail, details.get(name, detail))
    return details


def files_sql(files: Files, segments: Sequence[Segment], resolution: Resolution) -> Statement:
    """Return the files of some segments as a source."""
    # Files differ in their columns, and in whether a field of floats is stored as integers.
    by_name = ", union_by_name = true" if len(segments) > 1 else ""
    paths = [files.address(segment.path(resolution)) for segment in segments]
    return f"read_parquet(?, hive_partitioning = false{by_name})", [paths]


def union(parts: Iterable[Statement]) -> Statement:
    """Return the union of some statements as a source."""
    nonempty = [part for part in parts if part[0]]
    text = " UNION ALL ".join(text for text, _ in nonempty)
    return f"({text})" if text else "", [value for _, values in nonempty for value in values]
