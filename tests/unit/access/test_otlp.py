"""POST /v1/metrics: OTLP in protocol buffers and JSON, encoded by OpenTelemetry's own messages."""

import gzip
from contextlib import suppress
from typing import Any

import pytest
import requests
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, ScopeMetrics

from access.ingest.prometheus.otlp_names import metric_name
from access.ingest.prometheus.otlp_protobuf import OTLPReader
from access.ingest.prometheus.series import SeriesCache
from access.ingest.prometheus.wire import WireError
from core.clock import to_ns
from tests.cast import FrozenClock
from tests.unit.access.conftest import AgentAPI
from tests.unit.access.test_remote_write import stored
from timeseries.store import Store

PATH = "/v1/metrics"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
BOTH = pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
RESOURCE = {
    "attributes": [
        {"key": "service.name", "value": {"stringValue": "trainer"}},
        {"key": "host.name", "value": {"stringValue": "gpu-01"}},
        {"key": "process.pid", "value": {"intValue": 77}},
    ]
}
ATTRIBUTES = [
    {"key": "gpu.index", "value": {"intValue": "3"}},
    {"key": "ok", "value": {"boolValue": True}},
]
CUMULATIVE, DELTA = "AGGREGATION_TEMPORALITY_CUMULATIVE", "AGGREGATION_TEMPORALITY_DELTA"


def request_of(*metrics: dict[str, Any]) -> ExportMetricsServiceRequest:
    scope = {"metrics": list(metrics)}
    request = ExportMetricsServiceRequest()
    json_format.ParseDict(
        {"resourceMetrics": [{"resource": RESOURCE, "scopeMetrics": [scope]}]}, request
    )
    return request


def post(api: AgentAPI, request: ExportMetricsServiceRequest, media_type: str) -> requests.Response:
    if media_type == JSON:
        body = json_format.MessageToJson(request, use_integers_for_enums=True).encode()
    else:
        body = request.SerializeToString()
    headers = {"Content-Type": media_type, "Content-Encoding": "gzip"}
    return api.request("POST", PATH, data=gzip.compress(body), headers=headers)


def at_ns(clock: FrozenClock) -> str:
    return str(to_ns(clock()))


def number(clock: FrozenClock, **value: Any) -> dict[str, Any]:  # noqa: ANN401
    times = {"startTimeUnixNano": at_ns(clock), "timeUnixNano": at_ns(clock)}
    return {**times, "attributes": ATTRIBUTES, **value}


@BOTH
def test_numbers_become_series_with_the_names_of_prometheus(
    api: AgentAPI, store: Store, clock: FrozenClock, media_type: str
) -> None:
    request = request_of(
        {"name": "gpu.memory", "unit": "By", "gauge": {"dataPoints": [number(clock, asInt="7")]}},
        {
            "name": "steps",
            "sum": {
                "aggregationTemporality": CUMULATIVE,
                "isMonotonic": True,
                "dataPoints": [number(clock, asDouble=2.5)],
            },
        },
        {
            "name": "errors",
            "sum": {
                "aggregationTemporality": DELTA,
                "isMonotonic": True,
                "dataPoints": [number(clock, asInt="4")],
            },
        },
    )
    for _ in range(2):  # the series are remembered
        response = post(api, request, media_type)
        assert response.status_code == 200, response.text
        assert response.content in {b"", b"{}"}
    [memory] = stored(store, "gpu_memory_bytes", clock)
    assert memory.fields == {"value": 7.0}
    assert {"job": "trainer", "host": "gpu-01", "gpu_index": "3", "ok": "true"}.items() <= (
        memory.tags.items()
    )
    assert "process_pid" not in memory.tags
    assert stored(store, "steps_total", clock)[0].fields == {"value": 2.5}
    assert stored(store, "errors_delta", clock)[0].fields == {"value": 4.0}


