"""The store on a real InfluxDB 1.6: restarts, outages, refusals and what they mean for senders."""

import dataclasses
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import product
from pathlib import Path

import pytest
import requests

from core.errors import OverloadedError
from tests.fixtures.databases import influxdb_process, victoria_metrics
from tests.servers import free_port
from timeseries.influxdb.address import parse_address
from timeseries.influxdb.client import InfluxDBConnection
from timeseries.influxdb.store import InfluxDBStore
from timeseries.points import Batch, FieldValue, Point
from timeseries.store import (
    Aggregate,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    ScanQuery,
    StoreUnavailableError,
    write,
)

ACME = {"tenant": "acme", "appliance": "a1"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
PASSWORD = "a secret"


class Server:
    """An InfluxDB's port and folder, which outlive its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def ask(self, statement: str, **credentials: str) -> requests.Response:
        """Run InfluxQL as an administrator would."""
        return requests.post(
            f"http://127.0.0.1:{self.port}/query",
            params={"db": "vedette", **credentials},
            data={"q": statement},
            timeout=60,
        )

    def url(self, *, user: str = "", database: str = "vedette") -> str:
        """Return the URL of a database here."""
        return f"influxdb://{user}127.0.0.1:{self.port}/{database}"


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server that does not run yet."""
    return Server(tmp_path)


@pytest.fixture
def open_store() -> Iterator[Callable[[str], InfluxDBStore]]:
    """Opens stores, and closes them at the end."""
    opened: list[InfluxDBStore] = []

    def open_one(url: str) -> InfluxDBStore:
        opened.append(InfluxDBStore.from_url(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


Opener = Callable[[str], InfluxDBStore]


def gpu(second: float, **fields: FieldValue) -> Point:
    return Point("gpu", {"gpu": "0"}, fields, START_NS + int(second * SECOND_NS))


def count(store: InfluxDBStore) -> float:
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=0,
        end_ns=2**62,
        aggregate=Aggregate.COUNT,
        tenants=None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


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


def prepare_users(server: Server) -> None:
    first = server.ask(f"CREATE USER root WITH PASSWORD '{PASSWORD}' WITH ALL PRIVILEGES")
    first.raise_for_status()
    for statement in (
        "CREATE DATABASE vedette",
        f"CREATE USER stranger WITH PASSWORD '{PASSWORD}'",
    ):
        server.ask(statement, u="root", p=PASSWORD).raise_for_status()


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


def test_each_tenant_has_a_database_with_the_retention_of_the_named_one(
    server: Server, open_store: Opener
) -> None:
    future_ns = 7_258_118_400 * SECOND_NS
    with influxdb_process(server.folder, port=server.port):
        server.ask(
            'CREATE DATABASE vedette WITH DURATION 336h SHARD DURATION 12h NAME "fortnight"'
        ).raise_for_status()
        server.ask('CREATE DATABASE "vedette.tenant-a.tenant-x"').raise_for_status()
        store = open_store(server.url())
        for tenant in ("acme", "globex/../x", "ü" * 60):
            point = dataclasses.replace(gpu(0, power_watts=1.0), time_ns=future_ns)
            assert write(store, [point], identity={"tenant": tenant, "appliance": "a"}) == []

        names = databases(server)
        long = next(name for name in names if "~" in name)
        assert set(names) == {
            "vedette",
            "vedette.tenant-acme",
            "vedette.tenant-globex%2F%2E%2E%2Fx",
            "vedette.tenant-a.tenant-x",
            long,
        }
        shown = server.ask('SHOW RETENTION POLICIES ON "vedette.tenant-acme"').json()
        (policy,) = shown["results"][0]["series"][0]["values"]
        assert policy == ["fortnight", "336h0m0s", "12h0m0s", 1, True]
        everything = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**63, tenants=None)
        extent = store.extent(everything)
        assert extent is not None
        assert extent.points == 3

        store.delete_tenant("acme")
        store.delete_before(future_ns + 1)

        assert set(databases(server)) == set(names) - {"vedette.tenant-acme"}
        assert store.extent(everything) is None
        # Several processes write: one of them does not know that another dropped the database.
        server.ask(f'DROP DATABASE "{long}"').raise_for_status()
        assert write(store, [point], identity={"tenant": tenant, "appliance": "a"}) == []


def test_samples_from_before_tenants_had_databases_stay_one_with_the_new_ones(
    server: Server, open_store: Opener
) -> None:
    with influxdb_process(server.folder, port=server.port):
        server.ask("CREATE DATABASE vedette").raise_for_status()
        old = open_store(f"{server.url()}?databases=shared")
        write(old, [gpu(at, power_watts=10.0) for at in range(3)], identity=ACME)
        write(
            old, [gpu(0, power_watts=50), Point("disk", {}, {"x": 1.0}, START_NS)], identity=GLOBEX
        )
        store = open_store(server.url())
        write(store, [gpu(at, power_watts=20.0) for at in range(2, 9)], identity=ACME)
        write(store, [gpu(5, power_watts="off")], identity=GLOBEX)

        query = RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=START_NS,
            end_ns=START_NS + 9 * SECOND_NS,
            aggregate=Aggregate.P95,
            tenants=("acme",),
        )
        # The samples are 3 x 10 and 7 x 20; the sample of second 2 is in both databases.
        (series,) = store.query_range(query)
        assert series.values == [20.0]
        (series,) = store.query_range(dataclasses.replace(query, aggregate=Aggregate.AVG))
        assert series.values == [17.0]
        (series,) = store.query_range(
            dataclasses.replace(query, aggregate=Aggregate.MAX, tenants=None)
        )
        assert series.values == [50.0]
        scan = ScanQuery(
            measurement="gpu", start_ns=0, end_ns=START_NS + 10 * SECOND_NS, tenants=None
        )
        times = [point.time_ns for batch in store.scan(scan) for point in batch.points()]
        assert times == sorted(times)
        assert len(times) == 12
        assert store.measurements(tenants=("acme",)) == ["gpu"]
        assert store.measurements(tenants=None) == ["disk", "gpu"]
        assert store.tag_values("gpu", "tenant", tenants=None) == ["acme", "globex"]

        store.delete_tenant("globex")

        assert store.measurements(tenants=None) == ["gpu"]
        assert store.tag_values("gpu", "tenant", tenants=None) == ["acme"]


def test_a_user_who_may_not_create_databases_goes_on_in_the_shared_one(
    server: Server, open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    with influxdb_process(server.folder, port=server.port, with_auth=True):
        prepare_users(server)
        server.ask("GRANT ALL ON vedette TO stranger", u="root", p=PASSWORD).raise_for_status()
        store = open_store(server.url(user="stranger:a%20secret@"))

        for second in range(2):
            assert write(store, [gpu(second, power_watts=1.0)], identity=ACME) == []

        assert count(store) == 2
        assert databases(server, u="root", p=PASSWORD) == ["vedette"]
        store.delete_tenant("acme")
        assert count(store) == 0
    (warning,) = [record.message for record in caplog.records if "can't create" in record.message]
    assert "GRANT ALL PRIVILEGES" in warning
    assert "databases=shared" in warning


def databases(server: Server, **credentials: str) -> list[str]:
    series = server.ask("SHOW DATABASES", **credentials).json()["results"][0]["series"][0]
    return [row[0] for row in series["values"] if row[0] != "_internal"]


def test_points_older_than_the_retention_policy_are_refused_and_the_others_kept(
    server: Server, open_store: Opener
) -> None:
    with influxdb_process(server.folder, port=server.port):
        # The year 2200 is never older than any retention.
        future_ns = 7_258_118_400 * SECOND_NS
        server.ask("CREATE DATABASE vedette WITH DURATION 1h").raise_for_status()
        store = open_store(server.url())
        old = [gpu(i, power_watts=1.0) for i in range(7)]
        new = [dataclasses.replace(old[0], time_ns=future_ns + i) for i in range(20)]

        rejected = write(store, [*new[:10], *old, *new[10:]], identity=ACME)

        assert [rejection.position for rejection in rejected] == list(range(10, 17))
        assert "beyond retention policy" in rejected[0].reason


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
