"""The messages of remote_write 1.0 and 2.0 as samples.

A series of a post usually has one sample, whose 18 bytes end its message: what comes before is
looked up among remembered labels, and the samples of all series are read together. Whatever
differs is read field by field. Count and sum of native histograms become `NAME_count` and
`NAME_sum`; their buckets, exemplars and metadata are left out.

Source: prompb/remote.proto, prompb/types.proto and io/prometheus/write/v2/types.proto of
Prometheus; https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from access.ingest.prometheus.reel import SAMPLE_BYTES, TIME_AT, TIME_KEY_AT, Span, read_samples
from access.ingest.prometheus.series import (
    MAX_LABELS,
    UNNUMBERED,
    Samples,
    Series,
    SeriesCache,
    SeriesColumn,
    is_stale,
    series_of,
    suffixed,
    too_many_labels,
)
from access.ingest.prometheus.wire import (
    BYTES,
    FIXED64,
    VARINT,
    Value,
    WireError,
    double_of,
    leading_messages,
    read_fields,
    read_packed,
    read_varint,
    signed,
    skip_field,
    text_of,
    varint,
)
from core.clock import NS_PER_SECOND

MAX_SAMPLES = 200_000
# The metadata of a metric is one.
MAX_SKIPPED = 100_000
_NS_PER_MS = NS_PER_SECOND // 1000
_FURTHEST_MS = 9_000_000_000_000
# Version 1: TimeSeries timeseries = 1. Version 2: string symbols = 4, TimeSeries timeseries = 5.
_SERIES_1, _SYMBOLS_2, _SERIES_2 = 1, 4, 5
_KEY_1, _KEY_2 = _SERIES_1 << 3 | BYTES, _SERIES_2 << 3 | BYTES
# A sample of 16 bytes: a double, and a varint of six bytes, as that of any time of this century.
_SAMPLE = b"\x12\x10\x09"
_TIME_BYTES = SAMPLE_BYTES - TIME_AT
# So many messages are compared in about the time in which one is read.
_LEAST_RUN, _MAX_WAIT = 16, 255
_CONTINUES = 0x80
# Of the labels that are remembered by themselves; 10 MB at most.
_SHORT_BYTES = 256
# The key of the time, five bytes that continue, and one that does not.
_TIME_MASK = int.from_bytes(b"\xff" + b"\x80" * _TIME_BYTES, "little")
_TIME_PATTERN = int.from_bytes(b"\x10" + b"\x80" * (_TIME_BYTES - 1), "little")


@dataclass(frozen=True, slots=True)
class _Fields:
    """The numbers of a series' fields, which differ between the versions."""

    labels: int
    samples: int
    histograms: int
    exemplars: int


_FIELDS_1 = _Fields(labels=1, samples=2, histograms=4, exemplars=3)
_FIELDS_2 = _Fields(labels=1, samples=2, histograms=3, exemplars=4)
_LABEL_KEY = _FIELDS_1.labels << 3 | BYTES
_SAMPLE_VALUE, _SAMPLE_TIME = 1, 2
_HISTOGRAM_COUNT_INT, _HISTOGRAM_COUNT_FLOAT, _HISTOGRAM_SUM, _HISTOGRAM_TIME = 1, 2, 3, 15


@dataclass(slots=True)
class _Columns:
    """Samples in the order of the message.

    Attributes:
        cache: gives series their numbers.
        numbers: those of the series; those that have none are in `unnumbered`, by position.
        tails: where the usual sample of each series is; negative for those in `exact`.
        exact: position, value and time of each sample that was read field by field.
    """

    cache: SeriesCache
    numbers: "array[int]" = field(default_factory=lambda: array("i"))
    unnumbered: dict[int, Series] = field(default_factory=dict)
    tails: "array[int]" = field(default_factory=lambda: array("q"))
    exact: list[tuple[int, float, int]] = field(default_factory=list)
    histogram_rows: set[int] = field(default_factory=set)
    exemplars: int = 0
    skipped: int = 0

    def add(self, series: Series, value: float, time_ms: int) -> None:
        row = len(self.numbers)
        self.exact.append((row, value, time_ms))
        self.add_usual(series, -1)

    def add_usual(self, series: Series, tail: int) -> None:
        if series.number == UNNUMBERED:
            self.unnumbered[len(self.numbers)] = series
        self.numbers.append(series.number)
        self.tails.append(tail)

    def skip(self, body: bytes, at: int) -> int:
        """Return the position behind a field that isn't read; many of them take long."""
        self.skipped += 1
        if self.skipped > MAX_SKIPPED:
            raise WireError(f"The request has more than {MAX_SKIPPED:,} fields without samples.")
        return skip_field(body, at)

    def check_size(self, count: int) -> None:
        if count > MAX_SAMPLES:
            raise WireError(f"The request has more than {MAX_SAMPLES:,} samples. Send fewer.")

    def samples(self, body: bytes) -> Samples:
        self.check_size(len(self.numbers))
        values, times_ms = _read_tails(body, self.tails)
        if self.exact:
            rows, exact_values, exact_times = map(list, zip(*self.exact, strict=True))
            values[rows], times_ms[rows] = exact_values, exact_times
        # Times that don't fit into 64 bits are as good as the furthest ones: too far away.
        times_ns = np.clip(times_ms, -_FURTHEST_MS, _FURTHEST_MS) * _NS_PER_MS
        numbers = np.frombuffer(self.numbers, dtype=np.int32)
        series = SeriesColumn(self.cache, numbers, self.unnumbered)
        return Samples(series, values, times_ns, self.histogram_rows, self.exemplars)


