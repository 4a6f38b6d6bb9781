"""POST /api/v1/prom/write: remote_write 1.0 and 2.0, as Prometheus, vmagent and others send it."""

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from access.ingest.prometheus.messages import read_version_1, read_version_2
from access.ingest.prometheus.series import Samples, SeriesCache, batch_of
from access.ingest.prometheus.wire import WireError, varint
from core.clock import to_ns
from core.db import SessionFactory
from core.settings import ServerSettings
from tests.cast import Cast, FrozenClock, make_appliance
from tests.fixtures.remote_write import (
    STALE,
    VERSION_1,
    VERSION_2,
    Sent,
    headers,
    packed,
    request_of,
)
from tests.unit.access.conftest import MAX_BODY_BYTES, OTHER_SECRET, SECRET, AgentAPI
from timeseries.points import Point
from timeseries.store import HOUR_NS, ScanQuery, Store

PATH = "/api/v1/prom/write"
BOTH = pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
NAME = {"__name__": "node_load1"}
Reader = Callable[[bytes, SeriesCache], Samples]


def now_ms(clock: FrozenClock) -> int:
    return to_ns(clock()) // 1_000_000


def post(api: AgentAPI, series: Sent, version: str = VERSION_1) -> requests.Response:
    body = packed(request_of(series, version=version))
    return api.request("POST", PATH, data=body, headers=headers(version))


def series_of(labels: Any, value: float, time_ms: int) -> dict[str, Any]:  # noqa: ANN401
    return {"labels": labels, "samples": [{"value": value, "timestamp": time_ms}]}


def stored(store: Store, measurement: str, clock: FrozenClock) -> list[Point]:
    now_ns = to_ns(clock())
    query = ScanQuery(
        measurement=measurement,
        start_ns=now_ns - HOUR_NS,
        end_ns=now_ns + HOUR_NS,
        tenants=None,
    )
    return [point for batch in store.scan(query) for point in batch.points()]


def written(response: requests.Response) -> list[str]:
    return [
        response.headers[f"X-Prometheus-Remote-Write-{kind}-Written"]
        for kind in ("Samples", "Histograms", "Exemplars")
    ]


@BOTH
def test_a_series_becomes_a_measurement_with_its_labels_as_tags(
    api: AgentAPI, store: Store, clock: FrozenClock, version: str
) -> None:
    at = now_ms(clock)
    labels = NAME | {"instance": "h:9100", "job": "node", "empty": "", "tenant": "forged"}
    for time_ms in (at - 1000, at):  # the labels of the second are remembered
        assert post(api, [series_of(labels, 0.25, time_ms)], version).status_code == 204
    points = stored(store, "node_load1", clock)
    assert [(point.time_ns, point.fields) for point in points] == [
        ((at - 1000) * 1_000_000, {"value": 0.25}),
        (at * 1_000_000, {"value": 0.25}),
    ]
    tags = points[0].tags
    assert (tags["instance"], tags["job"]) == ("h:9100", "node")
    assert "empty" not in tags
    assert tags["tenant"] != "forged"


@BOTH
def test_good_samples_are_stored_beside_bad_ones(
    api: AgentAPI, store: Store, clock: FrozenClock, version: str
) -> None:
    at = now_ms(clock)
    response = post(
        api,
        [
            series_of(NAME, 1.0, at),
            series_of({"job": "node"}, 2.0, at),
            series_of([*NAME.items(), ("a", "1"), ("a", "2")], 3.0, at),
            series_of(NAME | {"x": "1"}, 4.0, at + 2 * 3600 * 1000),
            series_of(NAME | {"x": "2"}, 5.0, at),
        ],
        version,
    )
    assert response.status_code == 400
    assert [error["line"] for error in response.json()["errors"]] == [2, 3, 4]
    assert written(response) == ["2", "0", "0"]
    assert [point.fields["value"] for point in stored(store, "node_load1", clock)] == [1.0, 5.0]


