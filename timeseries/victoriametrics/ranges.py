"""Range and latest queries: from a query to MetricsQL, and from the answers to series."""

import math
from collections.abc import Sequence

from timeseries.store import Latest, LatestQuery, RangeQuery, Series
from timeseries.victoriametrics.lines import METRIC_LABEL
from timeseries.victoriametrics.metricsql import EXPRESSION_LABEL, PERCENTILES, group_of
from timeseries.victoriametrics.percentiles import percentiles
from timeseries.victoriametrics.reader import (
    Found,
    Group,
    Reader,
    rollups,
    span_with_samples,
    value_of,
)
from timeseries.victoriametrics.windows import (
    MAX_WINDOWS,
    NS_PER_MS,
    Span,
    pieces,
    span_of,
    step_ms_of,
)

# A value's answer carries the series' name, its time's answer does not.
_OF_ONE_ANSWER = frozenset({METRIC_LABEL, EXPRESSION_LABEL})


def read_range(reader: Reader, query: RangeQuery) -> list[Series]:
    """Return one series per field and group, ordered by field, then by group."""
    step_ms = step_ms_of(query)
    span = span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms)
    fields = sorted({field for field in query.fields if field})
    if not fields or span.is_empty:
        return []
    if step_ms is not None and span.width_ms > MAX_WINDOWS * step_ms:
        span = span_with_samples(reader, span)
    found = _aggregates(reader, query, fields, span)
    return [
        Series(
            field,
            dict(zip(query.group_by, group, strict=True)),
            [query.start_ns if step_ms is None else at_ms * NS_PER_MS for at_ms in values],
            list(values.values()),
        )
        for (field, group), values in sorted(found.items())
    ]


def read_latest(reader: Reader, query: LatestQuery) -> list[Latest]:
    """Return the newest values of each group, ordered by group."""
    end_ns = (reader.last_ms + 1) * NS_PER_MS if query.until_ns is None else query.until_ns
    span = span_of(query.since_ns, end_ns, last_ms=reader.last_ms)
    fields = sorted({field for field in query.fields if field})
    if not fields or span.is_empty:
        return []
    values: dict[Group, dict[str, float]] = {}
    times_ns: dict[Group, int] = {}
    for (field, group), (seconds, value) in _newest(reader, query, fields, span).items():
        values.setdefault(group, {})[field] = value
        time_ns = round(seconds * 1000) * NS_PER_MS
        times_ns[group] = max(times_ns.get(group, time_ns), time_ns)
    return [
        Latest(dict(zip(query.group_by, group, strict=True)), times_ns[group], found)
        for group, found in sorted(values.items())
    ]


def _newest(
    reader: Reader, query: LatestQuery, fields: Sequence[str], span: Span
) -> dict[tuple[str, Group], tuple[float, float]]:
    """Return seconds and value of the newest sample by field and group."""
    asked = [text for one in rollups(query, fields, span.width_ms) for text in one.newest()]
    pairs: dict[tuple[object, ...], list[float]] = {}
    newest: dict[tuple[str, Group], tuple[float, float]] = {}
    for position, answer in reader.instant(asked, span.end_ms):
        tags = (pair for pair in answer.metric.items() if pair[0] not in _OF_ONE_ANSWER)
        series = (position // 2, *sorted(tags))
        pair = pairs.setdefault(series, [math.nan, math.nan])
        pair[1 - position % 2] = value_of(answer)
        if not any(map(math.isnan, pair)):
            of_group = (fields[position // 2], group_of(answer.metric, query.group_by))
            newest[of_group] = max(newest.get(of_group, (-math.inf, 0.0)), (pair[0], pair[1]))
    return newest


def _aggregates(reader: Reader, query: RangeQuery, fields: Sequence[str], span: Span) -> Found:
    found: Found = {}
    if query.aggregate in PERCENTILES:
        for field in fields:
            found |= percentiles(reader, query, field, span)
        return found
    for piece in pieces(span, step_ms_of(query)):
        expressions = {
            field: rollup.aggregate(query.aggregate)
            for field, rollup in zip(fields, rollups(query, fields, piece.width_ms), strict=True)
        }
        reader.collect(expressions, piece, query.group_by, found)
    return found
