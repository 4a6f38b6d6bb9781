"""Percentiles over all samples of a group, which MetricsQL has for single series only.

A group of one series is answered by the server, exactly. For a group of several the samples are
fetched and sorted here, exactly too, up to `MAX_SAMPLES`; above that the server answers from
histograms, whose buckets' edges lie a factor of 1.136 apart.
"""

import math
from collections import defaultdict

import msgspec

from core.errors import InvalidInputError
from timeseries.store import RangeQuery
from timeseries.victoriametrics.metricsql import (
    PERCENTILES,
    Rollup,
    field_selector,
    group_of,
)
from timeseries.victoriametrics.reader import Found, Group, Reader, rollups, value_of
from timeseries.victoriametrics.windows import Span, pieces, step_ms_of

MAX_SAMPLES = 2_000_000


class ExportedSeries(msgspec.Struct):
    """One line of an export: a series with its samples, oldest first."""

    metric: dict[str, str]
    values: list[float | None]
    timestamps: list[int]


def percentiles(reader: Reader, query: RangeQuery, field: str, span: Span) -> Found:
    """Return the percentiles of a field in each window.

    Raises:
        InvalidInputError: only histograms could answer, and they leave negative values out.
    """
    if span.is_empty:
        return {}
    (whole,) = rollups(query, [field], span.width_ms)
    per_group, samples, lowest = _survey(reader, whole, span)
    if per_group > 1 and samples <= MAX_SAMPLES:
        return _from_samples(reader, query, field, span)
    if per_group > 1 and lowest < 0:
        raise InvalidInputError(
            f"Field {field!r} has {samples} samples in this range, some below 0: a percentile over "
            f"several series is exact up to {MAX_SAMPLES}. Choose a shorter range, or group by "
            "the tags that tell the series apart."
        )
    found: Found = {}
    for piece in pieces(span, step_ms_of(query)):
        (rollup,) = rollups(query, [field], piece.width_ms)
        expression = (
            rollup.percentile_of_histogram(query.aggregate)
            if per_group > 1
            else rollup.aggregate(query.aggregate)
        )
        reader.collect({field: expression}, piece, query.group_by, found)
    return found


def _survey(reader: Reader, rollup: Rollup, span: Span) -> tuple[int, int, float]:
    """Return how many series a group has at most, all samples' number, and the lowest value."""
    asked = [
        rollup.combined("count", "count_over_time"),
        rollup.count(),
        rollup.combined("min", "min_over_time"),
    ]
    values: list[list[float]] = [[], [], []]
    for position, answer in reader.instant(asked, span.end_ms):
        values[position].append(value_of(answer))
    per_group, samples, lowest = values
    return int(max(per_group, default=0)), int(sum(samples)), min(lowest, default=0.0)


def _from_samples(reader: Reader, query: RangeQuery, field: str, span: Span) -> Found:
    step_ms = step_ms_of(query)
    windows: dict[tuple[Group, int], list[float]] = defaultdict(list)
    decoder = msgspec.json.Decoder(ExportedSeries)
    selector = field_selector(reader.selector, query.measurement, field)
    for line in reader.client.export(selector, start_ms=span.start_ms, end_ms=span.end_ms):
        series = decoder.decode(line)
        group = group_of(series.metric, query.group_by)
        for at_ms, value in zip(series.timestamps, series.values, strict=True):
            if value is not None:
                label = span.start_ms if step_ms is None else at_ms - at_ms % step_ms
                windows[group, label].append(value)
    found: Found = {}
    for (group, label), values in sorted(windows.items()):
        found.setdefault((field, group), {})[label] = _interpolated(
            sorted(values), PERCENTILES[query.aggregate]
        )
    return found


def _interpolated(ordered: list[float], fraction: float) -> float:
    rank = fraction * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
