"""Reading samples as they were written: for exports, and for moving to another store.

The server gives a series at a time, while a scan goes through time: the samples are counted by
window, and windows that have few enough of them together become one batch.
"""

from collections.abc import Iterator

import msgspec

from timeseries.batch import Batch
from timeseries.points import FieldValue, Point
from timeseries.store import Extent
from timeseries.victoriametrics.lines import MEASUREMENT_LABEL, METRIC_LABEL, OWN_LABELS
from timeseries.victoriametrics.metricsql import (
    number_of_fields,
    over_all_series,
    points_of_all_series,
)
from timeseries.victoriametrics.percentiles import ExportedSeries
from timeseries.victoriametrics.reader import Found, Reader, span_with_samples, value_of
from timeseries.victoriametrics.windows import NS_PER_MS, Piece, Span

MAX_BATCH_SAMPLES = 200_000
WINDOWS = 64

Tags = tuple[tuple[str, str], ...]


def scan(reader: Reader, span: Span) -> Iterator[Batch]:
    """Yield the points of a span in batches, oldest first."""
    span = span if span.is_empty else span_with_samples(reader, span)
    for part in _parts(reader, span):
        yield Batch.of(_points(reader, part))


def extent(reader: Reader, span: Span) -> Extent | None:
    """Return the extent of what a scan of a span yields; None where that is nothing."""
    span = span if span.is_empty else span_with_samples(reader, span)
    if span.is_empty:
        return None
    asked = [
        points_of_all_series(window_ms=span.width_ms),
        number_of_fields(window_ms=span.width_ms),
    ]
    numbers = {at: round(value_of(answer)) for at, answer in reader.instant(asked, span.end_ms)}
    start_ns, end_ns = span.start_ms * NS_PER_MS, (span.end_ms - 1) * NS_PER_MS + 1
    return Extent(start_ns, end_ns, numbers.get(0, 0), is_exact=numbers.get(1) == 1)


def _parts(reader: Reader, span: Span) -> Iterator[Span]:
    """Yield the parts of a span that have samples, with few enough of them where possible."""
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
    """Return the windows of a span that have samples, in order, with the samples' number."""
    if span.is_empty:
        return []
    width_ms = max(1, -(-span.width_ms // WINDOWS))
    counting = over_all_series("sum", "count_over_time", window_ms=width_ms)
    found: Found = {}
    end_ms = span.start_ms + -(-span.width_ms // width_ms) * width_ms
    piece = Piece(span.start_ms, end_ms, width_ms, span.start_ms)
    reader.collect({"": counting}, piece, (), found)
    counts = found.get(("", ()), {})
    return [
        (Span(at_ms, at_ms + width_ms).within(span), int(count))
        for at_ms, count in sorted(counts.items())
    ]


def _points(reader: Reader, span: Span) -> list[Point]:
    found: dict[tuple[int, Tags], tuple[str, dict[str, FieldValue]]] = {}
    decoder = msgspec.json.Decoder(ExportedSeries)
    exported = reader.client.export(reader.selector, start_ms=span.start_ms, end_ms=span.end_ms)
    for line in exported:
        series = decoder.decode(line)
        measurement = series.metric[MEASUREMENT_LABEL]
        field = series.metric[METRIC_LABEL][len(measurement) + 1 :]
        tags = tuple(sorted(pair for pair in series.metric.items() if pair[0] not in OWN_LABELS))
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                found.setdefault((at_ms, tags), (measurement, {}))[1][field] = value
    return [
        Point(measurement, dict(tags), fields, at_ms * NS_PER_MS)
        for (at_ms, tags), (measurement, fields) in sorted(found.items(), key=_by_time)
    ]


def _by_time(item: tuple[tuple[int, Tags], object]) -> tuple[int, Tags]:
    return item[0]
