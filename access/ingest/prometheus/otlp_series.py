"""Data points of OTLP as samples of labeled series.

Gauges and sums are one series, histograms and summaries the series that Prometheus has for them:
`_count`, `_sum`, and `_bucket` with the label `le` or the quantiles. Sums and histograms with delta
temporality count since their last report: their names end with `_delta`, because they can't be
added to a total without remembering every series. Of exponential histograms there are count and
sum.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from access.ingest.prometheus.otlp_names import label_name, metric_name
from access.ingest.prometheus.series import (
    NAME_LABEL,
    STALE_BITS,
    UNNUMBERED,
    Samples,
    Series,
    SeriesCache,
    SeriesColumn,
    series_of,
)
from access.ingest.prometheus.wire import DOUBLE
from core.errors import TooLargeError

MAX_SAMPLES = 200_000
NO_RECORDED_VALUE, DELTA = 1, 1
STALE: float = DOUBLE.unpack(Struct("<Q").pack(STALE_BITS))[0]
Labels = tuple[tuple[str, str], ...]


class Kind(IntEnum):
    """The kinds of metrics, by their field's number in `Metric`."""

    NONE = 0
    GAUGE = 5
    SUM = 7
    HISTOGRAM = 9
    EXPONENTIAL = 10
    SUMMARY = 11


@dataclass(frozen=True, slots=True)
class Metric:
    """What the points of a metric share; `labels` are those of its resource."""

    name: str = ""
    unit: str = ""
    kind: Kind = Kind.NONE
    is_monotonic: bool = False
    is_delta: bool = False
    labels: Labels = ()

    @property
    def series_name(self) -> str:
        """The name of its series, for those of histograms without their suffix."""
        is_total = self.kind is Kind.SUM and self.is_monotonic and not self.is_delta
        is_ratio = self.kind is Kind.GAUGE
        name = metric_name(self.name, self.unit, is_total=is_total, is_ratio=is_ratio)
        return f"{name}_delta" if self.is_delta else name


@dataclass(slots=True)
class Distribution:
    """A point of a histogram or summary.

    Attributes:
        bounds: the upper bounds of all buckets but the last.
        counts: the number of observations of each bucket.
        quantiles: pairs of a quantile and its value.
        is_absent: it only says that its series ended.
    """

    count: float = 0.0
    total: float | None = None
    bounds: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    quantiles: list[tuple[float, float]] = field(default_factory=list)
    is_absent: bool = False

    def values(self) -> Iterator[tuple[str, Labels, float]]:
        """Yield the suffix of a series' name, more labels, and the value."""
        yield "_count", (), self.count
        if self.total is not None:
            yield "_sum", (), self.total
        if self.bounds and len(self.counts) == len(self.bounds) + 1:
            uppers = [*map(number_text, self.bounds), "+Inf"]
            for upper, below in zip(uppers, accumulate(self.counts), strict=True):
                yield "_bucket", (("le", upper),), below
        for quantile, value in self.quantiles:
            yield "", (("quantile", number_text(quantile)),), value


class TooManySamplesError(TooLargeError):
    """A request has more samples than allowed."""

    def __init__(self) -> None:
        super().__init__(f"The request has more than {MAX_SAMPLES:,} samples. Send fewer.")


@dataclass(slots=True)
class SampleColumns:
    """Samples as they are read.

    Attributes:
        cache: gives series their numbers.
        numbers: those of the series; those that have none are in `unnumbered`, by position.
        points: the data point of each sample, by its number in the request.
        point_count: how many data points were read.
        message_count: how many resources, scopes and metrics were read.
    """

    cache: SeriesCache
    numbers: "array[int]" = field(default_factory=lambda: array("i"))
    unnumbered: dict[int, Series] = field(default_factory=dict)
    values: "array[float]" = field(default_factory=lambda: array("d"))
    times_ns: "array[int]" = field(default_factory=lambda: array("q"))
    points: "array[int]" = field(default_factory=lambda: array("i"))
    point_count: int = 0
    message_count: int = 0

    def add_point(self, series: Series, value: float, time_ns: int) -> None:
        """Add a data point with one sample."""
        self._add(series, value, time_ns)
        self.point_count += 1

    def add_points(
        self,
        numbers: NDArray[np.int32],
        values: NDArray[np.float64],
        times_ns: NDArray[np.int64],
    ) -> None:
        """Add data points with one sample each."""
        count = len(numbers)
        if len(self.numbers) + count > MAX_SAMPLES:
            raise TooManySamplesError
        self.numbers.frombytes(numbers.tobytes())
        self.values.frombytes(values.tobytes())
        self.times_ns.frombytes(times_ns.tobytes())
        points = np.arange(self.point_count, self.point_count + count, dtype=np.int32)
        self.points.frombytes(points.tobytes())
        self.point_count += count

    def add_distribution(
        self, metric: Metric, attributes: Mapping[str, str], point: Distribution, *, time_ns: int
    ) -> None:
        """Add the samples of a histogram's or summary's point."""
        labels = (*metric.labels, *attributes.items())
        for suffix, own, value in point.values():
            series = labeled(f"{metric.series_name}{suffix}", (*labels, *own))
            self._add(series, STALE if point.is_absent else value, time_ns)
        self.point_count += 1

    def count_messages(self, count: int = 1) -> None:
        """Count messages that may have no samples, which take time nevertheless."""
        self.message_count += count
        if self.message_count > MAX_SAMPLES:
            raise TooManySamplesError

    def _add(self, series: Series, value: float, time_ns: int) -> None:
        if len(self.numbers) >= MAX_SAMPLES:
            raise TooManySamplesError
        if series.number == UNNUMBERED:
            self.unnumbered[len(self.numbers)] = series
        self.numbers.append(series.number)
        self.values.append(value)
        self.times_ns.append(time_ns)
        self.points.append(self.point_count)

    def samples(self) -> Samples:
        """Return the samples in columns."""
        numbers = np.frombuffer(self.numbers, dtype=np.int32)
        return Samples(
            SeriesColumn(self.cache, numbers, self.unnumbered),
            np.frombuffer(self.values, dtype=np.float64),
            np.frombuffer(self.times_ns, dtype=np.int64),
        )


def labeled(name: str, labels: Iterable[tuple[str, str]]) -> Series:
    """Return a series; a label of a point hides that of its resource."""
    named = {label_name(label): value for label, value in labels}
    return series_of({**named, NAME_LABEL: name}.items())


def number_text(number: float) -> str:
    """Return a number as it stands in labels, without needless digits."""
    return f"{number:.15g}"
