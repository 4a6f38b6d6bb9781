from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.points import Point
from timeseries.store import ScanQuery, Store, write


def scanned(store: Store, query: ScanQuery) -> list[Point]:
    return [point for batch in store.scan(query) for point in batch.points()]


def span(seconds: int, *, tenants: tuple[str, ...] | None = None) -> ScanQuery:
    end_ns = START_NS + seconds * SECOND_NS
    return ScanQuery(measurement="gpu", start_ns=START_NS, end_ns=end_ns, tenants=tenants)


def test_a_scan_gives_the_points_as_they_were_written_oldest_first(
    store: Store, capabilities: Capabilities
) -> None:
    points = [gpu(2, power_watts=3.5), gpu(0, power_watts=1.5, level=40, is_on=True)]
    write(store, points, identity=ACME)

    first, second = scanned(store, span(10))

    values: dict[str, float] = {"power_watts": 1.5, "level": 40, "is_on": True}
    assert dict(first.tags) == dict(second.tags) == {"gpu": "0", **ACME}
    assert (first.time_ns, dict(first.fields)) == (START_NS, values)
    assert (second.time_ns, dict(second.fields)) == (
        START_NS + 2 * SECOND_NS,
        {"power_watts": 3.5},
    )
    kinds = {type(value) for value in first.fields.values()}
    assert kinds == ({float, int, bool} if capabilities.keeps_types else {float})


def test_a_scan_has_its_start_and_not_its_end(store: Store) -> None:
    write(store, [gpu(at, power_watts=float(at)) for at in range(10)], identity=ACME)

    assert [point.fields["power_watts"] for point in scanned(store, span(3))] == [0.0, 1.0, 2.0]


def test_a_scan_sees_only_the_tenants_and_tags_it_names(store: Store) -> None:
    write(store, [gpu(0, gpu="0", x=1.0), gpu(0, gpu="1", x=2.0)], identity=ACME)
    write(store, [gpu(0, gpu="0", x=3.0)], identity=GLOBEX)

    query = ScanQuery(
        measurement="gpu",
        start_ns=0,
        end_ns=2**62,
        tenants=("acme",),
        filters={"gpu": ("0",)},
    )
    assert [point.fields for point in scanned(store, query)] == [{"x": 1.0}]
    assert scanned(store, span(10, tenants=("stranger",))) == []


def test_what_a_scan_gives_can_be_written_again(store: Store) -> None:
    write(store, [gpu(at, power_watts=float(at)) for at in range(10)], identity=ACME)
    query = span(10, tenants=("acme",))
    before = scanned(store, query)

    for batch in list(store.scan(query)):
        assert store.submit(batch, identity=ACME).result(timeout=60) == []

    after = scanned(store, query)
    assert {str(point) for point in after} == {str(point) for point in before}


def test_a_scan_of_an_unknown_or_empty_selection_gives_nothing(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.0)], identity=ACME)

    unknown = ScanQuery(measurement="unknown", start_ns=0, end_ns=2**62, tenants=None)
    assert scanned(store, unknown) == []
    assert scanned(store, span(0)) == []
    assert scanned(store, span(10, tenants=())) == []
