"""The store on a real InfluxDB 1.6: restarts, outages, refusals and what they mean for senders."""

import dataclasses
import secrets
import socket
from concurrent.futures import Future
from itertools import product
from pathlib import Path

import pytest
import requests

from core.errors import OverloadedError
from tests.fixtures.databases import influxdb_process, victoria_metrics
from tests.integration.influxdb_process import (
    ACME,
    GLOBEX,
    PASSWORD,
    SECOND_NS,
    START_NS,
    Opener,
    Server,
    count,
    gpu,
    open_store,
    prepare_users,
    server,
)
from timeseries.influxdb.address import parse_address
from timeseries.influxdb.client import InfluxDBConnection
from timeseries.influxdb.store import InfluxDBStore
from timeseries.points import Batch, Point
from timeseries.store import (
    Aggregate,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    ScanQuery,
    StoreUnavailableError,
    write,
)

__all__ = ["open_store", "server"]


def test_one_store_writes_and_reads_before_and_after_a_restart_of_the_server(
    server: Server, open_store: Opener
) -> None:
    store = open_store(server.url())
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        write(store, [gpu(0, power_watts=1.0)], identity=ACME)
    with influxdb_process(server.folder, port=server.port):
        assert write(store, [gpu(1, power_watts=2.0)], identity=ACME) == []
        assert count(store) == 2


def test_an_outage_is_reported_to_writers_and_readers(server: Server, open_store: Opener) -> None:
    store = open_store(server.url())
    expected = f"InfluxDB at 127.0.0.1:{server.port} does not answer"

    with pytest.raises(StoreUnavailableError, match=expected):
        write(store, [gpu(0, power_watts=1.0)], identity=ACME)
    with pytest.raises(StoreUnavailableError, match=expected):
        store.latest(
            LatestQuery(measurement="gpu", fields=("power_watts",), since_ns=0, tenants=None)
        )


def test_a_write_that_failed_in_an_outage_succeeds_after_it(
    server: Server, open_store: Opener
) -> None:
    store = open_store(server.url())
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        write(store, [gpu(0, power_watts=1.0)], identity=ACME)
    with pytest.raises(StoreUnavailableError):
        write(store, [gpu(1, power_watts=2.0)], identity=ACME)

    with influxdb_process(server.folder, port=server.port):
        assert write(store, [gpu(1, power_watts=2.0)], identity=ACME) == []


def test_a_missing_database_is_named_with_what_to_do(server: Server, open_store: Opener) -> None:
    with influxdb_process(server.folder, port=server.port):
        store = open_store(server.url(database="nowhere"))

        with pytest.raises(StoreUnavailableError, match="has no database 'nowhere'"):
            write(store, [gpu(0, power_watts=1.0)], identity=ACME)
        with pytest.raises(StoreUnavailableError, match="has no database 'nowhere'"):
            store.fields("gpu", tenants=None)


@pytest.mark.parametrize(
    "user", ["", "root:wrong@", "nobody:here@", "stranger:a%20secret@"], ids=str
)
def test_wrong_credentials_are_reported_without_repeating_them(
    server: Server, open_store: Opener, user: str
) -> None:
    with influxdb_process(server.folder, port=server.port, with_auth=True):
        prepare_users(server)
        store = open_store(server.url(user=user))

        with pytest.raises(StoreUnavailableError, match="denied") as told:
            write(store, [gpu(0, power_watts=1.0)], identity=ACME)

    assert "password" in told.value.message
    assert "wrong" not in told.value.message
    assert PASSWORD not in told.value.message


def test_right_credentials_are_taken(server: Server, open_store: Opener) -> None:
    with influxdb_process(server.folder, port=server.port, with_auth=True):
        prepare_users(server)
        store = open_store(server.url(user="root:a%20secret@"))

        assert write(store, [gpu(0, power_watts=1.0)], identity=ACME) == []
        assert count(store) == 1


