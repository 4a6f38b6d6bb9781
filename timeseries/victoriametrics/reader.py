"""Reading from VictoriaMetrics: windows in milliseconds, requests, and scans of raw samples.

A range that starts or ends inside a window has a shorter first or last window, which needs its own
request. Several expressions share a request; each result has the position of its expression.

The server exports series by series, while a scan goes through time: samples are counted by window,
and small adjacent windows become one batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec

from core.errors import InvalidInputError
from timeseries.columns import SampleColumns, Tags, samples_of
from timeseries.points import Batch, FieldValue, Point
from timeseries.store import Extent, LatestQuery, RangeQuery
from timeseries.validation import check_step
from timeseries.victoriametrics.client import (
    FIRST_MS,
    ExportedSeries,
    QueryResult,
    VictoriaMetricsClient,
)
from timeseries.victoriametrics.lines import MEASUREMENT_LABEL, METRIC_LABEL, RESERVED_LABELS
from timeseries.victoriametrics.metricsql import (
    EXPRESSION_LABEL,
    SHIFT_MS,
    Rollup,
    group_of,
    joined,
    number_of_fields,
    over_all_series,
    points_of_all_series,
)

NS_PER_MS = 1_000_000
# Below the server's -search.maxPointsPerTimeseries, 30,000.
MAX_WINDOWS = 10_000
Group = tuple[str, ...]
# Field and group, to window start in milliseconds, to value.
WindowValues = dict[tuple[str, Group], dict[int, float]]
MAX_BATCH_SAMPLES = 200_000
WINDOWS = 64


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Adjacent windows of one width from `start_ms` to `end_ms`.

    `label_ms` is the nominal start of the first window: earlier than `start_ms` if the range starts
    inside that window.
    """

    start_ms: int
    end_ms: int
    width_ms: int
    label_ms: int

    def label_of(self, window_end_ms: int) -> int:
        """Return the nominal start of a window, given its end."""
        return self.label_ms + window_end_ms - self.start_ms - self.width_ms


@dataclass(frozen=True, slots=True)
class Span:
    """The milliseconds `[start_ms, end_ms)`."""

    start_ms: int
    end_ms: int

    @property
    def is_empty(self) -> bool:
        """True if the span has no time."""
        return self.end_ms <= self.start_ms

    @property
    def width_ms(self) -> int:
        """Its length."""
        return self.end_ms - self.start_ms

    def within(self, other: "Span") -> "Span":
        """Return the intersection."""
        return Span(max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms))


def span_of(start_ns: int, end_ns: int, *, last_ms: int) -> Span:
    """Return `[start_ns, end_ns)`, without times before 1970-01-05 or after `last_ms`."""
    span = Span(_ceiling(start_ns, NS_PER_MS), _ceiling(end_ns, NS_PER_MS))
    return span.within(Span(FIRST_MS, last_ms + 1))


def step_ms_of(query: RangeQuery) -> int | None:
    """Return the query's step in milliseconds.

    Raises:
        InvalidInputError: it is not a whole number of milliseconds above 0.
    """
    if query.step_ns is None:
        return None
    step = check_step(query.step_ns)
    if step % NS_PER_MS:
        raise InvalidInputError(
            f"step_ns is {step}. This store has milliseconds: use a multiple of {NS_PER_MS}.",
            errors={"step_ns": [f"must be a multiple of {NS_PER_MS}"]},
        )
    return step // NS_PER_MS


def window_ranges(span: Span, step_ms: int | None) -> Iterator[WindowRange]:
    """Yield the windows of a span, aligned to the epoch; one window without a step."""
    if span.is_empty:
        return
    if step_ms is None:
        yield WindowRange(span.start_ms, span.end_ms, span.width_ms, span.start_ms)
        return
    label = span.start_ms - span.start_ms % step_ms
    first = min(_ceiling(span.start_ms, step_ms) * step_ms, span.end_ms)
    if first > span.start_ms:
        yield WindowRange(span.start_ms, first, first - span.start_ms, label)
    last = max(first, span.end_ms - span.end_ms % step_ms)
    for start in range(first, last, MAX_WINDOWS * step_ms):
        yield WindowRange(start, min(last, start + MAX_WINDOWS * step_ms), step_ms, start)
    if last < span.end_ms:
        yield WindowRange(last, span.end_ms, span.end_ms - last, last)