def read_version_1(body: bytes, cache: SeriesCache) -> Samples:
    """Return the samples of a `prometheus.WriteRequest`.

    Raises:
        WireError: the body is none.
    """
    columns, labels_of = _Columns(cache), _Labels(cache)
    runs = _Runs(body, columns, cache)
    by_labels = cache.by_labels
    at, stop, unusual = 0, len(body), 0
    try:
        while at < stop:
            if body[at] != _KEY_1:
                at = columns.skip(body, at)
                continue
            begin = at
            size, start = body[at + 1], at + 2
            if size >= _CONTINUES:
                size, start = read_varint(body, at + 1)
            at = start + size
            tail = at - SAMPLE_BYTES
            labels = body[start:tail]
            is_usual = start < tail and at <= stop and _is_usual(body, tail)
            series = by_labels.get(labels) if is_usual else None
            if series is None:
                unusual += 1
                columns.check_size(unusual)
                series = labels_of.of_usual(labels) if is_usual else None
            if series is None:
                _read_series(body[start:at], columns, labels_of, _FIELDS_1, size=size)
                continue
            columns.add_usual(series, tail)
            if series.number != UNNUMBERED:
                at = runs.follow((begin, at, series.number))
    except IndexError as error:
        raise WireError("The protobuf message is truncated.") from error
    runs.remember()
    return columns.samples(body)


class _Runs:
    """Adds the series that follow each other as they did before, all of them at once."""

    def __init__(self, body: bytes, columns: _Columns, cache: SeriesCache) -> None:
        self._octets = np.frombuffer(body, dtype=np.uint8)
        self._columns = columns
        self._cache = cache
        self._reel = cache.reel
        self._spans: list[Span] = []
        self._wait = self._next_wait = 0

    def follow(self, span: Span) -> int:
        """Return where the messages end that follow one as they did before.

        To look for them takes as long as to read some: where the order is another one, it is
        tried ever more rarely.
        """
        self._spans.append(span)
        if self._wait:
            self._wait -= 1
            return span[1]
        ends, numbers = self._reel.follow(self._octets, span[1], span[2])
        is_worth_it = len(numbers) >= _LEAST_RUN
        self._next_wait = 0 if is_worth_it else min(2 * self._next_wait + 1, _MAX_WAIT)
        self._wait = self._next_wait
        if not len(numbers):
            return span[1]
        self._columns.numbers.frombytes(numbers.tobytes())
        self._columns.tails.frombytes((ends - SAMPLE_BYTES).tobytes())
        return int(ends[-1])

    def remember(self) -> None:
        """Remember the series that were read one by one, in this order."""
        self._cache.extend_reel(self._octets, self._spans)


def read_version_2(body: bytes, cache: SeriesCache) -> Samples:
    """Return the samples of an `io.prometheus.write.v2.Request`.

    Raises:
        WireError: the body is none.
    """
    columns = _Columns(cache)
    symbols: list[str] = []
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(body):
        key, behind = read_varint(body, at)
        if key not in {_KEY_2, _SYMBOLS_2 << 3 | BYTES}:
            at = columns.skip(body, at)
            continue
        size, start = read_varint(body, behind)
        at = start + size
        if at > len(body):
            raise WireError("The protobuf message is truncated.")
        if key == _KEY_2:
            spans.append((start, at))
            columns.check_size(len(spans))
        else:
            symbols.append(text_of(body[start:at]))
    if spans and (not symbols or symbols[0]):
        raise WireError("The first symbol of a remote_write 2.0 request must be empty.")
    # Protocol buffers allow symbols after the series that refer to them.
    labels_of = _References(cache, symbols)
    for start, end in spans:
        _read_series(body[start:end], columns, labels_of, _FIELDS_2, size=end - start)
    return columns.samples(body)


class _Labels:
    """Finds the series of labels that are written out (version 1)."""

    def __init__(self, cache: SeriesCache) -> None:
        self._cache = cache

    def of_usual(self, written: bytes) -> Series | None:
        """Return the series of the fields of labels; None if there are others."""
        labels, end = leading_messages(written, _LABEL_KEY)
        return self._cache.add(written, _of_labels(labels)) if end == len(written) else None

    def find(self, labels: Sequence[bytes]) -> Series:
        """Return the series of some `Label` messages, remembered by their fields' bytes."""
        key = bytes((_LABEL_KEY,))
        written = b"".join(key + varint(len(label)) + label for label in labels)
        return self._cache.add(written, _of_labels(labels))


