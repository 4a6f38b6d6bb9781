"""Labeled series: what remote_write and OTLP send, and how it becomes a batch.

A series `node_load1{...}` is the field `value` of the measurement `node_load1`; its labels are the
tags. Parsing the labels costs much more than the rest of a sample, and a sender repeats them in
every post: what was parsed is remembered by its bytes, and has a number.
"""

import re
from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import overload

import numpy as np
from numpy.typing import NDArray

from access.ingest.prometheus.otlp_reel import MetricReel, Unit
from access.ingest.prometheus.reel import Reel, Span
from timeseries.points import Batch, Block
from timeseries.series_batch import VALUE_FIELD, Shape

NAME_LABEL = "__name__"
MAX_LABELS = 64
MAX_LABEL_BYTES = 4096
# So many characters have no more bytes than that.
_CERTAIN_LENGTH = MAX_LABEL_BYTES // 4
MAX_REMEMBERED_BYTES = 96 * 1024 * 1024
# What a remembered series takes beside its bytes: objects of Python.
_OVERHEAD_BYTES = 1000
# Prometheus marks the end of a series by this NaN.
STALE_BITS = 0x7FF0000000000002
_LABEL_NAME = re.compile(r"[^\x00-\x1f]+")

UNNUMBERED = -1


@dataclass(frozen=True, slots=True)
class Series:
    """The labels of a series.

    Attributes:
        shape: its measurement, and its tags in the order of their names.
        tag_values: the value of each tag.
        error: why it is invalid; empty if it is not.
        number: its place in the cache that remembers it.
    """

    shape: Shape
    tag_values: tuple[str, ...] = ()
    error: str = ""
    number: int = field(default=UNNUMBERED, compare=False)

    @property
    def labels(self) -> dict[str, str]:
        """The labels without the name."""
        return dict(zip(self.shape[1], self.tag_values, strict=True))


def series_of(labels: Iterable[tuple[str, str]]) -> Series:
    """Return the series with these labels; empty values are as good as missing labels."""
    named = sorted(labels)
    if len(named) > MAX_LABELS:
        return too_many_labels(len(named))
    if len(dict(named)) < len(named):
        return _invalid("a label is given twice")
    present = {name: value for name, value in named if value}
    measurement = present.pop(NAME_LABEL, "")
    if not measurement:
        return _invalid(f"it has no name; send the label {NAME_LABEL}")
    for name, value in present.items():
        if not _is_label_name(name):
            return _invalid(f"the label name {name[:50]!r} is empty or has control characters")
        if len(value) > _CERTAIN_LENGTH and len(value.encode()) > MAX_LABEL_BYTES:
            return _invalid(f"the value of {name[:50]!r} is longer than {MAX_LABEL_BYTES} bytes")
    return Series((measurement, tuple(present)), tuple(present.values()))


@lru_cache(maxsize=4096)
def _is_label_name(name: str) -> bool:
    return _LABEL_NAME.fullmatch(name) is not None


def suffixed(series: Series, suffix: str) -> Series:
    """Return the series with a longer name."""
    measurement, tags = series.shape
    return replace(series, shape=(f"{measurement}{suffix}", tags), number=UNNUMBERED)


def is_stale(value: float) -> bool:
    """Return whether a value is the stale marker, not any other NaN."""
    return value != value and int(np.float64(value).view(np.uint64)) == STALE_BITS  # noqa: PLR0124 - NaN


def too_many_labels(count: int) -> Series:
    """Return what stands for a series with too many labels."""
    return _invalid(f"it has {count} labels; at most {MAX_LABELS} are allowed")


