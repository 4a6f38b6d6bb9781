"""The store on a real VictoriaMetrics: what a restart, an outage and its own limits do."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.clock import to_ns, utc_now
from core.errors import ConfigurationError, InvalidInputError
from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu
from tests.fixtures.databases import victoria_metrics, victoria_metrics_process
from tests.fixtures.polling import eventually
from tests.servers import free_port
from timeseries.open_store import open_store
from timeseries.points import Batch, Point
from timeseries.store import (
    Aggregate,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    ScanQuery,
    Store,
    StoreUnavailableError,
    write,
)
from timeseries.victoriametrics import range_query, reader
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.store import VictoriaMetricsStore

HOUR = RangeQuery(
    measurement="gpu",
    fields=("x",),
    start_ns=START_NS,
    end_ns=START_NS + 3600 * SECOND_NS,
    tenants=("acme",),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url:
        yield url


@pytest.fixture
def store(server: str, request: pytest.FixtureRequest) -> Iterator[VictoriaMetricsStore]:
    opened = VictoriaMetricsStore(
        VictoriaMetricsClient(server), database=request.node.name.replace("/", "")
    )
    yield opened
    opened.close()


def flush(url: str) -> None:
    VictoriaMetricsClient(url).flush()


def newest(store: Store) -> list[float]:
    query = LatestQuery(measurement="gpu", fields=("x",), since_ns=0, tenants=("acme",))
    return [float(row.values["x"]) for row in store.latest(query)]


def opened(url: str, database: str = "", *, recent_folder: Path | None = None) -> Store:
    return open_store(
        url.replace("http://", "victoriametrics://")
        + (f"?database={database}" if database else ""),
        recent_folder=recent_folder,
    )


def test_what_was_written_is_found_by_itself_within_seconds(store: VictoriaMetricsStore) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)

    assert eventually(lambda: newest(store), what="the sample to be searchable") == [1.0]


def test_samples_of_the_present_are_seen_as_they_are(
    store: VictoriaMetricsStore, server: str
) -> None:
    now_ns = to_ns(utc_now()) // 10**9 * 10**9
    times_ns = [now_ns - 2 * SECOND_NS, now_ns, now_ns + 5 * SECOND_NS]
    write(
        store,
        [Point("gpu", {}, {"x": float(at)}, time_ns) for at, time_ns in enumerate(times_ns)],
        identity=ACME,
    )
    flush(server)

    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=now_ns - 10 * SECOND_NS,
            end_ns=now_ns + 10 * SECOND_NS,
            step_ns=SECOND_NS,
            tenants=None,
        )
    )

    assert (series.times_ns, series.values) == (times_ns, [0.0, 1.0, 2.0])


def test_a_restart_of_the_server_loses_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    port = free_port()
    with victoria_metrics(tmp_path, port=port) as url:
        store = opened(url)
        write(store, [gpu(0, x=1.0)], identity=ACME)
    with victoria_metrics(tmp_path, port=port):
        assert newest(store) == [1.0]
        write(store, [gpu(1, x=2.0)], identity=ACME)
        flush(url)
        assert newest(store) == [2.0]
        store.close()


def test_an_outage_is_reported_to_each_sender_until_the_server_is_back(tmp_path: Path) -> None:
    port = free_port()
    store = opened(f"http://127.0.0.1:{port}")
    futures = [store.submit(Batch.of([gpu(at, x=1.0)]), identity=ACME) for at in range(3)]

    for future in futures:
        with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{port} does not answer"):
            future.result(timeout=60)
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        store.query_range(HOUR)

    with victoria_metrics(tmp_path, port=port) as url:
        write(store, [gpu(0, x=1.0)], identity=ACME)
        flush(url)
        assert newest(store) == [1.0]
        store.close()


def test_stores_that_share_a_server_do_not_see_each_other(server: str) -> None:
    first, second = opened(server, "one"), opened(server, "other")
    write(first, [gpu(0, x=1.0)], identity=ACME)
    write(second, [gpu(0, x=2.0)], identity=ACME)
    flush(server)

    second.delete_tenant("acme")

    assert (newest(first), newest(second)) == ([1.0], [])
    assert (first.measurements(tenants=None), second.measurements(tenants=None)) == (["gpu"], [])
    first.close()
    second.close()


def test_a_database_with_a_slash_in_its_name_is_refused(server: str) -> None:
    with pytest.raises(ConfigurationError, match="'a/b' is invalid"):
        opened(server, "a/b")


def test_samples_that_a_server_would_drop_in_silence_are_refused(server: str) -> None:
    now_at = datetime(2026, 1, 1, tzinfo=UTC)
    store = VictoriaMetricsStore(
        VictoriaMetricsClient(server), database="clock", clock=lambda: now_at
    )
    ahead = [Point("gpu", {}, {"x": 1.0}, to_ns(now_at + timedelta(days=at))) for at in (1, 3)]

    assert [rejection.position for rejection in write(store, ahead, identity=ACME)] == [1]
    store.close()


def test_an_omitted_text_is_logged_once(
    store: VictoriaMetricsStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for at in range(3):
            assert write(store, [gpu(at, x=1.0, model="H100")], identity=ACME) == []

    told = [record for record in caplog.records if "'model' of 'gpu' is text" in record.message]
    assert len(told) == 1


def test_a_filter_of_thousands_of_values_is_answered(
    store: VictoriaMetricsStore, server: str
) -> None:
    write(store, [gpu(0, gpu="g7", x=1.0), gpu(0, gpu="other", x=2.0)], identity=ACME)
    flush(server)
    names = tuple(f"g{at}" for at in range(5_000))

    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=START_NS,
            end_ns=START_NS + SECOND_NS,
            tenants=("acme",),
            filters={"gpu": names},
        )
    )

    assert series.values == [1.0]


def test_more_windows_than_one_answer_may_have_are_answered(
    store: VictoriaMetricsStore, server: str
) -> None:
    seconds = [0, 20_000, 50_000]
    write(store, [gpu(at, x=float(at)) for at in seconds], identity=ACME)
    flush(server)

    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=0,
            end_ns=2**62,
            step_ns=SECOND_NS,
            tenants=("acme",),
        )
    )

    assert series.times_ns == [START_NS + at * SECOND_NS for at in seconds]
    assert series.values == [0.0, 20_000.0, 50_000.0]


def test_a_percentile_of_more_samples_than_are_fetched_is_near_the_exact_one(
    store: VictoriaMetricsStore, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [gpu(at, gpu=str(at % 2), x=100.0 + at) for at in range(101)]
    write(store, points, identity=ACME)
    flush(server)
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=START_NS,
        end_ns=START_NS + 3600 * SECOND_NS,
        aggregate=Aggregate.P50,
        tenants=("acme",),
    )

    assert store.query_range(query)[0].values == [150.0]
    monkeypatch.setattr(range_query, "MAX_SAMPLES", 10)
    # A bucket's edges are a factor of 10^(1/18) = 1.136 apart.
    assert store.query_range(query)[0].values == [pytest.approx(150.0, rel=0.136)]


def test_a_percentile_that_only_a_histogram_could_give_wrongly_is_refused(
    store: VictoriaMetricsStore, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, [gpu(at, gpu=str(at % 2), x=-1.0) for at in range(20)], identity=ACME)
    flush(server)
    monkeypatch.setattr(range_query, "MAX_SAMPLES", 10)

    with pytest.raises(InvalidInputError, match="some below 0"):
        store.query_range(
            RangeQuery(
                measurement="gpu",
                fields=("x",),
                start_ns=START_NS,
                end_ns=START_NS + 3600 * SECOND_NS,
                aggregate=Aggregate.P95,
                tenants=("acme",),
            )
        )


def test_a_long_scan_comes_in_batches_in_the_order_of_time(
    store: VictoriaMetricsStore, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_BATCH_SAMPLES", 100)
    write(store, [gpu(at, gpu=str(at % 3), x=float(at)) for at in range(1_000)], identity=ACME)
    flush(server)

    batches = list(
        store.scan(ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=("acme",)))
    )

    assert max(map(len, batches)) <= 100
    points = [point for batch in batches for point in batch.points()]
    assert [point.fields["x"] for point in points] == [float(at) for at in range(1_000)]


def test_a_tag_with_a_slash_or_a_name_of_the_servers_can_be_listed(
    store: VictoriaMetricsStore, server: str
) -> None:
    tags = {"mount//point": "/dev//shm", "a/b": "c", "db": "mine", "measurement": "theirs"}
    write(store, [gpu(0, tags=tags, x=1.0)], identity=ACME)
    flush(server)

    assert store.tags("gpu", tenants=None) == ["tenant", "appliance", *sorted([*tags, "gpu"])]
    values = {tag: store.tag_values("gpu", tag, tenants=None) for tag in tags}
    assert values == {tag: [value] for tag, value in tags.items()}


def test_a_hostile_value_in_a_query_reaches_nothing_else(
    store: VictoriaMetricsStore, server: str
) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)
    write(store, [gpu(0, x=2.0)], identity=GLOBEX)
    flush(server)
    hostile = '0"} or {tenant="globex'

    for filters in ({"gpu": (hostile,)}, {"gpu": (".*",)}, {'gpu="0"} or {tenant': ("globex",)}):
        query = LatestQuery(
            measurement="gpu", fields=("x",), since_ns=0, tenants=("acme",), filters=filters
        )
        assert store.latest(query) == []
    assert store.measurements(tenants=('acme"} or {tenant="globex',)) == []
    store.delete_tenant(".*")
    assert newest(store) == [1.0]


def test_a_server_that_names_series_otherwise_is_refused(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path, options=["-influxSkipMeasurement"]) as url:
        store = opened(url)
        with pytest.raises(StoreUnavailableError, match="without -influxSkipMeasurement"):
            write(store, [gpu(0, x=1.0)], identity=ACME)
        store.close()


class CountingClient(VictoriaMetricsClient):
    """Counts the requests that write."""

    writes = 0

    def write(self, lines: bytes) -> None:
        self.writes += 1
        super().write(lines)


def test_small_batches_that_arrive_together_share_requests(server: str) -> None:
    client = CountingClient(server)
    store = VictoriaMetricsStore(client, database="shared")
    futures: list[Future[list[RejectedPoint]]] = [
        store.submit(Batch.of([gpu(at, x=1.0)]), identity=ACME) for at in range(500)
    ]

    assert [future.result(timeout=60) for future in futures] == [[]] * 500
    assert 1 <= client.writes < 250
    store.close()


def test_values_keep_twelve_digits(store: VictoriaMetricsStore, server: str) -> None:
    write(store, [gpu(0, x=88.69376003172345)], identity=ACME)
    flush(server)

    assert newest(store) == [pytest.approx(88.69376003172345, rel=1e-11)]


def test_what_a_killed_server_has_acknowledged_is_written_again(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "recent"
    with victoria_metrics_process(tmp_path, port=port) as (url, process):
        store = opened(url, recent_folder=folder)
        write(store, [gpu(0, x=1.0)], identity=ACME)
        # The server shows the second of its start.
        eventually(lambda: int(time.time()) > started_at(url), what="another second")
        process.kill()
        process.wait()
    with victoria_metrics_process(tmp_path, port=port) as (_, process):
        eventually(lambda: 1.0 in values_after_a_write(store, url), what="the lost sample")
        eventually(lambda: int(time.time()) > started_at(url), what="another second")
        # Now the store's process ends together with the server.
        store.close()
        process.kill()
        process.wait()
    with victoria_metrics(tmp_path, port=port), closing(opened(url, recent_folder=folder)):
        # The other store, as of a portal, writes nothing.
        store = opened(url, recent_folder=folder)
        assert {1.0, 2.0} <= values_after_a_write(store, url)
        store.close()


def test_samples_of_a_deleted_tenant_are_not_written_again(server: str, tmp_path: Path) -> None:
    store = opened(server, "removal", recent_folder=tmp_path)
    for identity in (ACME, GLOBEX):
        write(store, [gpu(0, x=1.0)], identity=identity)
    store.delete_tenant(ACME["tenant"])
    store.close()
    # Another process, which writes everything of the former one again.
    store = opened(server, "removal", recent_folder=tmp_path)
    write(store, [gpu(1, x=2.0)], identity=GLOBEX)
    flush(server)
    assert store.measurements(tenants=(GLOBEX["tenant"],)) == ["gpu"]
    assert store.measurements(tenants=(ACME["tenant"],)) == []
    store.close()


def started_at(url: str) -> int:
    (text,) = VictoriaMetricsClient(url).started_at() or ("0",)
    return int(text)


def values_after_a_write(store: Store, url: str) -> set[float]:
    """Write another sample, and return the values of all."""
    write(store, [gpu(1, x=2.0)], identity=ACME)
    flush(url)
    (series,) = store.query_range(replace(HOUR, step_ns=SECOND_NS))
    return set(series.values)
