from collections.abc import Mapping

from timeseries.influxdb.validation import FieldTypes, validate
from timeseries.points import Batch, FieldValue, Point

ACME = {"tenant": "acme", "appliance": "a1"}


class Server:
    """Answers for the types of fields, and counts how often it was asked."""

    def __init__(self, types: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.types = types or {}
        self.asked = 0

    def load(self, measurement: str) -> Mapping[str, str]:
        self.asked += 1
        return self.types.get(measurement, {})


def gpu(second: int = 0, tags: Mapping[str, str] | None = None, **fields: FieldValue) -> Point:
    return Point("gpu", tags or {}, fields, second)


def vetted(*points: Point, types: FieldTypes | None = None) -> list[Point]:
    batch, rejected = validate(Batch.of(points), ACME, types or FieldTypes(Server().load))
    assert rejected == []
    return batch.points()


def test_the_identity_is_stamped_over_what_a_sender_claims() -> None:
    (point,) = vetted(gpu(x=1.0, tags={"tenant": "globex", "gpu": "0"}))

    assert point.tags == {"tenant": "acme", "appliance": "a1", "gpu": "0"}


def test_names_are_those_that_influxdb_can_hold() -> None:
    (point,) = vetted(Point("a\nb", {"time": "x\\"}, {"time": 1.0}, 0))

    assert point.measurement == "a%0Ab"
    assert point.tags == {**ACME, "%74ime": "x%5C"}
    assert point.fields == {"%74ime": 1.0}


def test_empty_tags_are_omitted() -> None:
    points = vetted(gpu(0, {"gpu": "0", "job": ""}, x=1.0), gpu(1, {"gpu": "0", "job": "j"}, x=1.0))

    assert [point.tags for point in points] == [
        {**ACME, "gpu": "0"},
        {**ACME, "gpu": "0", "job": "j"},
    ]


def test_integers_of_a_float_field_become_floats() -> None:
    types = FieldTypes(Server({"gpu": {"x": "float"}}).load)

    (point,) = vetted(gpu(x=2**64 - 1), types=types)

    assert type(point.fields["x"]) is float


def test_a_type_conflict_is_rejected_at_its_position() -> None:
    types = FieldTypes(Server({"gpu": {"x": "integer"}}).load)

    batch, rejected = validate(Batch.of([gpu(y=1.0), gpu(x=1.5), gpu(x=1)]), ACME, types)

    assert [point.position for point in rejected] == [1]
    assert "'x' has type integer, and this value 1.5 is float" in rejected[0].reason
    assert len(batch) == 2


def test_an_invalid_row_does_not_affect_its_neighbors() -> None:
    bad = [gpu(x=float("nan")), gpu(x=1.0, tags={"t": "\ud800"}), gpu(2**63 - 1, x=1.0)]

    batch, rejected = validate(Batch.of([gpu(x=1.0), *bad]), ACME, FieldTypes(Server().load))

    assert [point.position for point in rejected] == [1, 2, 3]
    assert len(batch) == 1


def test_the_types_of_known_fields_are_loaded_once() -> None:
    server = Server({"gpu": {"x": "float"}})
    types = FieldTypes(server.load)

    for _ in range(3):
        vetted(gpu(x=1.0), types=types)

    assert server.asked == 1


def test_the_types_are_loaded_again_for_a_new_field() -> None:
    server = Server({"gpu": {"x": "float"}})
    types = FieldTypes(server.load)
    vetted(gpu(x=1.0), types=types)
    server.types = {"gpu": {"x": "float", "y": "integer"}}

    _, rejected = validate(Batch.of([gpu(y=1.5)]), ACME, types)

    assert [point.position for point in rejected] == [0]
