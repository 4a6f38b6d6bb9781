"""An extent says what a scan would yield; where points can't be counted, that it is a bound."""

from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.store import Extent, ScanQuery, Store, write


def everything(*, tenants: tuple[str, ...] | None = None) -> ScanQuery:
    return ScanQuery(measurement="gpu", start_ns=-(2**63), end_ns=2**63 - 1, tenants=tenants)


def test_an_extent_of_points_with_one_field_is_exact(store: Store) -> None:
    for name in ("0", "1"):
        write(store, [gpu(at, gpu=name, x=1.0) for at in (7, 3, 90_000)], identity=ACME)

    assert store.extent(everything()) == Extent(
        START_NS + 3 * SECOND_NS, START_NS + 90_000 * SECOND_NS + 1, 6
    )


def test_an_extent_of_points_with_several_fields_says_whether_it_is_exact(store: Store) -> None:
    points = [gpu(at, x=1.0, y=2.0) for at in range(10)]
    points += [gpu(at, gpu="1", z=3.0) for at in range(5)]
    # Points of one series that share no field: no query language but SQL can count them.
    points += [gpu(100 + at, z=4.0) for at in range(3)]
    write(store, points, identity=ACME)

    extent = store.extent(everything())

    assert extent is not None
    assert (extent.start_ns, extent.end_ns) == (START_NS, START_NS + 102 * SECOND_NS + 1)
    assert extent.points == (18 if extent.is_exact else 15)


def test_an_extent_keeps_to_the_span_and_the_tenants(store: Store) -> None:
    write(store, [gpu(at, x=1.0) for at in range(10)], identity=ACME)
    write(store, [gpu(at, x=1.0) for at in range(20, 30)], identity=GLOBEX)
    span = ScanQuery(
        measurement="gpu",
        start_ns=START_NS + 4 * SECOND_NS,
        end_ns=START_NS + 25 * SECOND_NS,
        tenants=("acme",),
    )

    assert store.extent(span) == Extent(START_NS + 4 * SECOND_NS, START_NS + 9 * SECOND_NS + 1, 6)


def test_an_empty_span_has_no_extent(store: Store) -> None:
    assert store.extent(everything()) is None
    write(store, [gpu(0, x=1.0)], identity=ACME)
    assert store.extent(everything(tenants=())) is None
    assert store.extent(everything(tenants=("stranger",))) is None
