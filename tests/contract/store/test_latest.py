from dataclasses import replace

from tests.contract.store.samples import ACME, ACME_2, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.store import Latest, LatestQuery, Store, write


def query(
    *fields: str, since_seconds: int = 0, group_by: tuple[str, ...] = ("gpu",)
) -> LatestQuery:
    return LatestQuery(
        measurement="gpu",
        fields=fields,
        since_ns=START_NS + since_seconds * SECOND_NS,
        tenants=("acme",),
        group_by=group_by,
    )


def test_each_field_has_its_own_newest_value(store: Store) -> None:
    points = [
        gpu(2, power_watts=200.0),
        gpu(1, power_watts=100.0, fan_percent=40.0),
        gpu(3, unrelated=1.0),
    ]
    write(store, points, identity=ACME)

    assert store.latest(query("power_watts", "fan_percent")) == [
        Latest({"gpu": "0"}, START_NS + 2 * SECOND_NS, {"fan_percent": 40.0, "power_watts": 200.0})
    ]


def test_groups_come_in_order(store: Store) -> None:
    write(store, [gpu(0, gpu=name, power_watts=1.0) for name in ("2", "10", "1")], identity=ACME)

    assert [row.tags["gpu"] for row in store.latest(query("power_watts"))] == ["1", "10", "2"]


def test_the_default_groups_are_the_appliances(store: Store) -> None:
    for identity in (ACME_2, ACME, GLOBEX):
        write(store, [gpu(0, power_watts=1.0)], identity=identity)

    everything = LatestQuery(measurement="gpu", fields=("power_watts",), since_ns=0, tenants=None)

    assert [row.tags for row in store.latest(everything)] == [ACME, ACME_2, GLOBEX]


def test_no_group_gives_the_newest_of_all(store: Store) -> None:
    write(
        store, [gpu(1, gpu="0", power_watts=1.0), gpu(2, gpu="1", power_watts=2.0)], identity=ACME
    )

    (row,) = store.latest(query("power_watts", group_by=()))

    assert (row.tags, row.values) == ({}, {"power_watts": 2.0})


def test_what_is_older_than_the_limit_is_left_out(store: Store) -> None:
    write(store, [gpu(1, fan_percent=1.0), gpu(5, power_watts=5.0)], identity=ACME)

    (row,) = store.latest(query("fan_percent", "power_watts", since_seconds=5))

    assert row.values == {"power_watts": 5.0}


def test_another_tenants_samples_are_not_seen(store: Store) -> None:
    write(store, [gpu(1, power_watts=1.0)], identity=GLOBEX)

    assert store.latest(query("power_watts")) == []
    assert store.latest(query("power_watts", group_by=())) == []


def test_a_delivery_that_was_retried_gives_one_row(store: Store) -> None:
    for _ in range(2):
        write(store, [gpu(1, power_watts=1.0)], identity=ACME)

    assert len(store.latest(query("power_watts"))) == 1


def test_unknown_names_give_an_empty_answer(store: Store) -> None:
    assert store.latest(query("power_watts")) == []
    write(store, [gpu(1, power_watts=1.0)], identity=ACME)
    assert store.latest(query("unknown")) == []


def until(seconds: int) -> LatestQuery:
    return replace(query("power_watts"), until_ns=START_NS + seconds * SECOND_NS)


def test_a_sample_of_the_future_does_not_hide_the_present_one(store: Store) -> None:
    write(store, [gpu(1, power_watts=1.0), gpu(3600, power_watts=9.0)], identity=ACME)

    (row,) = store.latest(until(60))

    assert (row.time_ns, row.values) == (START_NS + SECOND_NS, {"power_watts": 1.0})
    assert [row.values for row in store.latest(query("power_watts"))] == [{"power_watts": 9.0}]


def test_the_bound_itself_is_left_out(store: Store) -> None:
    write(store, [gpu(5, power_watts=5.0)], identity=ACME)

    assert store.latest(until(5)) == []
    assert len(store.latest(until(6))) == 1
