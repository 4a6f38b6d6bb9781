"""Raw samples of a long span, read in slices that fit into memory.

Slices are time ranges, so that each is found by its times: small hours are joined, and a large hour
is split into equal parts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from timeseries.duckdb.query.relation import Relation, Statement
from timeseries.duckdb.query.sql import select
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Span,
    Table,
    field_column,
    quoted,
    tag_column,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import Batch, Block
from timeseries.store import HOUR_NS, IDENTITY_TAGS, ScanQuery
from timeseries.validation import FieldType

SLICE_POINTS = 20_000
Columns = Mapping[str, Sequence[Any]]
"""Column to values, None where a row lacks one; columns without any value are left out."""
_TIME = quoted(TIME_COLUMN)
_KINDS: dict[FieldType, type] = {
    FieldType.FLOAT: float,
    FieldType.INTEGER: int,
    FieldType.BOOLEAN: bool,
    FieldType.STRING: str,
}


def hours_sql(query: ScanQuery, relation: Relation) -> Statement:
    """Return the statement that counts the points of each hour; empty if nothing can match."""
    source, values = relation.samples((), [_clamped((query.start_ns, query.end_ns))])
    text = f"SELECT {_TIME} // {HOUR_NS}, count(*) FROM {source} GROUP BY 1 ORDER BY 1"  # noqa: S608 - own identifiers only
    return text if source else "", values


def slices(hours: Iterable[tuple[int, int]], query: ScanQuery) -> Iterator[Span]:
    """Yield spans with about `SLICE_POINTS` points each, given (hour, points) in order."""
    small: list[int] = []
    pending_points = 0
    for hour, points in hours:
        if small and pending_points + points > SLICE_POINTS:
            yield _span(query, small[0], small[-1])
            small, pending_points = [], 0
        if points > SLICE_POINTS:
            yield from _cut(_span(query, hour, hour), parts=1 + points // SLICE_POINTS)
        else:
            small.append(hour)
            pending_points += points
    if small:
        yield _span(query, small[0], small[-1])


def slice_sql(relation: Relation, span: Span) -> Statement:
    """Return the statement that reads the points of a slice, oldest first."""
    source, values = relation.samples(sorted(relation.table.fields), [_clamped(span)])
    return f"FROM {source} ORDER BY {_TIME}" if source else "", values


def batch_from(data: pa.Table, measurement: str, table: Table) -> Batch:
    """Return the rows of a slice as a batch, with positions from 0."""
    columns = {
        name: data.column(name).to_pylist()
        for name in data.column_names
        if data.column(name).null_count < data.num_rows
    }
    blocks = []
    for gaps, rows in _by_gaps(data, columns).items():
        present = {
            name: [column[row] for row in rows]
            for name, column in columns.items()
            if name not in gaps
        }
        blocks.append(_block(measurement, table, present, rows))
    return Batch(tuple(blocks))


def _block(measurement: str, table: Table, columns: Columns, rows: Sequence[int]) -> Block:
    own = sorted(table.tags.difference(IDENTITY_TAGS))
    tags = [tag for tag in (*IDENTITY_TAGS, *own) if tag_column(tag) in columns]
    fields = [name for name in sorted(table.fields) if field_column(name) in columns]
    tag_sets: dict[tuple[str, ...], int] = {}
    tag_columns = [columns[tag_column(tag)] for tag in tags]
    row_tags = zip(*tag_columns, strict=True) if tags else [()] * len(rows)
    tag_set_of = [tag_sets.setdefault(tag_set, len(tag_sets)) for tag_set in row_tags]
    return Block(
        measurement,
        tuple(tags),
        list(tag_sets),
        tag_set_of,
        tuple(fields),
        tuple(_KINDS[table.fields[name]] for name in fields),
        tuple(columns[field_column(name)] for name in fields),
        columns[TIME_COLUMN],
        rows,
    )


def _clamped(span: Span) -> Span:
    return max(span[0], MIN_INT64), min(span[1], MAX_INT64 + 1)


def _span(query: ScanQuery, first_hour: int, last_hour: int) -> Span:
    """Return the span of some hours; SQL divides towards 0, so hour 0 is two hours long."""
    start = first_hour * HOUR_NS if first_hour > 0 else (first_hour - 1) * HOUR_NS + 1
    end = (last_hour + 1) * HOUR_NS if last_hour >= 0 else last_hour * HOUR_NS + 1
    return max(start, query.start_ns), min(end, query.end_ns)


def _cut(span: Span, *, parts: int) -> Iterator[Span]:
    start, width = span[0], span[1] - span[0]
    ends = [start + width * part // parts for part in range(parts + 1)]
    yield from (pair for pair in pairwise(ends) if pair[0] < pair[1])


def _by_gaps(data: pa.Table, columns: Columns) -> dict[frozenset[str], Sequence[int]]:
    """Return the rows by the columns that they lack."""
    gappy = [name for name in columns if data.column(name).null_count]
    if not gappy:
        return {frozenset(): range(data.num_rows)} if data.num_rows else {}
    rows_of: dict[tuple[bool, ...], list[int]] = {}
    for row, values in enumerate(zip(*(columns[name] for name in gappy), strict=True)):
        rows_of.setdefault(tuple([value is None for value in values]), []).append(row)
    return {
        frozenset(name for name, is_absent in zip(gappy, pattern, strict=True) if is_absent): rows
        for pattern, rows in rows_of.items()
    }


def extent_sql(query: ScanQuery, relation: Relation) -> Statement:
    """Return the statement for count, oldest and newest time; empty if nothing can match."""
    source, values = relation.samples((), [_clamped((query.start_ns, query.end_ns))])
    columns = ["count(*)", f"min({_TIME})", f"max({_TIME})"]
    return select(columns, source) if source else "", values