class SeriesCache:
    """The series of a sender, by the bytes or texts of their labels.

    Attributes:
        by_labels: series that the labels alone identify.
        series: the series of each number.
        reel: messages of series in the order in which they were sent.
        metric_reel: the same of OTLP's metrics.
        bytes: about what they take in memory.
    """

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self.by_labels: dict[bytes | tuple[str, ...], Series] = {}
        self.series: list[Series] = []
        self.reel = Reel()
        self.metric_reel = MetricReel()
        self.bytes = 0
        self._by_metric: dict[Hashable, dict[bytes, int]] = {}
        self._by_value: dict[Series, Series] = {}
        self._max_bytes = max_bytes
        # Small requests are read beside a large one.
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        """Return whether it is full, so that a new one must begin."""
        return self.bytes >= self._max_bytes

    def of_metric(self, metric: Hashable) -> Mapping[bytes, int]:
        """Return the numbers of the series of a metric by their attributes."""
        return self._by_metric.get(metric, {})

    def add(self, labels: bytes | tuple[str, ...], series: Series) -> Series:
        """Remember a valid series by its labels; return it with its number."""
        series = self.numbered(series)
        if series.number != UNNUMBERED and labels not in self.by_labels:
            self.bytes += sum(map(len, labels)) if isinstance(labels, tuple) else len(labels)
            self.by_labels[labels] = series
        return series

    def add_of_metric(self, metric: Hashable, attributes: bytes, series: Series) -> Series:
        """Remember a valid series of a metric; return it with its number."""
        series = self.numbered(series)
        if series.number != UNNUMBERED:
            self.bytes += len(attributes)
            self._by_metric.setdefault(metric, {})[attributes] = series.number
        return series

    def extend_reel(self, body: NDArray[np.uint8], spans: Sequence[Span]) -> None:
        """Remember messages in the order of a body."""
        reel = self.reel.extended(body, spans)
        self.bytes += 2 * (len(reel) - len(self.reel))
        self.reel = reel

    def extend_metric_reel(self, units: Sequence[Unit]) -> None:
        """Remember messages of OTLP's metrics in the order of a request."""
        reel = self.metric_reel.extended(units)
        self.bytes += 2 * (len(reel) - len(self.metric_reel))
        self.metric_reel = reel

    def numbered(self, series: Series) -> Series:
        """Return the same series with a number; an invalid one gets none, nor one too many."""
        if series.error or series.number != UNNUMBERED:
            return series
        with self._lock:
            remembered = self._by_value.get(series)
            if remembered is None:
                if self.is_full:
                    return series
                self.bytes += sum(map(len, series.tag_values)) + _OVERHEAD_BYTES
                remembered = Series(series.shape, series.tag_values, number=len(self.series))
                self.series.append(remembered)
                self._by_value[remembered] = remembered
            return remembered


@dataclass(frozen=True, slots=True, eq=False)
class SeriesColumn(Sequence[Series]):
    """The series of samples, most of them as numbers.

    Attributes:
        cache: gave the numbers.
        numbers: the number of each sample's series.
        unnumbered: the series without a number, by the position of their sample.
    """

    cache: SeriesCache
    numbers: NDArray[np.int32]
    unnumbered: Mapping[int, Series] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> Series: ...
    @overload
    def __getitem__(self, at: slice) -> list[Series]: ...
    def __getitem__(self, at: int | slice) -> Series | list[Series]:
        if isinstance(at, slice):
            return list(self)[at]
        number = int(self.numbers[at])
        return self.unnumbered[at] if number == UNNUMBERED else self.cache.series[number]

    def __iter__(self) -> Iterator[Series]:
        series = self.cache.series
        for at, number in enumerate(self.numbers.tolist()):
            yield self.unnumbered[at] if number == UNNUMBERED else series[number]


@dataclass(slots=True)
class Samples:
    """The samples of a request in columns, in its order.

    Attributes:
        series: the series of each sample.
        values: the values.
        times_ns: the times, in nanoseconds since the epoch.
        histogram_rows: the positions of count and sum of histograms.
        exemplars: how many exemplars were left out.
    """

    series: SeriesColumn
    values: NDArray[np.float64]
    times_ns: NDArray[np.int64]
    histogram_rows: Collection[int] = frozenset()
    exemplars: int = 0

    def __len__(self) -> int:
        return len(self.series)


