"""Asking VictoriaMetrics: several expressions in one request, each answer with its position."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from timeseries.store import LatestQuery, RangeQuery
from timeseries.victoriametrics.client import Answer, VictoriaMetricsClient
from timeseries.victoriametrics.metricsql import (
    EXPRESSION_LABEL,
    SHIFT_MS,
    Rollup,
    group_of,
    joined,
    over_all_series,
)
from timeseries.victoriametrics.windows import Piece, Span

Group = tuple[str, ...]
# Field and group, to window start in milliseconds, to value.
Found = dict[tuple[str, Group], dict[int, float]]


@dataclass(frozen=True, slots=True)
class Reader:
    """What a query may see: the server, the series, and the last time that the server keeps."""

    client: VictoriaMetricsClient
    selector: str
    last_ms: int

    def instant(self, expressions: Sequence[str], at_ms: int) -> Iterator[tuple[int, Answer]]:
        """Return the answers at one time, each with the position of its expression."""
        return self._asked("/api/v1/query", expressions, [("time", _seconds(at_ms))])

    def collect(
        self, expressions: Mapping[str, str], piece: Piece, group_by: Sequence[str], found: Found
    ) -> None:
        """Add the values at the ends of a piece's windows to `found`, by field."""
        fields = list(expressions)
        for position, answer in self._over(list(expressions.values()), piece):
            values = found.setdefault((fields[position], group_of(answer.metric, group_by)), {})
            for at_seconds, value in answer.values or [answer.value or (math.nan, "")]:
                values[piece.label_of(round(at_seconds * 1000) + SHIFT_MS)] = float(value)

    def _over(self, expressions: Sequence[str], piece: Piece) -> Iterator[tuple[int, Answer]]:
        if piece.start_ms + piece.width_ms == piece.end_ms:
            return self.instant(expressions, piece.end_ms)
        times = [
            ("start", _seconds(piece.start_ms + piece.width_ms)),
            ("end", _seconds(piece.end_ms)),
            ("step", f"{piece.width_ms}ms"),
        ]
        return self._asked("/api/v1/query_range", expressions, times)

    def _asked(
        self, path: str, expressions: Sequence[str], times: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[int, Answer]]:
        # The filters travel beside the text, whose length the server bounds (16 KiB).
        asked = [("query", joined(expressions)), ("extra_filters[]", self.selector), *times]
        for answer in self.client.query(path, asked):
            yield int(answer.metric[EXPRESSION_LABEL]), answer


def rollups(query: RangeQuery | LatestQuery, fields: Sequence[str], window_ms: int) -> list[Rollup]:
    """Return the expressions over each field."""
    return [
        Rollup(query.measurement, field, window_ms=window_ms, group_by=query.group_by)
        for field in fields
    ]


def span_with_samples(reader: Reader, span: Span) -> Span:
    """Return the part of a span between the first and the last sample that may be seen."""
    asked = [
        over_all_series(combine, rollup, window_ms=span.width_ms)
        for combine, rollup in (("min", "tfirst_over_time"), ("max", "tlast_over_time"))
    ]
    times_ms = [round(value_of(answer) * 1000) for _, answer in reader.instant(asked, span.end_ms)]
    if not times_ms:
        return Span(span.start_ms, span.start_ms)
    return Span(min(times_ms), max(times_ms) + 1).within(span)


def value_of(answer: Answer) -> float:
    """Return the one value of an instant query's answer."""
    return float(answer.value[1]) if answer.value else math.nan


def _seconds(at_ms: int) -> str:
    at_ms -= SHIFT_MS
    return f"{at_ms // 1000}.{at_ms % 1000:03d}"
