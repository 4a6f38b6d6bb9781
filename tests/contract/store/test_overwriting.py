"""The last write of a series and instant counts, field by field, in all reads, at any age."""

from dataclasses import replace
from itertools import product

import pytest

from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, GLOBEX, START_NS, gpu
from timeseries.store import (
    DAY_NS,
    HOUR_NS,
    Aggregate,
    LatestQuery,
    RangeQuery,
    ScanQuery,
    Store,
    write,
)

SPAN = ScanQuery(
    measurement="gpu", start_ns=START_NS - HOUR_NS, end_ns=START_NS + HOUR_NS, tenants=("acme",)
)
BY_WINDOW = RangeQuery(
    measurement="gpu",
    fields=("power_watts",),
    start_ns=START_NS // DAY_NS * DAY_NS,
    end_ns=START_NS // DAY_NS * DAY_NS + DAY_NS,
    tenants=("acme",),
)


def powers(store: Store) -> dict[str, float]:
    """Return the power of acme by each read: all of them have to agree."""
    latest = LatestQuery(measurement="gpu", fields=("power_watts",), since_ns=0, tenants=("acme",))
    (newest,) = store.latest(latest)
    power_by_read = {"latest": newest.values["power_watts"]}
    for step_ns in (None, HOUR_NS, DAY_NS):
        for aggregate in (
            Aggregate.SUM,
            Aggregate.AVG,
            Aggregate.MIN,
            Aggregate.MAX,
            Aggregate.P50,
        ):
            query = replace(BY_WINDOW, aggregate=aggregate, step_ns=step_ns)
            ((value,),) = [series.values for series in store.query_range(query)]
            power_by_read[f"{aggregate} by {step_ns}"] = value
        counting = replace(BY_WINDOW, aggregate=Aggregate.COUNT, step_ns=step_ns)
        assert [series.values for series in store.query_range(counting)] == [[1.0]]
    (point,) = [point for batch in store.scan(SPAN) for point in batch.points()]
    extent = store.extent(SPAN)
    assert extent is not None
    assert extent.points == 1
    return {name: float(value) for name, value in power_by_read.items()} | {
        "scan": float(point.fields["power_watts"])
    }


WATTS = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)]
SEALED: list[tuple[int, ...]] = [(), (0,), (1,), (0, 1)]
# Each of both by day, the others at night.
BY_DAY = {((1.0, 2.0), ()), ((2.0, 1.0), (0,)), ((1.0, 1.0), (1,)), ((2.0, 1.0), (0, 1))}


@pytest.mark.parametrize(
    ("watts", "sealed"),
    [
        pytest.param(*pair, marks=[] if pair in BY_DAY else pytest.mark.nightly)
        for pair in product(WATTS, SEALED)
    ],
)
def test_the_last_write_counts_before_and_after_it_is_sealed(
    store: Store, capabilities: Capabilities, watts: tuple[float, float], sealed: tuple[int, ...]
) -> None:
    for at, value in enumerate(watts):
        assert write(store, [gpu(0, power_watts=value)], identity=ACME) == []
        if at in sealed:
            store.maintain(now_ns=START_NS + 3 * DAY_NS)

    allowed_watts = watts[-1:] if capabilities.keeps_last_write else watts
    # Percentiles of roll-ups are within 1 %.
    assert {
        name: power_watts
        for name, power_watts in powers(store).items()
        if power_watts not in [pytest.approx(allowed, rel=0.01) for allowed in allowed_watts]
    } == {}


def test_fields_that_are_not_written_again_stay(store: Store, capabilities: Capabilities) -> None:
    for point in (gpu(0, a=1.0, b=1.0), gpu(0, b=2.0, power_watts=3.0), gpu(0, a=4.0)):
        assert write(store, [point], identity=ACME) == []

    (point,) = [point for batch in store.scan(SPAN) for point in batch.points()]
    last = {"a": 4.0, "b": 2.0, "power_watts": 3.0}
    assert point.fields.keys() == last.keys()
    assert point.fields == last or not capabilities.keeps_last_write


def test_the_last_line_of_a_batch_counts(store: Store, capabilities: Capabilities) -> None:
    points = [gpu(0, x=1.0), gpu(0, x=2.0, y=1.0), gpu(0, x=1.5)]
    assert write(store, points, identity=ACME) == []

    (point,) = [point for batch in store.scan(SPAN) for point in batch.points()]
    assert point.fields == {"x": 1.5, "y": 1.0} or not capabilities.keeps_last_write


def test_a_batch_that_is_sent_twice_is_stored_once(store: Store) -> None:
    points = [gpu(at, gpu=name, power_watts=1.0) for at in range(60) for name in "01"]
    for identity in (ACME, GLOBEX, ACME):
        assert write(store, points, identity=identity) == []

    scanned = [point for batch in store.scan(SPAN) for point in batch.points()]
    assert len(scanned) == len({(point.time_ns, point.tags["gpu"]) for point in scanned}) == 120
