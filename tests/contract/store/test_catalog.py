import pytest

from tests.contract.store.backends import Capabilities
from tests.contract.store.samples import ACME, ACME_2, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.points import Point
from timeseries.store import Aggregate, LatestQuery, RangeQuery, Store, write

HOSTILE_NAMES = [
    'gpu"; DROP TABLE "m_gpu"; --',
    "gpu'; DELETE FROM m_gpu; --",
    'a"b',
    "a\\b",
    "a%b",
    "a%22b",
    "a\x00b",
    "a\nb",
    " ",
    "GPU",
    "time",
    "tag_gpu",
    "ünïcode 温度 🔥",
    "select",
    "{0}",
    "?",
    "$1",
]


def test_measurements_are_sorted_and_only_those_of_the_tenants(store: Store) -> None:
    write(store, [gpu(0, x=1.0), Point("cpu", {}, {"x": 1.0}, START_NS)], identity=ACME)
    write(store, [Point("disk", {}, {"x": 1.0}, START_NS)], identity=GLOBEX)

    assert store.measurements(tenants=("acme",)) == ["cpu", "gpu"]
    assert store.measurements(tenants=None) == ["cpu", "disk", "gpu"]
    assert store.measurements(tenants=()) == []


def test_fields_have_types(store: Store, capabilities: Capabilities) -> None:
    write(store, [gpu(0, a=1.0, b=1, c=True, d="text")], identity=ACME)

    types = {"a": "float", "b": "integer", "c": "boolean", "d": "string"}
    floats = {"a": "float", "b": "float", "c": "float"}
    assert store.fields("gpu", tenants=None) == (types if capabilities.keeps_types else floats)


def test_names_that_look_alike_when_joined_are_kept_apart(store: Store) -> None:
    slices = Point("gpu_slice", {}, {"memory_used_bytes": 1.0}, START_NS)
    write(store, [slices, gpu(0, slice_memory_used_bytes=2.0)], identity=ACME)

    assert store.measurements(tenants=None) == ["gpu", "gpu_slice"]
    assert store.fields("gpu", tenants=None) == {"slice_memory_used_bytes": "float"}
    assert store.fields("gpu_slice", tenants=None) == {"memory_used_bytes": "float"}
    for measurement, field, value in (
        ("gpu", "slice_memory_used_bytes", 2.0),
        ("gpu_slice", "memory_used_bytes", 1.0),
        ("gpu", "memory_used_bytes", None),
    ):
        rows = store.latest(
            LatestQuery(measurement=measurement, fields=(field,), since_ns=0, tenants=None)
        )
        assert [row.values for row in rows] == ([] if value is None else [{field: value}])


def test_tags_begin_with_the_identity(store: Store) -> None:
    write(store, [gpu(0, tags={"aisle": "3"}, x=1.0)], identity=ACME)

    assert store.tags("gpu", tenants=None) == ["tenant", "appliance", "aisle", "gpu"]


def test_tag_values_are_sorted_distinct_and_only_those_of_the_tenants(store: Store) -> None:
    write(store, [gpu(0, gpu="1", x=1.0), gpu(1, gpu="1", x=1.0)], identity=ACME)
    write(store, [gpu(0, gpu="0", x=1.0)], identity=ACME_2)
    write(store, [gpu(0, gpu="7", x=1.0)], identity=GLOBEX)

    assert store.tag_values("gpu", "gpu", tenants=("acme",)) == ["0", "1"]
    assert store.tag_values("gpu", "gpu", tenants=None) == ["0", "1", "7"]
    assert store.tag_values("gpu", "gpu", tenants=()) == []


def test_an_absent_tag_is_no_value(store: Store) -> None:
    write(store, [gpu(0, tags={"job": "j1"}, x=1.0), gpu(1, x=1.0)], identity=ACME)

    assert store.tag_values("gpu", "job", tenants=None) == ["j1"]