def test_nothing_acknowledged_is_lost_over_kill_9(server: Server, open_store: Opener) -> None:
    store = open_store(server.url())
    with influxdb_process(server.folder, port=server.port) as process:
        server.ask("CREATE DATABASE vedette").raise_for_status()
        write(store, [gpu(0, power_watts=1.0)], identity=ACME)
        futures = [
            store.submit(
                Batch.of([gpu(n * 100 + i, power_watts=1.0) for i in range(100)]), identity=ACME
            )
            for n in range(1, 300)
        ]
        futures[20].result(timeout=60)
        process.kill()
        acknowledged = sum(map(is_acknowledged, futures))

    assert 20 < acknowledged < len(futures)
    with influxdb_process(server.folder, port=server.port):
        assert count(store) >= 1 + 100 * acknowledged


def is_acknowledged(future: "Future[list[RejectedPoint]]") -> bool:
    return future.exception(timeout=60) is None


def test_a_type_that_another_process_gave_a_field_refuses_by_name(
    server: Server, open_store: Opener
) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        mine, other = open_store(server.url()), open_store(server.url())
        write(mine, [gpu(0, fan_percent=1.0)], identity=ACME)
        server.ask("DROP MEASUREMENT gpu", db="vedette.tenant-acme").raise_for_status()
        write(other, [gpu(0, fan_percent=True)], identity=ACME)

        rejected = write(mine, [gpu(1, fan_percent=2.0), gpu(2, other=1.0)], identity=ACME)

        assert [rejection.position for rejection in rejected] == [0]
        assert "'fan_percent' has type boolean" in rejected[0].reason
        assert mine.fields("gpu", tenants=None) == {"fan_percent": "boolean", "other": "float"}


def test_a_type_that_the_server_keeps_over_a_deletion_refuses_by_name(
    server: Server, open_store: Opener
) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        store, shared = open_store(server.url()), open_store(f"{server.url()}?databases=shared")
        for opened in (store, shared):
            write(opened, [gpu(0, power_watts=1.0)], identity=ACME)
        # In a shared database InfluxDB lists the field no longer, yet goes on demanding its type.
        store.delete_tenant("acme")

        (rejected,) = write(shared, [gpu(0, power_watts="hot")], identity=ACME)

        assert "'power_watts' has type float" in rejected.reason
        assert write(shared, [gpu(0, power_watts=1.0)], identity=ACME) == []
        assert write(store, [gpu(1, power_watts="hot")], identity=GLOBEX) == []


def test_a_body_larger_than_the_server_takes_is_sent_in_parts(
    server: Server, open_store: Opener
) -> None:
    settings = {"INFLUXDB_HTTP_MAX_BODY_SIZE": "20000"}
    with influxdb_process(server.folder, port=server.port, settings=settings):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        store = open_store(server.url())
        points = [gpu(i, power_watts=1.0) for i in range(2_000)]
        points[7] = gpu(7, power_watts=1.0, message=secrets.token_hex(20_000))

        rejected = write(store, points, identity=ACME)

        assert [rejection.position for rejection in rejected] == [7]
        assert count(store) == 1_999


def test_a_full_queue_says_to_come_again(server: Server) -> None:
    with socket.create_server(("127.0.0.1", server.port)):
        # It accepts and never answers, so the writer waits with the first submission.
        store = InfluxDBStore(parse_address(server.url()), max_queued_points=1, query_seconds=0.2)

        with pytest.raises(OverloadedError, match="Send the same points again later"):
            submit_one_by_one(store, count=3)
        store.close()


def submit_one_by_one(store: InfluxDBStore, *, count: int) -> None:
    for second in range(count):
        store.submit(Batch.of([gpu(second, power_watts=1.0)]), identity=ACME)


def test_a_server_that_accepts_and_never_answers_is_an_outage(server: Server) -> None:
    with socket.create_server(("127.0.0.1", server.port)):
        store = InfluxDBStore(parse_address(server.url()), query_seconds=0.2)

        with pytest.raises(StoreUnavailableError, match="ReadTimeoutError"):
            store.measurements(tenants=None)
        store.close()


