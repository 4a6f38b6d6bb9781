"""Writes of a tenant affect neither the acceptance nor the errors of another's."""

import pytest

from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu, gpu_with
from timeseries.identity import stamp
from timeseries.points import Batch, Point
from timeseries.store import Aggregate, LatestQuery, RangeQuery, ScanQuery, Store, write


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.nightly)])
def test_names_and_types_of_one_tenant_reject_no_points_of_another(
    store: Store, capabilities: Capabilities, count: int
) -> None:
    measurements = [Point(f"made_up_{number}", {}, {"x": 1.0}, START_NS) for number in range(count)]
    columns = [
        gpu_with(
            {f"column_{part}_{number}": 1.0 for number in range(count // 10)}, tags={"gpu": "0"}
        )
        for part in range(10)
    ]
    other_types = [gpu(0, power_watts="hot"), gpu(0, temperature_celsius=21), gpu(0, is_on=1.5)]
    for points in (measurements, columns, other_types):
        write(store, points, identity=GLOBEX)

    reading = {"power_watts": 55.5, "temperature_celsius": 21.5, "is_on": True, "xid": 3}
    points = [
        gpu_with({**reading, "sm_hertz": 1.0}, seconds=at, tags={"gpu": "0"}) for at in (0, 1)
    ]
    rejected = [
        write(store, points, identity=ACME),
        write(store, [Point("amdgpu", {}, {"temperature_celsius": 60}, START_NS)], identity=ACME),
    ]

    assert rejected == [[], []]
    assert store.measurements(tenants=("acme",)) == ["amdgpu", "gpu"]
    types = {"is_on": "boolean", "power_watts": "float", "sm_hertz": "float"}
    types |= {"temperature_celsius": "float", "xid": "integer"}
    expected = types if capabilities.keeps_types else dict.fromkeys(types, "float")
    assert store.fields("gpu", tenants=("acme",)) == expected
    (row,) = store.latest(
        LatestQuery(measurement="gpu", fields=tuple(reading), since_ns=0, tenants=("acme",))
    )
    assert row.values == reading


def test_a_field_that_is_text_for_another_tenant_has_its_numbers_for_all(
    store: Store, capabilities: Capabilities
) -> None:
    write(store, [gpu(0, mood="hot"), gpu(1, mood="hotter")], identity=GLOBEX)
    assert write(store, [gpu(0, mood=1.0), gpu(2, mood=3)], identity=ACME) == []

    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("mood",),
            start_ns=START_NS,
            end_ns=START_NS + 10 * SECOND_NS,
            aggregate=Aggregate.AVG,
            tenants=None,
        )
    )
    scan = ScanQuery(
        measurement="gpu", start_ns=START_NS, end_ns=START_NS + 10 * SECOND_NS, tenants=None
    )
    points = [point for batch in store.scan(scan) for point in batch.points()]

    assert series.values == [2.0]
    assert [point.time_ns for point in points] == sorted(point.time_ns for point in points)
    values = {(point.tags["tenant"], point.fields["mood"]) for point in points}
    texts = {("globex", "hot"), ("globex", "hotter")} if capabilities.stores_text else set()
    assert values == {("acme", 1.0), ("acme", 3.0), *texts}
    extent = store.extent(scan)
    assert extent is not None
    assert extent.points == len(points)


def test_a_declared_field_takes_numbers_only(store: Store, capabilities: Capabilities) -> None:
    rejected = write(store, [gpu(0, power_watts="hot"), gpu(0, power_watts=3)], identity=GLOBEX)

    if capabilities.declares_types:
        (only,) = rejected
        assert "gpu.power_watts is declared as a number" in only.reason
        assert store.fields("gpu", tenants=("globex",)) == {"power_watts": "float"}
    assert write(store, [gpu(0, power_watts=1.5)], identity=ACME) == []


def test_names_of_a_deleted_tenant_are_free_for_another_type(store: Store) -> None:
    write(store, [gpu(0, power_watts="hot")], identity=GLOBEX)
    write(store, [gpu(0, power_watts=1.0)], identity=ACME)

    store.delete_tenant("globex")

    assert store.fields("gpu", tenants=None) == {"power_watts": "float"}
    assert store.tag_values("gpu", "tenant", tenants=None) == ["acme"]


def test_a_submission_of_many_senders_is_read_by_each_tenant_alone(store: Store) -> None:
    if not getattr(store, "takes_many_senders", False):
        return
    points = [gpu(at, power_watts=float(at)) for at in range(4)]
    identities = [tuple(identity.values()) for identity in (ACME, GLOBEX)]
    stamped = stamp(Batch.of(points), identities, [0, 1, 0, 1])

    assert store.submit(stamped, identity={}).result(60) == []

    for identity, expected in ((ACME, [0.0, 2.0]), (GLOBEX, [1.0, 3.0])):
        query = RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=START_NS,
            end_ns=START_NS + 10 * SECOND_NS,
            step_ns=SECOND_NS,
            tenants=(identity["tenant"],),
            group_by=("appliance",),
        )
        (series,) = store.query_range(query)
        assert series.tags["appliance"] == identity["appliance"]
        assert series.values == expected