def test_an_unknown_measurement_has_nothing(store: Store) -> None:
    assert store.fields("unknown", tenants=None) == {}
    assert store.tags("unknown", tenants=None) == []
    assert store.tag_values("unknown", "tenant", tenants=None) == []
    assert store.tag_values("unknown", "unknown", tenants=None) == []


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_is_only_a_name(store: Store, capabilities: Capabilities, name: str) -> None:
    write(store, [gpu(0, power_watts=1.0)], identity=GLOBEX)
    # Two, because a rate needs two.
    points = [Point(name, {name: name}, {name: 2.0}, START_NS + n * 10**9) for n in range(2)]

    rejected = write(store, points, identity={"tenant": name, "appliance": name})

    if not capabilities.keeps_name(name):
        assert [(rejection.position, repr(name) in rejection.reason) for rejection in rejected] == [
            (0, True),
            (1, True),
        ]
        assert store.measurements(tenants=None) == ["gpu"]
        return
    assert rejected == []
    assert store.measurements(tenants=(name,)) == [name]
    assert store.fields(name, tenants=None) == {name: "float"}
    assert store.tag_values(name, name, tenants=(name,)) == [name]
    for aggregate in Aggregate:
        (series,) = store.query_range(
            RangeQuery(
                measurement=name,
                fields=(name,),
                start_ns=START_NS,
                end_ns=START_NS + 2 * 10**9,
                aggregate=aggregate,
                tenants=(name,),
                filters={name: (name,)},
                group_by=(name, 'no such"tag'),
            )
        )
        assert series.tags == {name: name, 'no such"tag': ""}
    assert store.latest(LatestQuery(measurement=name, fields=(name,), since_ns=0, tenants=(name,)))[
        0
    ].values == {name: 2.0}
    store.delete_tenant(name)
    assert store.measurements(tenants=None) == ["gpu"]


def test_names_that_differ_only_in_case_are_different(store: Store) -> None:
    point = Point("m", {"T": "upper", "t": "lower"}, {"F": 1.0, "f": 2.0}, START_NS)
    write(store, [point, Point("M", {}, {"f": 3.0}, START_NS)], identity=ACME)

    assert store.measurements(tenants=None) == ["M", "m"]
    assert store.fields("m", tenants=None) == {"F": "float", "f": "float"}
    assert store.fields("M", tenants=None) == {"f": "float"}
    assert store.tag_values("m", "T", tenants=None) == ["upper"]


def test_a_tag_and_a_field_of_one_name_are_kept_apart(store: Store) -> None:
    write(store, [Point("gpu", {"model": "tag"}, {"model": 7.0}, START_NS)], identity=ACME)

    (row,) = store.latest(
        LatestQuery(
            measurement="gpu", fields=("model",), since_ns=0, tenants=None, group_by=("model",)
        )
    )

    assert (row.tags, row.values) == ({"model": "tag"}, {"model": 7.0})


def test_fields_and_tags_are_only_those_of_the_tenants(store: Store) -> None:
    write(store, [gpu(0, tags={"aisle": "3"}, power_watts=1.0, ours=1.0)], identity=ACME)
    write(store, [gpu(0, tags={"rack": "7"}, power_watts=1.0, theirs=1.0)], identity=GLOBEX)

    assert list(store.fields("gpu", tenants=("acme",))) == ["ours", "power_watts"]
    assert list(store.fields("gpu", tenants=("globex",))) == ["power_watts", "theirs"]
    assert list(store.fields("gpu", tenants=("acme", "globex"))) == [
        "ours",
        "power_watts",
        "theirs",
    ]
    assert store.tags("gpu", tenants=("acme",)) == ["tenant", "appliance", "aisle", "gpu"]
    assert store.tags("gpu", tenants=("globex",)) == ["tenant", "appliance", "gpu", "rack"]


@pytest.mark.parametrize("tenants", [(), ("",), ("stranger",), ("stranger", "")])
def test_another_tenant_sees_no_fields_and_no_tags(store: Store, tenants: tuple[str, ...]) -> None:
    write(store, [gpu(0, x=1.0)], identity=ACME)

    assert store.fields("gpu", tenants=tenants) == {}
    assert store.tags("gpu", tenants=tenants) == []


def test_lists_are_the_same_after_maintenance(store: Store) -> None:
    hour_ns = 3600 * SECOND_NS
    write(store, [gpu(0, x=1.0), gpu(5 * 3600, gpu="1", y=1.0)], identity=ACME)
    write(store, [gpu(0, z=1.0)], identity=GLOBEX)

    store.maintain(now_ns=START_NS + 48 * hour_ns)
    write(store, [gpu(60, gpu="late", late=1.0)], identity=ACME)

    for hours in (48, 72, 96):
        assert store.measurements(tenants=("acme",)) == ["gpu"]
        assert list(store.fields("gpu", tenants=("acme",))) == ["late", "x", "y"]
        assert store.tags("gpu", tenants=("acme",)) == ["tenant", "appliance", "gpu"]
        assert store.tag_values("gpu", "gpu", tenants=("acme",)) == ["0", "1", "late"]
        assert list(store.fields("gpu", tenants=("globex",))) == ["z"]
        store.maintain(now_ns=START_NS + hours * hour_ns)