def test_closing_in_an_outage_gives_up_what_is_queued(server: Server) -> None:
    with socket.create_server(("127.0.0.1", server.port)):
        store = InfluxDBStore(parse_address(server.url()), query_seconds=0.5)
        batch = Batch.of([gpu(second, power_watts=1.0) for second in range(5_000)])
        futures = [store.submit(batch, identity=ACME) for _ in range(20)]

        store.close()

        # Only the first was waited for; the others share its error.
        errors = [future.exception(timeout=0) for future in futures]
    assert all(isinstance(error, StoreUnavailableError) for error in errors)
    assert len(set(map(id, errors))) == 1


def test_a_scan_gives_back_in_order_what_was_written(server: Server, open_store: Opener) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        store = open_store(server.url())
        points = [
            Point(
                "gpu",
                {"gpu": str(i % 8)} | ({"job": "a\nb"} if i % 3 else {}),
                {"power_watts": float(i), "time": i} if i % 2 else {"text": f"{i} ü\n"},
                START_NS + i,
            )
            for i in range(25_000)
        ]
        write(store, points, identity=ACME)
        query = ScanQuery(
            measurement="gpu", start_ns=START_NS, end_ns=START_NS + 25_000, tenants=("acme",)
        )

        scanned = [point for batch in store.scan(query) for point in batch.points()]

    assert scanned == [
        dataclasses.replace(point, tags=dict(sorted({**point.tags, **ACME}.items())))
        for point in points
    ]


def test_names_and_tags_of_any_characters_come_back(server: Server, open_store: Opener) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        store = open_store(server.url())
        names = ["".join(pair) for pair in product("\\,= \"'#%\n\t\r\x00é5", repeat=2)]
        points = [Point("m" + name, {name: name}, {name: name}, START_NS) for name in names]
        points += [Point(name, {}, {"x": 1}, START_NS) for name in names]
        assert write(store, points, identity=ACME) == []

        assert store.measurements(tenants=("acme",)) == sorted(p.measurement for p in points)
        for point in points[: len(names)]:
            query = ScanQuery(
                measurement=point.measurement,
                start_ns=START_NS,
                end_ns=START_NS + 1,
                tenants=("acme",),
                filters={name: (name,) for name in point.tags},
            )
            (scanned,) = (
                scanned_point for batch in store.scan(query) for scanned_point in batch.points()
            )
            assert scanned == dataclasses.replace(point, tags={**ACME, **point.tags})


def test_percentiles_are_interpolated_in_windows_of_different_sizes(
    server: Server, open_store: Opener
) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        store = open_store(server.url())
        # Window n has the values 0 to n-1, n from 1 to 20.
        points = [gpu(60 * n + i, power_watts=float(i)) for n in range(1, 21) for i in range(n)]
        write(store, points, identity=ACME)
        base_ns = START_NS - START_NS % (60 * SECOND_NS)

        (series,) = store.query_range(
            RangeQuery(
                measurement="gpu",
                fields=("power_watts",),
                start_ns=base_ns,
                end_ns=base_ns + 3600 * SECOND_NS,
                step_ns=60 * SECOND_NS,
                aggregate=Aggregate.P95,
                tenants=("acme",),
            )
        )

    # 0.95 of the way from 0 to n-1.
    assert series.values == [pytest.approx(0.95 * (n - 1)) for n in range(1, 21)]


def test_the_v2_write_call_delivers_lines(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as url:
        place = url.removeprefix("http://")
        connection = InfluxDBConnection(parse_address(f"influxdb://{place}/vedette?version=2.7"))
        connection.write(b"gpu,tenant=acme power_watts=250.5 1700000000000000000\n")
        connection.close()
        requests.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
        exported = requests.get(
            f"{url}/api/v1/export", params={"match[]": "gpu_power_watts"}, timeout=60
        )

    assert exported.json()["values"] == [250.5]