@BOTH
def test_samples_arrive_in_any_order_and_the_last_of_an_instant_counts(
    api: AgentAPI, store: Store, clock: FrozenClock, version: str
) -> None:
    at = now_ms(clock)
    samples = [{"value": float(n), "timestamp": at - n * 1000} for n in (1, 3, 2)]
    series = [{"labels": NAME, "samples": samples}, series_of(NAME, 9.0, at - 2000)]
    response = post(api, series, version)
    assert (response.status_code, written(response)) == (204, ["4", "0", "0"])
    values = [point.fields["value"] for point in stored(store, "node_load1", clock)]
    assert values == [3.0, 9.0, 1.0]


@BOTH
def test_stale_markers_and_nan_stand_for_no_value(
    api: AgentAPI, store: Store, clock: FrozenClock, version: str
) -> None:
    at = now_ms(clock)
    stale = struct.unpack("<d", struct.pack("<Q", STALE))[0]
    sent = [
        series_of(NAME, 1.0, at - 1000),
        series_of(NAME, stale, at),
        series_of(NAME | {"quantile": "0.5"}, math.nan, at),
        series_of(NAME | {"le": "1"}, math.inf, at),
    ]
    response = post(api, sent, version)
    # The infinite value is the one that counts as not written: no store has it.
    assert (response.status_code, written(response)) == (204, ["3", "0", "0"])
    assert len(stored(store, "node_load1", clock)) == 1


@BOTH
def test_count_and_sum_of_native_histograms_are_stored(
    api: AgentAPI, store: Store, clock: FrozenClock, version: str
) -> None:
    at = now_ms(clock)
    histogram = {"count_int": 7, "sum": 3.5, "timestamp": at}
    sent = [{"labels": {"__name__": "rpc"}, "histograms": [histogram]}, series_of(NAME, 1.0, at)]
    response = post(api, sent, version)
    assert (response.status_code, written(response)) == (204, ["1", "1", "0"])
    assert stored(store, "rpc_count", clock)[0].fields == {"value": 7.0}
    assert stored(store, "rpc_sum", clock)[0].fields == {"value": 3.5}


@pytest.mark.parametrize(
    "changed",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": ""},
    ],
)
def test_an_unsupported_type_is_415(api: AgentAPI, changed: dict[str, str]) -> None:
    response = api.request("POST", PATH, data=packed(b""), headers=headers() | changed)
    assert response.status_code == 415


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"\xff\xff\xff", 400, "bad_snappy"),
        (b"no snappy at all", 400, "bad_snappy"),
        # It announces a GiB: nothing is decompressed.
        (varint(1 << 30) + b"\x00a", 413, "too_large"),
        (varint(MAX_BODY_BYTES) + b"\x00a", 400, "bad_snappy"),
        (packed(b"\x0a\x7f"), 400, "bad_protobuf"),
        (packed(b"\x0b\x01"), 400, "bad_protobuf"),
        (packed(b"\x0a\x02\x0a\x7f"), 400, "bad_protobuf"),
    ],
)
def test_a_bad_body_is_refused(api: AgentAPI, body: bytes, status: int, code: str) -> None:
    response = api.request("POST", PATH, data=body, headers=headers())
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize("settings", [{"max_points_per_second_per_tenant": 0.1}], indirect=True)
def test_a_sender_above_its_rate_waits(
    api: AgentAPI, clock: FrozenClock, settings: ServerSettings
) -> None:
    assert settings.max_points_per_second_per_tenant == 0.1
    sent = [series_of(NAME | {"x": str(number)}, 1.0, now_ms(clock)) for number in range(20)]
    assert post(api, sent).status_code == 204
    response = post(api, sent)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1


LABELS = st.dictionaries(
    st.sampled_from(["a", "job", "x" * 130]), st.text(st.characters(codec="utf-8"), max_size=200)
)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.floats(allow_nan=False, allow_infinity=False),
            "timestamp": st.one_of(
                st.integers(1_700_000_000_000, 1_900_000_000_000),
                st.integers(-9_000_000_000_000, 9_000_000_000_000),
            ),
        }
    ),
    max_size=3,
)