@BOTH
def test_histograms_and_summaries_become_classic_series(
    api: AgentAPI, store: Store, clock: FrozenClock, media_type: str
) -> None:
    histogram = number(
        clock, count="6", sum=9.5, bucketCounts=["1", "2", "3"], explicitBounds=[0.5, 10]
    )
    exponential = number(clock, count="5", sum=1.5, scale=1)
    summary = number(
        clock, count="2", sum=3.0, quantileValues=[{"quantile": 0.99, "value": 2.0}, {}]
    )
    request = request_of(
        {
            "name": "wait",
            "unit": "s",
            "histogram": {"aggregationTemporality": CUMULATIVE, "dataPoints": [histogram]},
        },
        {
            "name": "size",
            "exponentialHistogram": {
                "aggregationTemporality": DELTA,
                "dataPoints": [exponential],
            },
        },
        {"name": "rpc", "summary": {"dataPoints": [summary]}},
    )
    assert post(api, request, media_type).status_code == 200
    buckets = {
        point.tags["le"]: point.fields["value"]
        for point in stored(store, "wait_seconds_bucket", clock)
    }
    assert buckets == {"0.5": 1.0, "10": 3.0, "+Inf": 6.0}
    values = {
        name: stored(store, name, clock)[0].fields["value"]
        for name in ("wait_seconds_count", "wait_seconds_sum", "size_delta_count", "rpc_sum")
    }
    assert values == {
        "wait_seconds_count": 6.0,
        "wait_seconds_sum": 9.5,
        "size_delta_count": 5.0,
        "rpc_sum": 3.0,
    }
    quantiles = {point.tags["quantile"] for point in stored(store, "rpc", clock)}
    assert quantiles == {"0.99", "0"}


@BOTH
def test_what_is_not_stored_is_a_partial_success(
    api: AgentAPI, store: Store, clock: FrozenClock, media_type: str
) -> None:
    points = [
        number(clock, asDouble=1.0),
        {"timeUnixNano": "1", "asDouble": 2.0},
        number(clock, flags=1) | {"attributes": []},
        number(clock, asDouble="NaN") | {"attributes": ATTRIBUTES[:1]},
    ]
    response = post(api, request_of({"name": "x", "gauge": {"dataPoints": points}}), media_type)
    assert response.status_code == 200
    reply = ExportMetricsServiceResponse()
    if media_type == JSON:
        json_format.Parse(response.text, reply)
    else:
        reply.ParseFromString(response.content)
    assert reply.partial_success.rejected_data_points == 1
    assert "retention" in reply.partial_success.error_message
    assert len(stored(store, "x", clock)) == 1


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [
        ("text/plain", b"", 415),
        (PROTOBUF, b"\x0a\x7f", 400),
        (PROTOBUF, b"\x0a\x02\x0a\x7f", 400),
        (JSON, b"{", 400),
        (JSON, b'{"resourceMetrics": {}}', 400),
        (JSON, b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": 5}]}]}]}', 400),
    ],
)
def test_a_bad_body_is_refused(api: AgentAPI, media_type: str, body: bytes, status: int) -> None:
    response = api.request("POST", PATH, data=body, headers={"Content-Type": media_type})
    assert response.status_code == status
    assert response.json()["message"]


def test_a_time_beyond_64_bits_is_too_far_ahead(api: AgentAPI) -> None:
    point = f'{{"timeUnixNano": {2**70}, "asDouble": 1}}'
    metrics = f'[{{"name": "x", "gauge": {{"dataPoints": [{point}]}}}}]'
    body = f'{{"resourceMetrics": [{{"scopeMetrics": [{{"metrics": {metrics}}}]}}]}}'
    response = api.request("POST", PATH, data=body, headers={"Content-Type": JSON})
    assert (response.status_code, response.json()["partialSuccess"]["rejectedDataPoints"]) == (
        200,
        "1",
    )


def test_a_body_of_a_million_objects_is_refused_unread(api: AgentAPI) -> None:
    body = gzip.compress(b'{"resourceMetrics": [' + b"{}," * 1_000_001 + b"{}]}")
    headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    assert api.request("POST", PATH, data=body, headers=headers).status_code == 413


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with suppress(WireError):
        OTLPReader(SeriesCache()).read(body)


@pytest.mark.parametrize("unusual", ["none", "integers", "mixed", "without start", "new series"])
def test_many_points_of_remembered_series_are_read_as_the_first_ones(unusual: str) -> None:
    def body(post: int) -> bytes:
        request = ExportMetricsServiceRequest()
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="load")
        for number in range(40):
            point = metric.gauge.data_points.add(time_unix_nano=1_000 + post)
            if not (unusual == "without start" and number % 2):
                point.start_time_unix_nano = 1
            if unusual == "integers" or (unusual == "mixed" and number % 2):
                point.as_int = -number - post
            else:
                point.as_double = number + post / 7
            if number:  # the first one has no attributes
                tag = f"{number}-{post if unusual == 'new series' else 0}"
                point.attributes.add(key="tag").value.string_value = tag
        return request.SerializeToString()

    cache = SeriesCache()
    for post in range(3):
        columns, expected = (
            OTLPReader(of_sender).read(body(post)) for of_sender in (cache, SeriesCache())
        )
        assert list(columns.samples().series) == list(expected.samples().series)
        assert columns.values == expected.values
        assert (columns.times_ns, columns.points) == (expected.times_ns, expected.points)
        assert columns.times_ns.tolist() == [1_000 + post] * 40


