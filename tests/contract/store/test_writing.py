import math

import pytest

from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, ACME_2, GLOBEX, START_NS, gpu, gpu_with
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch, FieldValue, Point
from timeseries.store import DAY_NS, Latest, LatestQuery, ScanQuery, Store, write
from timeseries.validation import FIELD_TYPES


def newest(store: Store, *fields: str, measurement: str = "gpu") -> list[Latest]:
    return store.latest(
        LatestQuery(measurement=measurement, fields=fields, since_ns=0, tenants=None)
    )


def test_a_written_point_can_be_read_at_once(store: Store) -> None:
    write(store, [gpu(1.5, power_watts=250.5)], identity=ACME)

    assert newest(store, "power_watts") == [
        Latest(ACME, START_NS + 1_500_000_000, {"power_watts": 250.5})
    ]


@pytest.mark.parametrize("suffix", ["", ",lost=f"])
def test_lines_of_a_program_can_be_read_at_once(store: Store, suffix: str) -> None:
    """Numbers alone are parsed by column."""
    lines = [
        f"gpu,gpu={at} power_watts=250.{at},energy=7{at}i{suffix} {START_NS}" for at in range(8)
    ]
    parsed = parse("\n".join(lines).encode(), default_time_ns=0).batch

    assert store.submit(parsed, identity=ACME).result() == []

    written = LatestQuery(
        measurement="gpu",
        fields=("power_watts", "energy"),
        since_ns=0,
        tenants=None,
        group_by=("gpu",),
    )
    assert [row.values for row in store.latest(written)] == [
        {"power_watts": 250 + at / 10, "energy": 70 + at} for at in range(8)
    ]


def test_a_time_is_kept_to_the_nanosecond_or_cut_to_its_millisecond(
    store: Store, capabilities: Capabilities
) -> None:
    write(store, [Point("gpu", {}, {"x": 1.0}, START_NS + 1_999_999)], identity=ACME)

    kept_ns = 1_999_999 if capabilities.nanosecond_time else 1_000_000
    assert [row.time_ns for row in newest(store, "x")] == [START_NS + kept_ns]


@pytest.mark.parametrize("value", [0.1, 2**63 - 1, -(2**63), True])
def test_a_number_comes_back_with_its_type_or_as_a_float(
    store: Store, capabilities: Capabilities, value: FieldValue
) -> None:
    write(store, [gpu(0, reading=value)], identity=ACME)

    (row,) = newest(store, "reading")
    expected = value if capabilities.keeps_types else float(value)
    assert row.values == {"reading": expected}
    assert type(row.values["reading"]) is type(expected)


def test_a_negative_zero_keeps_its_sign(store: Store, capabilities: Capabilities) -> None:
    line = f"gpu power_watts=-0.0,reading=-0 {START_NS}"
    assert store.submit(parse(line.encode(), default_time_ns=0).batch, identity=ACME).result() == []
    span = ScanQuery(measurement="gpu", start_ns=0, end_ns=START_NS + 1, tenants=None)

    for _ in range(2):
        (point,) = [point for batch in store.scan(span) for point in batch.points()]
        for fields in (point.fields, newest(store, "power_watts", "reading")[0].values):
            signs = [math.copysign(1, float(value)) for value in fields.values()]
            assert signs == [-1 if capabilities.keeps_negative_zero else 1] * 2
        store.maintain(now_ns=START_NS + 3 * DAY_NS)


def test_a_text_comes_back_where_texts_are_kept(store: Store, capabilities: Capabilities) -> None:
    text = 'H100 \x00 "quoted" \'; --'

    rejected = write(store, [gpu(0, model=text), gpu(1, model=text, x=1.0)], identity=ACME)

    (row,) = newest(store, "model", "x")
    if capabilities.stores_text:
        assert (rejected, row.values) == ([], {"model": text, "x": 1.0})
    else:
        assert [(rejection.position, rejection.is_left_out) for rejection in rejected] == [
            (0, True)
        ]
        assert "'model' is text" in rejected[0].reason
        assert row.values == {"x": 1.0}


def test_the_identity_wins_over_a_sender_who_claims_another(store: Store) -> None:
    forged = gpu(0, tags={"tenant": "globex", "appliance": "g1"}, power_watts=1.0)
    write(store, [forged], identity=ACME)

    assert store.tag_values("gpu", "tenant", tenants=None) == ["acme"]
    assert store.tag_values("gpu", "appliance", tenants=None) == ["a1"]


