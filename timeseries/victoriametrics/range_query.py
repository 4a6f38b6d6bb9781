"""Range and latest queries: from a query to MetricsQL, and from the results to series.

MetricsQL has percentiles for single series only. A group of one series is answered by the server,
exactly. For groups of several series, up to `MAX_SAMPLES` samples are fetched and sorted here;
above that the server answers from histograms, whose buckets have a width of a factor of 1.136.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from core.errors import InvalidInputError
from timeseries.store import Latest, LatestQuery, RangeQuery, Series
from timeseries.successive import SUCCESSIVE, SuccessiveValues
from timeseries.victoriametrics.client import ExportedSeries
from timeseries.victoriametrics.lines import METRIC_LABEL
from timeseries.victoriametrics.metricsql import (
    EXPRESSION_LABEL,
    PERCENTILES,
    Rollup,
    field_selector,
    group_of,
)
from timeseries.victoriametrics.reader import (
    MAX_WINDOWS,
    NS_PER_MS,
    Group,
    Reader,
    Span,
    WindowValues,
    rollups,
    span_of,
    span_with_samples,
    step_ms_of,
    value_of,
    window_ranges,
)

# The result of a value has the name of the series, that of its time does not.
_OF_ONE_ANSWER = frozenset({METRIC_LABEL, EXPRESSION_LABEL})
MAX_SAMPLES = 2_000_000


def read_range(reader: Reader, query: RangeQuery) -> list[Series]:
    """Return one series per field and group, ordered by field, then by group."""
    step_ms = step_ms_of(query)
    span = span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms)
    fields = sorted({field for field in query.fields if field})
    if not fields or span.is_empty:
        return []
    if step_ms is not None and span.width_ms > MAX_WINDOWS * step_ms:
        span = span_with_samples(reader, span)
    values_of = _aggregates(reader, query, fields, span)
    return [
        Series(
            field,
            dict(zip(query.group_by, group, strict=True)),
            [query.start_ns if step_ms is None else at_ms * NS_PER_MS for at_ms in values],
            list(values.values()),
        )
        for (field, group), values in sorted(values_of.items())
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
        Latest(dict(zip(query.group_by, group, strict=True)), times_ns[group], field_values)
        for group, field_values in sorted(values.items())
    ]


def _newest(
    reader: Reader, query: LatestQuery, fields: Sequence[str], span: Span
) -> dict[tuple[str, Group], tuple[float, float]]:
    """Return time in seconds and value of the newest sample by field and group."""
    expressions = [
        text for rollup in rollups(query, fields, span.width_ms) for text in rollup.newest()
    ]
    pairs: dict[tuple[object, ...], list[float]] = {}
    newest: dict[tuple[str, Group], tuple[float, float]] = {}
    for position, result in reader.instant(expressions, span.end_ms):
        tags = (pair for pair in result.metric.items() if pair[0] not in _OF_ONE_ANSWER)
        series = (position // 2, *sorted(tags))
        pair = pairs.setdefault(series, [math.nan, math.nan])
        pair[1 - position % 2] = value_of(result)
        if not any(map(math.isnan, pair)):
            of_group = (fields[position // 2], group_of(result.metric, query.group_by))
            newest[of_group] = max(newest.get(of_group, (-math.inf, 0.0)), (pair[0], pair[1]))
    return newest


def _aggregates(
    reader: Reader, query: RangeQuery, fields: Sequence[str], span: Span
) -> WindowValues:
    values_of: WindowValues = {}
    if query.aggregate in SUCCESSIVE:
        for field in fields:
            values_of |= _successive(reader, query, field, span)
        return values_of
    if query.aggregate in PERCENTILES:
        for field in fields:
            values_of |= percentiles(reader, query, field, span)
        return values_of
    for piece in window_ranges(span, step_ms_of(query)):
        expressions = {
            field: rollup.aggregate(query.aggregate)
            for field, rollup in zip(fields, rollups(query, fields, piece.width_ms), strict=True)
        }
        reader.collect(expressions, piece, query.group_by, values_of)
    return values_of


def _successive(reader: Reader, query: RangeQuery, field: str, span: Span) -> WindowValues:
    """Read the samples of a field, series by series, for an aggregate that needs each of them."""
    step_ms = step_ms_of(query)
    values = SuccessiveValues(query.aggregate)
    for series in _exported(reader, query, field, span):
        group, tags = group_of(series.metric, query.group_by), tuple(sorted(series.metric.items()))
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                label = span.start_ms if step_ms is None else at_ms - at_ms % step_ms
                values.add((group, label), tags, at_ms * NS_PER_MS, value)
    values_of: WindowValues = {}
    for (group, label), value in sorted(values.windows().items()):
        values_of.setdefault((field, group), {})[label] = value
    return values_of


def percentiles(reader: Reader, query: RangeQuery, field: str, span: Span) -> WindowValues:
    """Return the percentiles of a field in each window.

    Raises:
        InvalidInputError: it needs histograms, which do not include negative values.
    """
    if span.is_empty:
        return {}
    (whole_range,) = rollups(query, [field], span.width_ms)
    per_group, samples, lowest = _survey(reader, whole_range, span)
    if per_group > 1 and samples <= MAX_SAMPLES:
        return _from_samples(reader, query, field, span)
    if per_group > 1 and lowest < 0:
        raise InvalidInputError(
            f"Field {field!r} has {samples} samples in this range, some below 0. A percentile over "
            f"several series supports up to {MAX_SAMPLES}. Choose a shorter range, or group by "
            "the tags that identify the series."
        )
    values_of: WindowValues = {}
    for piece in window_ranges(span, step_ms_of(query)):
        (rollup,) = rollups(query, [field], piece.width_ms)
        expression = (
            rollup.percentile_of_histogram(query.aggregate)
            if per_group > 1
            else rollup.aggregate(query.aggregate)
        )
        reader.collect({field: expression}, piece, query.group_by, values_of)
    return values_of


def _survey(reader: Reader, rollup: Rollup, span: Span) -> tuple[int, int, float]:
    """Return the most series in a group, the number of samples, and the lowest value."""
    expressions = [
        rollup.combined("count", "count_over_time"),
        rollup.count(),
        rollup.combined("min", "min_over_time"),
    ]
    values: list[list[float]] = [[], [], []]
    for position, result in reader.instant(expressions, span.end_ms):
        values[position].append(value_of(result))
    per_group, samples, lowest = values
    return int(max(per_group, default=0)), int(sum(samples)), min(lowest, default=0.0)


def _from_samples(reader: Reader, query: RangeQuery, field: str, span: Span) -> WindowValues:
    step_ms = step_ms_of(query)
    windows: dict[tuple[Group, int], list[float]] = defaultdict(list)
    for series in _exported(reader, query, field, span):
        group = group_of(series.metric, query.group_by)
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                label = span.start_ms if step_ms is None else at_ms - at_ms % step_ms
                windows[group, label].append(value)
    values_of: WindowValues = {}
    for (group, label), values in sorted(windows.items()):
        values_of.setdefault((field, group), {})[label] = _interpolated(
            sorted(values), PERCENTILES[query.aggregate]
        )
    return values_of


def _exported(
    reader: Reader, query: RangeQuery, field: str, span: Span
) -> Iterator[ExportedSeries]:
    decoder = msgspec.json.Decoder(ExportedSeries)
    selector = field_selector(reader.selector, query.measurement, field)
    for line in reader.client.export(selector, start_ms=span.start_ms, end_ms=span.end_ms):
        yield decoder.decode(line)


def _interpolated(ordered: list[float], fraction: float) -> float:
    rank = fraction * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