_METRIC = st.tuples(
    st.sampled_from(["gauge", "sum", "delta", "histogram", "flagged"]),
    st.sampled_from([f"m{number}" for number in range(4)]),
    st.integers(1, 3),
)
_SCOPES = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(_METRIC, max_size=14)), min_size=1, max_size=3
)


def _add_metric(scope: ScopeMetrics, kind: str, name: str, *, count: int, post: int) -> None:
    metric = scope.metrics.add(name=name, description=f"of {kind}")
    if kind == "histogram":
        metric.histogram.data_points.add(time_unix_nano=5 + post, count=post, sum=1.5)
        return
    points = metric.gauge.data_points if kind == "gauge" else metric.sum.data_points
    for number in range(count):
        point = points.add(start_time_unix_nano=1, time_unix_nano=10 + post)
        point.attributes.add(key="number").value.string_value = str(number)
        if number % 2:
            point.as_int = post - number
        else:
            point.as_double = post / 3 + number
        point.flags = int(kind == "flagged")
    if kind != "gauge":
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = AggregationTemporality.ValueType(
            1 if kind == "delta" else 2
        )


@settings(max_examples=40)
@given(st.lists(st.tuples(_SCOPES, st.integers(1, 3)), min_size=1, max_size=3))
def test_metrics_that_follow_as_before_are_read_as_the_first_ones(
    requests: list[tuple[list[tuple[str, list[tuple[str, str, int]]]], int]],
) -> None:
    cache = SeriesCache()
    for scopes, repetitions in requests:
        for post in range(repetitions):
            request = ExportMetricsServiceRequest()
            for resource, metrics in scopes:
                resource_metrics = request.resource_metrics.add()
                attribute = resource_metrics.resource.attributes.add(key="service.name")
                attribute.value.string_value = resource
                scope = resource_metrics.scope_metrics.add()
                for kind, name, count in metrics:
                    _add_metric(scope, kind, name, count=count, post=post)
            body = request.SerializeToString()
            read, expected = (
                OTLPReader(of_sender).read(body) for of_sender in (cache, SeriesCache())
            )
            assert list(read.samples().series) == list(expected.samples().series)
            assert read.values.tobytes() == expected.values.tobytes()
            assert (read.times_ns, read.points) == (expected.times_ns, expected.points)
            assert read.message_count == expected.message_count


def test_the_metrics_of_a_sender_are_compared_from_its_third_request_on() -> None:
    cache = SeriesCache()
    metrics = [("sum", f"m{number}", 2) for number in range(20)]
    for post in range(3):
        request = ExportMetricsServiceRequest()
        scope = request.resource_metrics.add().scope_metrics.add()
        for kind, name, count in metrics:
            _add_metric(scope, kind, name, count=count, post=post)
        before = cache.metric_reel
        assert len(OTLPReader(cache).read(request.SerializeToString()).numbers) == 40
    assert len(before.names) == 20
    assert cache.metric_reel is before


@pytest.mark.parametrize(
    ("name", "unit", "flags", "expected"),
    [
        ("system.cpu.time", "s", (True, False), "system_cpu_time_seconds_total"),
        ("system.memory.utilization", "1", (False, True), "system_memory_utilization_ratio"),
        ("http.server.request.duration", "s", (False, False), None),
        ("disk.io", "By/s", (False, True), "disk_io_bytes_per_second"),
        ("requests", "{request}", (True, False), "requests_total"),
        ("queue_bytes", "By", (False, True), "queue_bytes"),
        ("1st", "", (False, False), "_1st"),
    ],
)
def test_names_have_their_unit(
    name: str, unit: str, flags: tuple[bool, bool], expected: str | None
) -> None:
    is_total, is_ratio = flags
    expected = expected or "http_server_request_duration_seconds"
    assert metric_name(name, unit, is_total=is_total, is_ratio=is_ratio) == expected
