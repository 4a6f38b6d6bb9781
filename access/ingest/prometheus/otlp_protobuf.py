"""OTLP metrics in protocol buffers as samples.

The data point of a gauge or sum usually begins with times and value, whose size is fixed, and ends
with its attributes: these are remembered by their bytes. Numbers of fields are those of
opentelemetry/proto/metrics/v1/metrics.proto, version 1.5.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from access.ingest.prometheus.otlp_names import resource_labels
from access.ingest.prometheus.otlp_reel import (
    HEAD,
    HEADS,
    INTEGER_KEY,
    Followed,
    Place,
    Unit,
)
from access.ingest.prometheus.otlp_series import (
    DELTA,
    NO_RECORDED_VALUE,
    STALE,
    Distribution,
    Kind,
    Labels,
    Metric,
    SampleColumns,
    labeled,
    number_text,
)
from access.ingest.prometheus.series import MAX_LABELS, UNNUMBERED, SeriesCache
from access.ingest.prometheus.wire import (
    BYTES,
    DOUBLE,
    Value,
    WireError,
    double_of,
    leading_messages,
    read_fields,
    read_varint,
    signed,
    skip_field,
    text_of,
    varint,
)

_INTEGER = Struct("<q")
# With fewer points NumPy is slower than Python.
_MANY_POINTS = 16
_POINT_KEY, _METRIC_KEY = 1 << 3 | BYTES, 2 << 3 | BYTES
_START_KEY, _TIME_KEY, _DOUBLE_KEY = 0x11, 0x19, 0x21
_MAX_WAIT = 255
_ATTRIBUTES_KEY = bytes((7 << 3 | BYTES,))
_NUMBERS = frozenset({Kind.GAUGE, Kind.SUM})
_WITHOUT_TEMPORALITY = frozenset({Kind.GAUGE, Kind.SUMMARY})


class OTLPReader:
    """Reads requests, and remembers the series of their senders."""

    def __init__(self, cache: SeriesCache) -> None:
        self._cache = cache
        self._reel = cache.metric_reel
        self._units: list[Unit] = []
        self._wait = self._next_wait = 0

    def read(self, body: bytes) -> SampleColumns:
        """Return the samples of an `ExportMetricsServiceRequest`.

        Raises:
            WireError: the body is none.
            TooManySamplesError: it has too many.
        """
        columns = SampleColumns(self._cache)
        for resource_metrics in _messages(body, 1):
            columns.count_messages()
            resources = _messages(resource_metrics, 1)
            attributes = _attributes(
                item for message in resources for item in _messages(message, 1)
            )
            labels = tuple(sorted(resource_labels(attributes).items()))
            for scope_metrics in _messages(resource_metrics, 2):
                columns.count_messages()
                self._read_scope(scope_metrics, labels, columns)
        self._cache.extend_metric_reel(self._units)
        return columns

    def _read_scope(self, scope: bytes, labels: Labels, columns: SampleColumns) -> None:
        octets = np.frombuffer(scope, dtype=np.uint8)
        at, before = 0, ""
        while at < len(scope):
            if scope[at] != _METRIC_KEY:
                at = skip_field(scope, at)
                continue
            is_sought = (labels, before) in self._reel.next_of
            followed = self._follow(octets, at, (labels, before)) if is_sought else None
            if followed is not None:
                columns.count_messages(followed.metrics)
                columns.add_points(followed.numbers, followed.values, followed.times_ns)
                at, before = followed.end, followed.name
                continue
            columns.count_messages()
            begin, at = at, skip_field(scope, at)
            _, start = read_varint(scope, begin + 1)
            message = scope[start:at]
            metric, numbers = self._read_metric(message, labels, columns)
            if numbers and not self._wait:
                heads = _heads_of(message, len(numbers))
                if heads is not None:
                    field_heads = np.array(heads, dtype=np.int64) + (start - begin)
                    series_numbers = np.array(numbers, dtype=np.int32)
                    self._units.append(
                        Unit(
                            labels,
                            metric.name,
                            before,
                            scope[begin:at],
                            field_heads,
                            series_numbers,
                        )
                    )
            before = metric.name

    def _follow(self, scope: NDArray[np.uint8], at: int, place: Place) -> Followed | None:
        """Return the metrics that follow as before; where they differ, it is tried more rarely."""
        if self._wait:
            self._wait -= 1
            return None
        followed = self._reel.follow(scope, at, place)
        self._next_wait = 0 if followed else min(2 * self._next_wait + 1, _MAX_WAIT)
        self._wait = self._next_wait
        return followed

    def _read_metric(
        self, message: bytes, labels: Labels, columns: SampleColumns
    ) -> tuple[Metric, list[int]]:
        """Read a metric; return it, and the series of its points if all of them are usual."""
        metric, data = _metric_of(message, labels)
        points, at = leading_messages(data, _POINT_KEY)
        for number, _, value in read_fields(data, at, len(data)):
            match number:
                case 1:
                    points.append(_bytes(value))
                case 2:
                    is_delta = value == DELTA and metric.kind not in _WITHOUT_TEMPORALITY
                    metric = replace(metric, is_delta=is_delta)
                case 3:
                    metric = replace(metric, is_monotonic=bool(value))
        if metric.kind in _NUMBERS:
            return metric, self._read_numbers(metric, points, columns)
        for point in points:
            _read_distribution(metric, point, columns)
        return metric, []

    def _read_numbers(
        self, metric: Metric, points: Sequence[bytes], columns: SampleColumns
    ) -> list[int]:
        """Read the points of a metric; return their series if all of them are usual."""
        remembered = self._cache.of_metric(metric)
        size = HEAD.size
        if len(points) >= _MANY_POINTS and min(map(len, points)) >= size:
            matched = [remembered.get(point[size:], UNNUMBERED) for point in points]
            heads = np.frombuffer(b"".join([point[:size] for point in points]), dtype=HEADS)
            values = _values(heads) if min(matched) != UNNUMBERED else None
            if values is not None:
                numbers = np.array(matched, dtype=np.int32)
                columns.add_points(numbers, values, np.ascontiguousarray(heads["time_ns"]))
                return matched
        series = self._cache.series
        usual: list[int] = []
        for point in points:
            number = remembered.get(point[size:]) if len(point) >= size else None
            if number is None:
                self._read_number(metric, point, columns)
                continue
            start_key, _, time_key, time_ns, value_key, raw = HEAD.unpack_from(point)
            if (start_key, time_key) != (_START_KEY, _TIME_KEY):
                self._read_number(metric, point, columns)
                continue
            if value_key == _DOUBLE_KEY:
                columns.add_point(series[number], DOUBLE.unpack(raw)[0], time_ns)
            elif value_key == INTEGER_KEY:
                columns.add_point(series[number], float(_INTEGER.unpack(raw)[0]), time_ns)
            else:
                self._read_number(metric, point, columns)
                continue
            usual.append(number)
        return usual if len(usual) == len(points) else []

    def _read_number(self, metric: Metric, point: bytes, columns: SampleColumns) -> None:
        number_value, time_ns, flags = 0.0, 0, 0
        attributes: list[bytes] = []
        for number, _, value in read_fields(point, 0, len(point)):
            match number:
                case 3:
                    time_ns = _fixed(value)
                case 4:
                    number_value = double_of(value)
                case 6:
                    number_value = float(_fixed(value))
                case 7:
                    attributes.append(_bytes(value))
                case 8:
                    flags = _number(value)
        labels = (*metric.labels, *_attributes(attributes).items())
        series = labeled(metric.series_name, labels)
        # What usually follows the head: exactly these attributes prove that it is nothing else.
        usual = b"".join(_ATTRIBUTES_KEY + varint(len(item)) + item for item in attributes)
        if point[HEAD.size :] == usual:
            series = self._cache.add_of_metric(metric, usual, series)
        columns.add_point(series, STALE if flags & NO_RECORDED_VALUE else number_value, time_ns)


def _heads_of(message: bytes, count: int) -> list[int] | None:
    """Return where each point of a metric begins; None if they are not where they usually are."""
    _, data = _metric_of(message, ())
    start = message.find(data)
    points, end = leading_messages(data, _POINT_KEY)
    heads, at = [], start
    for point in points:
        at += 1 + len(varint(len(point)))
        heads.append(at)
        at += len(point)
    is_usual = len(points) == count and at == start + end and message.rfind(data) == start
    return heads if is_usual else None


def _values(heads: NDArray[np.void]) -> NDArray[np.float64] | None:
    """Return the values of usual points; None if some are not."""
    keys = heads["value_key"]
    if (heads["start_key"] != _START_KEY).any() or (heads["time_key"] != _TIME_KEY).any():
        return None
    if (keys == _DOUBLE_KEY).all():
        return heads["value"].astype(np.float64)
    if (keys == INTEGER_KEY).all():
        return heads["value"].view("<i8").astype(np.float64)
    return None


def _metric_of(message: bytes, labels: Labels) -> tuple[Metric, bytes]:
    """Return a metric, and the message with its points."""
    name, unit, kind, data = "", "", Kind.NONE, b""
    for number, _, value in read_fields(message, 0, len(message)):
        match number:
            case 1:
                name = text_of(value)
            case 3:
                unit = text_of(value)
            case 5 | 7 | 9 | 10 | 11:
                kind, data = Kind(number), _bytes(value)
    return Metric(name, unit, kind, labels=labels), data


def _read_distribution(metric: Metric, message: bytes, columns: SampleColumns) -> None:
    """Read the data point of a histogram, an exponential histogram or a summary."""
    point = Distribution()
    time_ns = flags = 0
    attributes: list[bytes] = []
    is_summary, is_exponential = metric.kind is Kind.SUMMARY, metric.kind is Kind.EXPONENTIAL
    attributes_at = 7 if is_summary else 1 if is_exponential else 9
    flags_at = 8 if is_summary else 10
    for number, _, value in read_fields(message, 0, len(message)):
        if number == attributes_at:
            attributes.append(_bytes(value))
            continue
        if number == flags_at:
            flags = _number(value)
            continue
        match number:
            case 3:
                time_ns = _fixed(value)
            case 4:
                point.count = float(_fixed(value))
            case 5:
                point.total = double_of(value)
            case 6 if is_summary:
                point.quantiles.append(_quantile(_bytes(value)))
            case 6 if not is_exponential:
                point.counts += [number for (number,) in _unpacked(_INTEGER, value)]
            case 7 if not is_exponential:
                point.bounds += [number for (number,) in _unpacked(DOUBLE, value)]
    point.is_absent = bool(flags & NO_RECORDED_VALUE)
    columns.add_distribution(metric, _attributes(attributes), point, time_ns=time_ns)


def _quantile(message: bytes) -> tuple[float, float]:
    quantile = number_value = 0.0
    for number, _, value in read_fields(message, 0, len(message)):
        match number:
            case 1:
                quantile = double_of(value)
            case 2:
                number_value = double_of(value)
    return quantile, number_value


def _attributes(messages: Iterable[bytes]) -> Mapping[str, str]:
    """Return the texts of some `KeyValue` messages; a later one of the same key counts."""
    attributes = {}
    for count, message in enumerate(messages):
        if count > MAX_LABELS:
            raise WireError(f"A resource or data point has more than {MAX_LABELS} attributes.")
        name = text = ""
        for number, _, value in read_fields(message, 0, len(message)):
            match number:
                case 1:
                    name = text_of(value)
                case 2:
                    text = _any_value(_bytes(value))
        attributes[name] = text
    return attributes


def _any_value(message: bytes) -> str:
    """Return an `AnyValue` as text; lists, maps and bytes have none."""
    for number, _, value in read_fields(message, 0, len(message)):
        match number:
            case 1:
                return text_of(value)
            case 2:
                return "true" if value else "false"
            case 3:
                return str(signed(_number(value)))
            case 4:
                return number_text(double_of(value))
    return ""


def _messages(body: bytes, wanted: int) -> Iterator[bytes]:
    for number, _, value in read_fields(body, 0, len(body)):
        if number == wanted:
            yield _bytes(value)


def _unpacked(struct: Struct, value: Value) -> Iterator[tuple[float]]:
    """Yield the numbers of a field that may be packed."""
    packed = _bytes(value)
    if len(packed) % struct.size:
        raise WireError("The protobuf message has a list of numbers that is truncated.")
    return struct.iter_unpack(packed)


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise WireError("The protobuf message has a number where a message should be.")
    return value


def _fixed(value: Value) -> int:
    raw = _bytes(value)
    if len(raw) != _INTEGER.size:
        raise WireError("The protobuf message has a number of a wrong size.")
    number: int = _INTEGER.unpack(raw)[0]
    return number


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("The protobuf message has bytes where a number should be.")
    return value