def _of_labels(labels: Sequence[bytes]) -> Series:
    """Return the series of some `Label` messages."""
    if len(labels) > MAX_LABELS:
        return too_many_labels(len(labels))
    try:
        return series_of(
            [
                _short_label(label) if len(label) <= _SHORT_BYTES else _label(label)
                for label in labels
            ]
        )
    except UnicodeDecodeError:
        return Series(("", ()), error="a label is not UTF-8")


class _References:
    """Finds the series of labels that refer to symbols (version 2)."""

    def __init__(self, cache: SeriesCache, symbols: Sequence[str]) -> None:
        self._cache = cache
        self._symbols = symbols

    def find(self, labels: Sequence[bytes]) -> Series:
        """Return the series of some references, remembered by the texts of its labels."""
        references = read_packed(labels[0] if len(labels) == 1 else b"".join(labels))
        if len(references) % 2:
            return Series(("", ()), error="it has a label without a value")
        try:
            texts = tuple([self._symbols[at] for at in references])
        except IndexError:
            return Series(("", ()), error="a label refers to a symbol that is not there")
        series = self._cache.by_labels.get(texts)
        if series is None:
            series = series_of(zip(texts[::2], texts[1::2], strict=True))
            return self._cache.add(texts, series)
        return series


def _read_series(
    message: bytes,
    columns: _Columns,
    labels_of: "_Labels | _References",
    numbers: _Fields,
    *,
    size: int,
) -> None:
    """Read the message of a series field by field."""
    if len(message) < size:
        raise WireError("The protobuf message is truncated.")
    labels: list[bytes] = []
    samples: list[bytes] = []
    histograms: list[bytes] = []
    of_number = {
        numbers.labels: labels,
        numbers.samples: samples,
        numbers.histograms: histograms,
    }
    leading, at = leading_messages(message, numbers.labels << 3 | BYTES)
    labels += leading
    for number, kind, value in read_fields(message, at, size):
        if number in of_number:
            of_number[number].append(_message(kind, value))
        elif number == numbers.exemplars:
            columns.exemplars += 1
    series = labels_of.find(labels)
    for sample in samples:
        columns.add(series, *_read_sample(sample))
    for histogram in histograms:
        _add_histogram(columns, series, histogram)


def _read_sample(message: bytes) -> tuple[float, int]:
    """Return value and time of a `Sample`; fields that are left out are 0."""
    value, time_ms = 0.0, 0
    for number, kind, raw in read_fields(message, 0, len(message)):
        if number == _SAMPLE_VALUE and kind == FIXED64:
            value = double_of(raw)
        elif number == _SAMPLE_TIME and kind == VARINT:
            time_ms = _number(raw)
    return value, time_ms


def _add_histogram(columns: _Columns, series: Series, message: bytes) -> None:
    """Add count and sum of a `Histogram`."""
    count = total = 0.0
    time_ms = 0
    for number, kind, raw in read_fields(message, 0, len(message)):
        if number == _HISTOGRAM_COUNT_INT and kind == VARINT:
            count = float(_number(raw))
        elif number == _HISTOGRAM_COUNT_FLOAT and kind == FIXED64:
            count = double_of(raw)
        elif number == _HISTOGRAM_SUM and kind == FIXED64:
            total = double_of(raw)
        elif number == _HISTOGRAM_TIME and kind == VARINT:
            time_ms = _number(raw)
    row = len(columns.numbers)
    columns.histogram_rows |= {row, row + 1}
    # A histogram ends as a series does: its sum is the stale marker.
    if is_stale(total):
        count = total
    columns.add(suffixed(series, "_count"), count, time_ms)
    columns.add(suffixed(series, "_sum"), total, time_ms)


def _is_usual(body: bytes, tail: int) -> bool:
    """Return whether the 18 bytes are a sample whose time has six bytes."""
    if not body.startswith(_SAMPLE, tail):
        return False
    time = int.from_bytes(body[tail + TIME_KEY_AT : tail + SAMPLE_BYTES], "little")
    return time & _TIME_MASK == _TIME_PATTERN


def _read_tails(body: bytes, tails: "array[int]") -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return values and times of usual samples; of those at negative positions anything."""
    if len(body) < SAMPLE_BYTES:
        return np.zeros(len(tails)), np.zeros(len(tails), dtype=np.int64)
    starts = np.maximum(np.frombuffer(tails, dtype=np.int64), 0)
    return read_samples(np.frombuffer(body, dtype=np.uint8), starts)


def _message(kind: int, value: Value) -> bytes:
    if kind != BYTES or isinstance(value, int):
        raise WireError("The protobuf message has a number where a message should be.")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("The protobuf message has bytes where a number should be.")
    return signed(value)


@lru_cache(maxsize=16_384)
def _short_label(message: bytes) -> tuple[str, str]:
    """Return a label as `_label` does: series share most of theirs."""
    return _label(message)


def _label(message: bytes) -> tuple[str, str]:
    name = value = ""
    for number, kind, raw in read_fields(message, 0, len(message)):
        if number == 1:
            name = _message(kind, raw).decode()
        elif number == 2:  # noqa: PLR2004 - the field's number
            value = _message(kind, raw).decode()
    return name, value
