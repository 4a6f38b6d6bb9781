"""The statement that reads the samples themselves, series by series.

Where samples have expired, the average of five minutes counts as one in their middle, and where
only hours are left, the last value of an hour.
"""

from collections.abc import Iterable, Iterator

from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.relation import Relation, Statement, union
from timeseries.duckdb.query.rollup_sql import (
    StoredAggregate,
    aggregate_column,
    last_at_sql,
    numeric_column,
)
from timeseries.duckdb.query.sql import select
from timeseries.duckdb.schema import TIME_COLUMN, WIDTHS_NS, Span, quoted, tag_column
from timeseries.store import HOUR_NS, TENANT_TAG, Detail, Resolution

_TIME = quoted(TIME_COLUMN)
_MIDDLE_NS = WIDTHS_NS[Resolution.FIVE_MINUTES] // 2


def samples_source(relation: Relation, name: str, span: Span) -> Statement:
    """Return the numbers of a field as a source; an empty text if there can be none.

    Each row is a sample: its tags by name, sorted, the time `t` and the value `v`.
    """
    tags = [quoted(tag_column(tag)) for tag in series_tags(relation)]
    parts = [
        (select([*tags, f"{time} AS t", f"CAST({value} AS DOUBLE) AS v"], source), values)
        for source, values, time, value in _sources(relation, name, span)
        if source
    ]
    text, values = union(parts)
    within = f"v IS NOT NULL AND t >= {span[0]} AND t < {span[1]}"
    return f"({select(['*'], text)} WHERE {within})" if text else "", values


def series_tags(relation: Relation) -> list[str]:
    """Return the tags that tell series apart: without the tenant, if there is only one."""
    tags = relation.table.tags
    is_single = relation.tenants is not None and len(relation.tenants) == 1
    return sorted(tags - {TENANT_TAG} if is_single else tags)


def rows_sql(source: str, tags: Iterable[str]) -> str:
    """Return the statement with a key of the series, the time and the value of each sample.

    Lists by series, made by the database, would take twice the time.
    """
    return select([f"{_key(tags)} AS k", "t", "v"], source)


def tags_sql(source: str, tags: Iterable[str], span: Span) -> str:
    """Return the statement with the keys and the tags of the series that have samples in a span."""
    columns = ", ".join(quoted(tag_column(tag)) for tag in tags)
    within = f"WHERE t >= {span[0]} AND t < {span[1]}"
    return f"{select([f'DISTINCT {_key(tags)} AS k', columns], source)} {within}"


def _key(tags: Iterable[str]) -> str:
    return f"hash({', '.join(quoted(tag_column(tag)) for tag in tags)})"


def _sources(
    relation: Relation, name: str, span: Span
) -> Iterator[tuple[str, list[object], str, str]]:
    """Yield sources with their values, and the time and the number of each of their rows."""
    segments = {resolution: list[Segment]() for resolution in Resolution}
    for segment in relation.visible(span, margin_ns=HOUR_NS):
        segments[_finest(segment, name)].append(segment)
    number = numeric_column(name, relation.table.fields[name])
    yield *relation.samples([name], [span], segments=segments[Resolution.RAW]), _TIME, number
    total, count, last = (
        aggregate_column(part, name)
        for part in (StoredAggregate.SUM, StoredAggregate.COUNT, StoredAggregate.LAST)
    )
    for resolution, time, value in (
        (Resolution.FIVE_MINUTES, f"{_TIME} + {_MIDDLE_NS}", f"{total} / {count}"),
        (Resolution.HOUR, last_at_sql(name), last),
    ):
        if segments[resolution]:
            windows = [(span[0] - HOUR_NS, span[1])]
            rows = relation.rolled_up(resolution, [name], windows, segments=segments[resolution])
            yield *rows, time, value


def _finest(segment: Segment, name: str) -> Resolution:
    """Return what is left of a segment's samples of a field."""
    if Resolution.RAW in segment.sizes:
        return Resolution.RAW
    has_means = segment.has(name, Detail.MEANS) and Resolution.FIVE_MINUTES in segment.sizes
    return Resolution.FIVE_MINUTES if has_means else Resolution.HOUR