@given(st.lists(st.tuples(LABELS, SAMPLES), max_size=5))
def test_both_versions_give_what_was_encoded(sent: Sequence[tuple[dict[str, str], Any]]) -> None:
    series = [
        {"labels": {"__name__": "m", **labels}, "samples": samples} for labels, samples in sent
    ]
    expected = [
        (
            {name: value for name, value in labels.items() if value},
            sample["value"],
            sample["timestamp"],
        )
        for labels, samples in sent
        for sample in samples
    ]
    for version, read in ((VERSION_1, read_version_1), (VERSION_2, read_version_2)):
        cache, body = SeriesCache(), request_of(series, version=version)
        for _ in range(2):  # with remembered labels, too
            samples = read(body, cache)
            assert [
                (item.labels, value, time_ns // 1_000_000)
                for item, value, time_ns in zip(
                    samples.series, samples.values, samples.times_ns, strict=True
                )
            ] == expected
        assert len(batch_of(samples).batch) == len(expected)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(body: bytes) -> None:
    for read in (read_version_1, read_version_2):
        with suppress(WireError):
            read(body, SeriesCache())


@pytest.mark.parametrize("read", [read_version_1, read_version_2])
@pytest.mark.parametrize("key", [b"\x0a\x00", b"\x2a\x00"])
def test_a_request_of_empty_series_ends_early(read: Reader, key: bytes) -> None:
    body = key * 1_000_000
    of_version = {(read_version_1, b"\x0a\x00"), (read_version_2, b"\x2a\x00")}
    is_series = (read, key) in of_version
    reason = "200,000 samples" if is_series else "100,000 fields without samples"
    with pytest.raises(WireError, match=reason):
        read(body, SeriesCache())


def test_remembered_labels_are_bounded() -> None:
    cache = SeriesCache(max_bytes=10_000)
    for number in range(100):
        body = request_of([series_of(NAME | {"number": str(number)}, 1.0, 1)])
        read_version_1(body, cache)
        assert 0 < len(cache.by_labels) <= 10


@given(st.data())
def test_series_are_found_again_in_any_order(data: st.DataObject) -> None:
    labels = [NAME | {"number": str(number) * (1 + number % 3)} for number in range(60)]
    cache = SeriesCache()
    for post_number in range(4):
        order = data.draw(st.sampled_from(["same", "from the middle", "without some", "reversed"]))
        sent = {
            "same": labels,
            "from the middle": [*labels[30:], *labels[:30]],
            "without some": [item for item in labels if len(item["number"]) != 2],
            "reversed": labels[::-1],
        }[order]
        times = data.draw(st.lists(st.sampled_from([0, 1, -1, 1_800_000_000_000]), min_size=1))
        series = [
            series_of(item, post_number + row / 7, times[row % len(times)])
            for row, item in enumerate(sent)
        ]
        samples = read_version_1(request_of(series), cache)
        assert [item.labels["number"] for item in samples.series] == [
            item["number"] for item in sent
        ]
        assert samples.values.tolist() == [item["samples"][0]["value"] for item in series]
        assert (samples.times_ns // 1_000_000).tolist() == [
            item["samples"][0]["timestamp"] for item in series
        ]


def test_senders_with_the_same_labels_have_series_of_their_own(
    api: AgentAPI, store: Store, clock: FrozenClock, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        make_appliance(session, cast.globex, "stranger")
    at = now_ms(clock)
    for time_ms in (at - 2000, at - 1000, at):
        for secret in (SECRET, OTHER_SECRET):
            body = packed(request_of([series_of(NAME, 0.25, time_ms)]))
            sent = headers() | {"Authorization": f"Bearer {secret}"}
            assert api.request("POST", PATH, data=body, headers=sent).status_code == 204
    points = stored(store, "node_load1", clock)
    owners = {(point.tags["tenant"], point.time_ns) for point in points}
    assert len(owners) == len(points) == 6
    assert {tenant for tenant, _ in owners} == {cast.acme.id, cast.globex.id}
