"""Reading back what was written: slices of a span, and blocks with gaps."""

from dataclasses import replace

import pytest

from timeseries.duckdb.query.scan import SLICE_POINTS, slices
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import DAY_NS, HOUR_NS, ScanQuery, write

ACME = {"tenant": "acme", "appliance": "a1"}
FOREVER = ScanQuery(measurement="gpu", start_ns=-(2**63), end_ns=2**63, tenants=None)


def scanned(store: DuckDBStore, query: ScanQuery = FOREVER) -> list[Point]:
    return [point for batch in store.scan(query) for point in batch.points()]


def stamped(point: Point) -> Point:
    return Point(point.measurement, {**ACME, **point.tags}, point.fields, point.time_ns)


def test_points_of_any_shape_come_back_as_they_were(store: DuckDBStore) -> None:
    points = [
        Point("gpu", {}, {"a": 1.5}, 1),
        Point("gpu", {"gpu": "0"}, {"a": 2.5, "b": 7, "c": True, "d": "x"}, 2),
        Point("gpu", {"gpu": "1", "model": "H100"}, {"b": -(2**63)}, 3),
        Point("gpu", {"gpu": "0"}, {"c": False}, 4),
    ]
    write(store, points, identity=ACME)

    scanned_points = scanned(store)

    assert scanned_points == [stamped(point) for point in points]
    assert [type(value) for value in scanned_points[1].fields.values()] == [float, int, bool, str]


@pytest.mark.parametrize(
    "times",
    [
        [-(2**63), -HOUR_NS - 1, -HOUR_NS, -1, 0, 1, HOUR_NS - 1, HOUR_NS, 2**63 - 1],
        [1_700_000_000_000_000_000 // HOUR_NS * HOUR_NS - 1],
    ],
)
def test_no_instant_falls_between_two_slices(store: DuckDBStore, times: list[int]) -> None:
    write(store, [Point("gpu", {}, {"a": 1.0}, time) for time in times], identity=ACME)

    assert [point.time_ns for point in scanned(store)] == times


def test_a_long_span_comes_in_several_batches_oldest_first(store: DuckDBStore) -> None:
    points = [Point("gpu", {}, {"a": 1.0}, HOUR_NS * 6 - index * 10**9) for index in range(20_000)]
    write(store, points, identity=ACME)
    write(store, points, identity={"tenant": "acme", "appliance": "a2"})

    batches = list(store.scan(FOREVER))

    times = [point.time_ns for batch in batches for point in batch.points()]
    assert times == sorted(times)
    assert len(times) == 40_000
    assert max(map(len, batches)) <= SLICE_POINTS


def test_an_hour_with_too_many_points_is_cut_into_equal_parts() -> None:
    hours = [(10, 3 * SLICE_POINTS)]

    spans = list(slices(hours, FOREVER))

    assert [end - start for start, end in spans] == [HOUR_NS // 4] * 4
    assert (spans[0][0], spans[-1][1]) == (10 * HOUR_NS, 11 * HOUR_NS)


def test_a_scan_keeps_to_its_tenants_filters_and_span(store: DuckDBStore) -> None:
    write(
        store, [Point("gpu", {"gpu": str(i % 2)}, {"a": 1.0}, i) for i in range(10)], identity=ACME
    )
    write(
        store,
        [Point("gpu", {"gpu": "0"}, {"a": 1.0}, 4)],
        identity={"tenant": "globex", "appliance": "g1"},
    )
    query = ScanQuery(
        measurement="gpu", start_ns=2, end_ns=8, tenants=("acme",), filters={"gpu": ("0",)}
    )

    assert [point.time_ns for point in scanned(store, query)] == [2, 4, 6]


@pytest.mark.parametrize("measurement", ["gpu", "unheard of"])
def test_nothing_to_scan_is_no_error(store: DuckDBStore, measurement: str) -> None:
    write(store, [Point("gpu", {}, {"a": 1.0}, 1)], identity=ACME)
    query = ScanQuery(measurement=measurement, start_ns=0, end_ns=10, tenants=("nobody",))

    assert scanned(store, query) == []


def test_a_sealed_hour_that_is_mostly_empty_is_scanned(store: DuckDBStore) -> None:
    """Its slices are by time, and most of them have no samples."""
    points = [
        Point("gpu", {"gpu": str(at % 35)}, {"a": 1.0}, at // 35 * 10**9) for at in range(21_000)
    ]
    write(store, points, identity=ACME)
    store.maintain(now_ns=2 * DAY_NS)

    assert len(scanned(store)) == 21_000


def test_sealed_samples_of_tenants_that_disagree_on_a_type_are_scanned(store: DuckDBStore) -> None:
    for tenant, status in (("acme", "ok"), ("globex", 1)):
        identity = {"tenant": tenant, "appliance": "a1"}
        write(store, [Point("weather", {}, {"status": status}, 1)], identity=identity)
    store.maintain(now_ns=2 * DAY_NS)
    both = replace(FOREVER, measurement="weather")

    for tenants, values in ((("acme",), {"ok"}), (("globex",), {1}), (None, {"ok", 1})):
        points = scanned(store, replace(both, tenants=tenants))
        assert {point.fields["status"] for point in points} == values


def test_a_negative_zero_keeps_its_sign_in_a_file(store: DuckDBStore) -> None:
    values = [-0.0, 0.0, 250.0]
    points = [Point("gpu", {}, {"a": value}, at) for at, value in enumerate(values)]
    write(store, points, identity=ACME)
    store.maintain(now_ns=2 * DAY_NS)

    assert [repr(point.fields["a"]) for point in scanned(store)] == [
        repr(value) for value in values
    ]