def _ceiling(number: int, unit: int) -> int:
    return -(-number // unit)


@dataclass(frozen=True, slots=True)
class Reader:
    """The scope of a query: the server, the visible series, and the last time that is stored."""

    client: VictoriaMetricsClient
    selector: str
    last_ms: int

    def instant(self, expressions: Sequence[str], at_ms: int) -> Iterator[tuple[int, QueryResult]]:
        """Return the results at one time, each with the position of its expression."""
        return self._query("/api/v1/query", expressions, [("time", _seconds(at_ms))])

    def collect(
        self,
        expressions: Mapping[str, str],
        piece: WindowRange,
        group_by: Sequence[str],
        values_of: WindowValues,
    ) -> None:
        """Add the values at the ends of a piece's windows to `values_of`, by field."""
        fields = list(expressions)
        for position, result in self._over(list(expressions.values()), piece):
            values = values_of.setdefault((fields[position], group_of(result.metric, group_by)), {})
            for at_seconds, value in result.values or [result.value or (math.nan, "")]:
                values[piece.label_of(round(at_seconds * 1000) + SHIFT_MS)] = float(value)

    def _over(
        self, expressions: Sequence[str], piece: WindowRange
    ) -> Iterator[tuple[int, QueryResult]]:
        if piece.start_ms + piece.width_ms == piece.end_ms:
            return self.instant(expressions, piece.end_ms)
        times = [
            ("start", _seconds(piece.start_ms + piece.width_ms)),
            ("end", _seconds(piece.end_ms)),
            ("step", f"{piece.width_ms}ms"),
        ]
        return self._query("/api/v1/query_range", expressions, times)

    def _query(
        self, path: str, expressions: Sequence[str], times: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[int, QueryResult]]:
        # The filters are a separate parameter, because the server limits the query to 16 KiB.
        parameters = [("query", joined(expressions)), ("extra_filters[]", self.selector), *times]
        for result in self.client.query(path, parameters):
            yield int(result.metric[EXPRESSION_LABEL]), result


def rollups(query: RangeQuery | LatestQuery, fields: Sequence[str], window_ms: int) -> list[Rollup]:
    """Return the expressions over each field."""
    return [
        Rollup(query.measurement, field, window_ms=window_ms, group_by=query.group_by)
        for field in fields
    ]


def span_with_samples(reader: Reader, span: Span) -> Span:
    """Return the part of a span from the first to the last visible sample."""
    parameters = [
        over_all_series(combine, rollup, window_ms=span.width_ms)
        for combine, rollup in (("min", "tfirst_over_time"), ("max", "tlast_over_time"))
    ]
    times_ms = [
        round(value_of(result) * 1000) for _, result in reader.instant(parameters, span.end_ms)
    ]
    if not times_ms:
        return Span(span.start_ms, span.start_ms)
    return Span(min(times_ms), max(times_ms) + 1).within(span)


def value_of(result: QueryResult) -> float:
    """Return the value of an instant query's result."""
    return float(result.value[1]) if result.value else math.nan


def _seconds(at_ms: int) -> str:
    at_ms -= SHIFT_MS
    return f"{at_ms // 1000}.{at_ms % 1000:03d}"


def samples_of_field(reader: Reader, span: Span, field: str, *, limit: int) -> SampleColumns | None:
    """Return the samples of a field; None if there are more than a limit.

    Args:
        reader: its selector has only this field.
        span: the times.
        field: the field.
        limit: how many samples are read.
    """
    counting = [over_all_series("sum", "count_over_time", window_ms=span.width_ms)]
    counts = [] if span.is_empty else reader.instant(counting, span.end_ms)
    count = sum(int(value_of(result)) for _, result in counts)
    if count > limit:
        return None
    decoder = msgspec.json.Decoder(ExportedSeries)
    series_of: dict[tuple[str, Tags], tuple[list[int], list[float]]] = {}
    exported = (
        reader.client.export(reader.selector, start_ms=span.start_ms, end_ms=span.end_ms)
        if count
        else ()
    )
    for line in exported:
        series = decoder.decode(line)
        times, values = series_of.setdefault((field, _tags_of(series)), ([], []))
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                times.append(at_ms * NS_PER_MS)
                values.append(value)
    return next(iter(samples_of(series_of)), None) or SampleColumns.empty(field)


def scan(reader: Reader, span: Span) -> Iterator[Batch]:
    """Yield the points of a span in batches, oldest first."""
    span = span if span.is_empty else span_with_samples(reader, span)
    for part in _parts(reader, span):
        yield Batch.of(_points(reader, part))


def extent(reader: Reader, span: Span) -> Extent | None:
    """Return the extent of a scan of a span; None without samples."""
    span = span if span.is_empty else span_with_samples(reader, span)
    if span.is_empty:
        return None
    parameters = [
        points_of_all_series(window_ms=span.width_ms),
        number_of_fields(window_ms=span.width_ms),
    ]
    numbers = {
        at: round(value_of(result)) for at, result in reader.instant(parameters, span.end_ms)
    }
    start_ns, end_ns = span.start_ms * NS_PER_MS, (span.end_ms - 1) * NS_PER_MS + 1
    return Extent(start_ns, end_ns, numbers.get(0, 0), is_exact=numbers.get(1) == 1)


def _parts(reader: Reader, span: Span) -> Iterator[Span]:
    """Yield the parts of a span that have samples, split to fit into a batch."""
    start_ms, samples = span.start_ms, 0
    for window, count in _counted(reader, span):
        if samples and samples + count > MAX_BATCH_SAMPLES:
            yield Span(start_ms, window.start_ms)
            start_ms, samples = window.start_ms, 0
        if count > MAX_BATCH_SAMPLES and window.width_ms > 1:
            yield from _parts(reader, window)
            start_ms = window.end_ms
        else:
            samples += count
    if samples:
        yield Span(start_ms, span.end_ms)


def _counted(reader: Reader, span: Span) -> list[tuple[Span, int]]:
    """Return the windows of a span that have samples, in order, with their counts."""
    if span.is_empty:
        return []
    width_ms = max(1, -(-span.width_ms // WINDOWS))
    counting = over_all_series("sum", "count_over_time", window_ms=width_ms)
    values_of: WindowValues = {}
    end_ms = span.start_ms + -(-span.width_ms // width_ms) * width_ms
    piece = WindowRange(span.start_ms, end_ms, width_ms, span.start_ms)
    reader.collect({"": counting}, piece, (), values_of)
    counts = values_of.get(("", ()), {})
    return [
        (Span(at_ms, at_ms + width_ms).within(span), int(count))
        for at_ms, count in sorted(counts.items())
    ]


def _points(reader: Reader, span: Span) -> list[Point]:
    fields_of: dict[tuple[int, Tags], tuple[str, dict[str, FieldValue]]] = {}
    decoder = msgspec.json.Decoder(ExportedSeries)
    exported = reader.client.export(reader.selector, start_ms=span.start_ms, end_ms=span.end_ms)
    for line in exported:
        series = decoder.decode(line)
        measurement = series.metric[MEASUREMENT_LABEL]
        field = series.metric[METRIC_LABEL][len(measurement) + 1 :]
        tags = _tags_of(series)
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                fields_of.setdefault((at_ms, tags), (measurement, {}))[1][field] = value
    return [
        Point(measurement, dict(tags), fields, at_ms * NS_PER_MS)
        for (at_ms, tags), (measurement, fields) in sorted(fields_of.items(), key=itemgetter(0))
    ]


def _tags_of(series: ExportedSeries) -> Tags:
    return tuple(sorted(pair for pair in series.metric.items() if pair[0] not in RESERVED_LABELS))