@dataclass(frozen=True, slots=True)
class NumberedSamples:
    """The finite samples of a request, by the numbers of their series.

    Attributes:
        numbers: of the series in the sender's cache.
        rows: the positions of the samples in the request.
        errors: position to reason of samples of invalid series.
        infinite: how many values were infinite, which no store has.
    """

    numbers: NDArray[np.int32]
    values: NDArray[np.float64]
    times_ns: NDArray[np.int64]
    rows: NDArray[np.int64]
    errors: dict[int, str]
    infinite: int = 0

    def select(self, at: NDArray[np.bool_]) -> "NumberedSamples":
        """Return the samples at which a mask is true."""
        return replace(
            self,
            numbers=self.numbers[at],
            values=self.values[at],
            times_ns=self.times_ns[at],
            rows=self.rows[at],
        )


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """A batch, with what isn't in it.

    Attributes:
        errors: position to reason.
        infinite: how many values were infinite, which no store has.
    """

    batch: Batch
    errors: dict[int, str]
    infinite: int = 0


Read = NumberedSamples | SampleBatch


def read_of(samples: Samples, cache: SeriesCache) -> Read:
    """Return samples by the numbers of their series; as a batch if the cache is full."""
    return _numbered(samples, cache) or batch_of(samples)


def _numbered(samples: Samples, cache: SeriesCache) -> NumberedSamples | None:
    numbers = samples.series.numbers.copy()
    for row, series in samples.series.unnumbered.items():
        numbers[row] = cache.numbered(series).number
    is_present = np.isfinite(samples.values)
    infinite = int(np.isinf(samples.values).sum()) if not is_present.all() else 0
    unnumbered = np.flatnonzero(is_present & (numbers == UNNUMBERED)).tolist()
    errors = {row: samples.series.unnumbered[row].error for row in unnumbered}
    if not all(errors.values()):
        return None
    is_present[unnumbered] = False
    rows = np.flatnonzero(is_present)
    return NumberedSamples(
        numbers[rows], samples.values[rows], samples.times_ns[rows], rows, errors, infinite
    )


def batch_of(samples: Samples) -> SampleBatch:
    """Return the samples as a batch whose positions are their order."""
    finite = np.isfinite(samples.values)
    groups: dict[Shape, list[int]] = {}
    errors: dict[int, str] = {}
    is_whole = bool(finite.all())
    present = range(len(samples)) if is_whole else np.flatnonzero(finite).tolist()
    series_of_row = list(samples.series)
    for row in present:
        series = series_of_row[row]
        rows = groups.get(series.shape)
        if rows is not None:
            rows.append(row)
        elif series.error:
            errors[row] = series.error
        else:
            groups[series.shape] = [row]
    batch = Batch(
        tuple(
            _block(shape, rows, [series_of_row[row] for row in rows], samples)
            for shape, rows in groups.items()
        )
    )
    if is_whole:
        return SampleBatch(batch, errors)
    return SampleBatch(batch, errors, int(np.isinf(samples.values).sum()))


def _block(
    shape: Shape,
    rows: list[int],
    series: Sequence[Series],
    samples: Samples,
) -> Block:
    tag_sets = [labeled.tag_values for labeled in series]
    tag_set_of: Sequence[int] = range(len(rows))
    index = {tag_set: at for at, tag_set in enumerate(dict.fromkeys(tag_sets))}
    if len(index) < len(rows):
        tag_set_of, tag_sets = [index[tag_set] for tag_set in tag_sets], list(index)
    measurement, tags = shape
    return Block(
        measurement,
        tags,
        tag_sets,
        tag_set_of,
        (VALUE_FIELD,),
        (float,),
        (array("d", samples.values[rows].tobytes()),),
        array("q", samples.times_ns[rows].tobytes()),
        rows,
    )


def _invalid(reason: str) -> Series:
    return Series(("", ()), error=reason)
