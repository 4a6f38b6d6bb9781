from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.points import Batch, Point
from timeseries.store import Aggregate, RangeQuery, Store, StoreUnavailableError, write


def count(store: Store, *, measurement: str = "gpu") -> float:
    query = RangeQuery(
        measurement=measurement,
        fields=("x",),
        start_ns=0,
        end_ns=2**62,
        aggregate=Aggregate.COUNT,
        tenants=None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


def test_deleting_a_tenant_takes_all_its_samples_and_no_others(store: Store) -> None:
    write(store, [gpu(0, x=1.0), Point("cpu", {}, {"x": 1.0}, START_NS)], identity=ACME)
    write(store, [gpu(0, x=1.0)], identity=GLOBEX)

    store.delete_tenant("acme")

    assert store.measurements(tenants=("acme",)) == []
    assert store.tag_values("gpu", "tenant", tenants=None) == ["globex"]
    assert count(store) == 1


def test_deleting_a_tenant_takes_what_was_queued_before(store: Store) -> None:
    futures = [store.submit(Batch.of([gpu(i, x=1.0)]), identity=ACME) for i in range(10)]

    store.delete_tenant("acme")

    assert all(future.done() for future in futures)
    assert count(store) == 0


def test_retention_deletes_what_is_older_and_keeps_the_instant_itself(
    store: Store, capabilities: Capabilities
) -> None:
    write(store, [gpu(i, x=1.0) for i in range(10)], identity=ACME)
    write(store, [Point("cpu", {}, {"x": 1.0}, START_NS)], identity=GLOBEX)

    store.delete_before(START_NS + 4 * SECOND_NS)

    assert count(store) == (6 if capabilities.deletes_by_time else 10)
    assert count(store, measurement="cpu") == (0 if capabilities.deletes_by_time else 1)


def test_a_tenant_can_write_again_after_its_deletion(store: Store) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)
    store.delete_tenant("acme")
    write(store, [gpu(1, x=1.0)], identity=ACME)

    assert count(store) == 1


def test_closing_writes_what_is_queued(store: Store) -> None:
    futures = [store.submit(Batch.of([gpu(i, x=1.0)]), identity=ACME) for i in range(10)]

    store.close()

    assert [future.result(timeout=0) for future in futures] == [[]] * 10


def test_a_closed_store_raises_an_error(store: Store) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)
    store.close()
    store.close()

    with pytest.raises(StoreUnavailableError, match="closed"):
        store.submit(Batch.of([gpu(0, x=1.0)]), identity=ACME)
    with pytest.raises(StoreUnavailableError, match="closed"):
        count(store)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.delete_before(0)


def test_a_big_tenant_is_deleted_while_others_write(store: Store) -> None:
    hours, points_per_hour = 30, 1_000
    for hour in range(hours):
        points = [gpu(hour * 3600 + at, x=1.0) for at in range(points_per_hour)]
        assert write(store, points, identity=ACME) == []
    write(store, [gpu(at, x=1.0) for at in range(100)], identity=GLOBEX)
    store.maintain(now_ns=START_NS + (hours + 24) * 3600 * SECOND_NS)

    with ThreadPoolExecutor() as pool:
        deletion = pool.submit(store.delete_tenant, "acme")
        answers = [write(store, [gpu(200 + at, x=1.0)], identity=GLOBEX) for at in range(20)]
        deletion.result()

    assert answers == [[]] * 20
    assert store.tag_values("gpu", "tenant", tenants=None) == ["globex"]
    assert count(store) == 120


def test_deleting_a_tenant_twice_or_one_that_never_existed_changes_nothing(store: Store) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)
    write(store, [gpu(0, x=1.0)], identity=GLOBEX)

    for tenant in ("acme", "acme", "stranger", ""):
        store.delete_tenant(tenant)

    assert count(store) == 1
