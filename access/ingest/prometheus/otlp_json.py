"""OTLP metrics in JSON as samples.

Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Mapping, Sequence

import msgspec

from access.errors import BadRequestError
from access.ingest.prometheus.otlp_names import resource_labels
from access.ingest.prometheus.otlp_series import (
    DELTA,
    NO_RECORDED_VALUE,
    STALE,
    Distribution,
    Kind,
    Metric,
    SampleColumns,
    labeled,
    number_text,
)
from access.ingest.prometheus.series import SeriesCache
from core.errors import TooLargeError
from core.strict_json import decode_json

# Each object of the JSON takes up to 300 bytes of memory.
MAX_OBJECTS = 1_000_000
_FURTHEST_NS = 2**63 - 1
Integer = int | str
Number = float | str | None


class _AnyValue(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Integer | None = None
    double_value: Number = None

    @property
    def text(self) -> str:
        if self.bool_value is not None:
            return "true" if self.bool_value else "false"
        if self.double_value is not None:
            return number_text(float(self.double_value))
        return self.string_value or ("" if self.int_value is None else str(self.int_value))


class _KeyValue(msgspec.Struct):
    key: str = ""
    value: _AnyValue = _AnyValue()


class _Quantile(msgspec.Struct):
    quantile: float | str = 0.0
    value: float | str = 0.0


class _Point(msgspec.Struct, rename="camel"):
    time_unix_nano: Integer = 0
    attributes: list[_KeyValue] = []
    flags: int = 0
    as_double: Number = None
    as_int: Integer | None = None
    count: Integer = 0
    sum: Number = None
    bucket_counts: list[Integer] = []
    explicit_bounds: list[float | str] = []
    quantile_values: list[_Quantile] = []


class _Data(msgspec.Struct, rename="camel"):
    data_points: list[_Point] = []
    aggregation_temporality: int = 0
    is_monotonic: bool = False


class _Metric(msgspec.Struct, rename="camel"):
    name: str = ""
    unit: str = ""
    gauge: _Data | None = None
    sum: _Data | None = None
    histogram: _Data | None = None
    exponential_histogram: _Data | None = None
    summary: _Data | None = None

    @property
    def data(self) -> tuple[Kind, _Data]:
        by_kind = {
            Kind.GAUGE: self.gauge,
            Kind.SUM: self.sum,
            Kind.HISTOGRAM: self.histogram,
            Kind.EXPONENTIAL: self.exponential_histogram,
            Kind.SUMMARY: self.summary,
        }
        given = ((kind, data) for kind, data in by_kind.items() if data is not None)
        return next(given, (Kind.NONE, _Data()))


class _ScopeMetrics(msgspec.Struct):
    metrics: list[_Metric] = []


class _Resource(msgspec.Struct, frozen=True):
    attributes: list[_KeyValue] = []


class _ResourceMetrics(msgspec.Struct, rename="camel"):
    resource: _Resource = _Resource()
    scope_metrics: list[_ScopeMetrics] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_metrics: list[_ResourceMetrics] = []


def read_json(body: bytes, cache: SeriesCache) -> SampleColumns:
    """Return the samples of an `ExportMetricsServiceRequest` in JSON.

    Args:
        body: the request.
        cache: gives their series numbers later.

    Raises:
        BadRequestError: the body is none; names the field.
        TooLargeError: it has too many objects.
    """
    if body.count(b"{") > MAX_OBJECTS:
        raise TooLargeError(f"The request has more than {MAX_OBJECTS:,} objects. Send fewer.")
    columns = SampleColumns(cache)
    try:
        request = decode_json(body, _Request)
        for resource_metrics in request.resource_metrics:
            attributes = _attributes(resource_metrics.resource.attributes)
            labels = tuple(sorted(resource_labels(attributes).items()))
            for scope_metrics in resource_metrics.scope_metrics:
                for metric in scope_metrics.metrics:
                    _read_metric(metric, labels, columns)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{str(error).replace('`', '')}.", code="bad_json") from error
    except (ValueError, OverflowError) as error:
        raise BadRequestError(f"A number can't be read: {error}.", code="bad_json") from error
    return columns


def _read_metric(
    given: _Metric, labels: tuple[tuple[str, str], ...], columns: SampleColumns
) -> None:
    kind, data = given.data
    metric = Metric(
        given.name,
        given.unit,
        kind,
        data.is_monotonic,
        data.aggregation_temporality == DELTA and kind not in {Kind.GAUGE, Kind.SUMMARY},
        labels,
    )
    for point in data.data_points:
        # Times that don't fit into 64 bits are as good as the furthest ones: too far away.
        time_ns = min(max(int(point.time_unix_nano), -_FURTHEST_NS), _FURTHEST_NS)
        attributes = _attributes(point.attributes)
        is_absent = bool(point.flags & NO_RECORDED_VALUE)
        if kind not in {Kind.GAUGE, Kind.SUM}:
            distribution = Distribution(
                float(point.count),
                None if point.sum is None else float(point.sum),
                list(map(float, point.explicit_bounds)),
                list(map(float, point.bucket_counts)),
                [(float(item.quantile), float(item.value)) for item in point.quantile_values],
                is_absent,
            )
            columns.add_distribution(metric, attributes, distribution, time_ns=time_ns)
            continue
        value = point.as_int if point.as_double is None else point.as_double
        series = labeled(metric.series_name, (*labels, *attributes.items()))
        columns.add_point(series, STALE if is_absent else float(value or 0.0), time_ns)


def _attributes(given: Sequence[_KeyValue]) -> Mapping[str, str]:
    return {item.key: item.value.text for item in given}
