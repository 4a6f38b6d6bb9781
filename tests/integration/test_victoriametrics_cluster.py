"""The store on a cluster's addresses: an account for each tenant, and reads over all of them."""

from collections.abc import Iterator

import pytest

from core.errors import ConfigurationError
from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu
from tests.fixtures.databases import victoria_metrics
from tests.fixtures.victoria_cluster import ClusterFront, cluster_front
from timeseries.open_store import open_store
from timeseries.store import Aggregate, LatestQuery, RangeQuery, ScanQuery, Store, write
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.lines import account_of
from timeseries.victoriametrics.store import VictoriaMetricsStore

HOUR_NS = 3600 * SECOND_NS


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterFront]:
    with (
        victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url,
        cluster_front(url) as opened_front,
    ):
        yield opened_front


@pytest.fixture
def store(front: ClusterFront, request: pytest.FixtureRequest) -> Iterator[Store]:
    front.seen.clear()
    opened = open_store(url_of(front, database=request.node.name))
    yield opened
    opened.close()


def url_of(front: ClusterFront, *, database: str) -> str:
    query = f"select={front.address}&storage={front.address}&database={database}"
    return f"victoriametrics://{front.address}?{query}"


def filled(store: Store, front: ClusterFront) -> Store:
    """Return the store with samples of two tenants, which are searchable."""
    write(store, [gpu(at, power_watts=float(at)) for at in range(10)], identity=ACME)
    write(store, [gpu(at, fan_percent=1.0, power_watts=100.0) for at in range(5)], identity=GLOBEX)
    VictoriaMetricsClient(front.single).flush()
    return store


def power(tenants: tuple[str, ...] | None, aggregate: Aggregate) -> RangeQuery:
    return RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=START_NS,
        end_ns=START_NS + HOUR_NS,
        aggregate=aggregate,
        tenants=tenants,
    )


def test_each_tenant_is_written_to_and_read_from_its_account(
    store: Store, front: ClusterFront, request: pytest.FixtureRequest
) -> None:
    filled(store, front)
    acme, globex = (account_of(request.node.name, tenant) for tenant in ("acme", "globex"))

    (series,) = store.query_range(power(("acme",), Aggregate.MAX))
    fields = store.fields("gpu", tenants=("acme",))

    assert series.values == [9.0]
    assert fields == {"power_watts": "float"}
    assert [call for call in front.seen if call[0] == "insert"] == [
        ("insert", acme),
        ("insert", globex),
    ]
    assert ("select", acme) in front.seen
    assert ("select", globex) not in front.seen


def test_reads_of_several_tenants_are_merged_over_their_accounts(
    store: Store, front: ClusterFront
) -> None:
    filled(store, front)

    for tenants in (None, ("acme", "globex")):
        (average,) = store.query_range(power(tenants, Aggregate.AVG))
        (middle,) = store.query_range(power(tenants, Aggregate.P50))
        assert average.values == [pytest.approx((45 + 500) / 15)]
        assert middle.values == [7.0]
        assert list(store.fields("gpu", tenants=tenants)) == ["fan_percent", "power_watts"]
        assert store.tags("gpu", tenants=tenants) == ["tenant", "appliance", "gpu"]
        assert store.tag_values("gpu", "tenant", tenants=tenants) == ["acme", "globex"]
        latest = LatestQuery(
            measurement="gpu", fields=("power_watts",), since_ns=0, tenants=tenants
        )
        assert [row.values["power_watts"] for row in store.latest(latest)] == [9.0, 100.0]
        scan = ScanQuery(
            measurement="gpu", start_ns=START_NS, end_ns=START_NS + HOUR_NS, tenants=tenants
        )
        points = [point for batch in store.scan(scan) for point in batch.points()]
        assert len(points) == 15
        assert {tag for point in points for tag in point.tags} == {"tenant", "appliance", "gpu"}
        extent = store.extent(scan)
        assert extent is not None
        assert extent.points == 15


def test_a_tenant_is_deleted_in_its_account(
    store: Store, front: ClusterFront, request: pytest.FixtureRequest
) -> None:
    filled(store, front)

    store.delete_tenant("acme")

    assert store.query_range(power(("acme",), Aggregate.MAX)) == []
    assert store.tag_values("gpu", "tenant", tenants=None) == ["globex"]
    assert ("delete", account_of(request.node.name, "acme")) in front.seen


def test_accounts_are_two_numbers_of_32_bits_that_differ_by_tenant_and_database() -> None:
    names = [(database, f"tenant {n}") for database in ("a", "b") for n in range(500)]

    accounts = {account_of(*name) for name in names}

    assert len(accounts) == len(names)
    assert all(0 <= int(part) < 2**32 for account in accounts for part in account.split(":"))


def test_a_tag_named_like_a_label_of_accounts_is_rejected(store: Store) -> None:
    (rejected,) = write(store, [gpu(0, tags={"vm_account_id": "7"}, x=1.0)], identity=ACME)

    assert "'vm_account_id' is reserved" in rejected.reason


def test_the_parameters_of_a_cluster_are_checked_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        VictoriaMetricsStore.from_url("victoriametrics://host?storage=a:1&selekt=b:2")

    assert ["selekt= is unknown" in problem for problem in caught.value.problems] == [True, False]
    assert "add select=host:port" in caught.value.problems[1]
