"""The databases of tenants in an InfluxDB: retention, rights, and samples of before."""

import dataclasses

import pytest

from tests.fixtures.databases import influxdb_process
from tests.integration.influxdb_process import (
    ACME,
    GLOBEX,
    PASSWORD,
    SECOND_NS,
    START_NS,
    Opener,
    Server,
    count,
    databases,
    gpu,
    open_store,
    prepare_users,
    server,
)
from timeseries.points import Point
from timeseries.store import Aggregate, RangeQuery, ScanQuery, write

__all__ = ["open_store", "server"]


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