def test_an_integer_written_to_a_float_field_becomes_a_float(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.5), gpu(1, power_watts=93)], identity=ACME)

    assert newest(store, "power_watts")[0].values == {"power_watts": 93.0}
    assert store.fields("gpu", tenants=None) == {"power_watts": "float"}


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 1.5), (1, True), (1.5, True), (1.5, "hot"), (True, 1), (True, "yes"), ("hot", 1.5)],
)
def test_a_value_of_another_type_is_refused_and_its_neighbors_are_kept(
    store: Store, capabilities: Capabilities, first: FieldValue, second: FieldValue
) -> None:
    write(store, [gpu(0, reading=first)], identity=ACME)

    rejected = write(
        store,
        [gpu(1, reading=first), gpu(2, reading=second), gpu(3, other=1.0)],
        identity=ACME,
    )

    assert all("'reading'" in point.reason for point in rejected)
    stored = newest(store, "reading", "other")[0].values
    if capabilities.keeps_types:
        assert [point.position for point in rejected] == [1]
        assert stored == {"reading": first, "other": 1.0}
    else:
        values = [first, second]
        numbers = [float(value) for value in values if not isinstance(value, str)]
        refused = [at for at, value in enumerate(values) if isinstance(value, str)]
        assert [point.position for point in rejected] == refused
        assert stored == {"reading": numbers[-1], "other": 1.0}


def test_a_type_outlives_the_move_of_its_samples(store: Store, capabilities: Capabilities) -> None:
    for first, second in (("fine", 1.0), (1, 2.5), (1.0, "hot")):
        assert not any(point.position for point in write(store, [status(first)], identity=ACME))
        store.maintain(now_ns=START_NS + 3 * DAY_NS)

        rejected = write(store, [status(second)], identity=ACME)

        keeps_types = capabilities.keeps_types
        assert len(rejected) == (keeps_types or isinstance(second, str))
        if keeps_types:
            assert store.fields("weather", tenants=("acme",)) == {
                "status": str(FIELD_TYPES[type(first)])
            }
        store.delete_tenant("acme")


def status(value: FieldValue) -> Point:
    return Point("weather", {}, {"status": value}, START_NS)


def test_a_type_clash_inside_one_new_batch_goes_by_the_first_value(
    store: Store, capabilities: Capabilities
) -> None:
    rejected = write(store, [gpu(0, reading=1), gpu(1, reading=1.5)], identity=ACME)

    clashes = capabilities.keeps_types
    assert [point.position for point in rejected] == ([1] if clashes else [])
    assert store.fields("gpu", tenants=None) == {"reading": "integer" if clashes else "float"}


def test_a_refused_point_leaves_no_field_behind(store: Store) -> None:
    write(store, [gpu(0, reading=1.0)], identity=ACME)

    rejected = write(store, [gpu(1, brand_new=1.0, reading=float("nan"))], identity=ACME)

    assert [point.position for point in rejected] == [0]
    assert store.fields("gpu", tenants=None) == {"reading": "float"}


@pytest.mark.parametrize(
    "bad",
    [
        gpu(0),
        gpu(0, power_watts=float("nan")),
        gpu(0, power_watts=float("inf")),
        gpu(0, reading=2**63),
        gpu_with({"": 1.0}),
        gpu_with({"x" * 1000: 1.0}),
        gpu(0, model="\ud800"),
        Point("", {}, {"x": 1.0}, START_NS),
        Point("gpu", {"": "x"}, {"power_watts": 1.0}, START_NS),
        Point("gpu", {}, {"power_watts": 1.0}, 2**63),
    ],
)
def test_a_point_that_cannot_be_stored_is_refused_with_a_reason(store: Store, bad: Point) -> None:
    rejected = write(store, [bad, gpu(1, utilization_percent=1.0)], identity=ACME)

    assert [point.position for point in rejected] == [0]
    assert rejected[0].reason
    assert newest(store, "utilization_percent")[0].values == {"utilization_percent": 1.0}


def test_many_senders_at_once_all_get_their_own_answer(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.0)], identity=ACME)
    futures = [
        store.submit(Batch.of([gpu(i, power_watts="bad" if i % 2 else 1.0)]), identity=ACME_2)
        for i in range(20)
    ]

    assert [len(future.result(timeout=60)) for future in futures] == [0, 1] * 10


def test_no_points_are_no_error(store: Store) -> None:
    assert write(store, [], identity=GLOBEX) == []
    assert store.measurements(tenants=None) == []
