"""From blocks to columns: shapes side by side, whose position is refused, and by what type."""

from collections.abc import Mapping, Sequence

import pytest

from timeseries.batch import Batch, Block
from timeseries.duckdb.ingest import Insert, parts_by_measurement, plan_insert
from timeseries.duckdb.schema import FieldType, Schema, Table
from timeseries.points import FieldValue, Point

ACME = {"tenant": "acme", "appliance": "a1"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}
KNOWN = {"gpu": Table(frozenset({"tenant", "appliance"}), {"x": FieldType.FLOAT})}

Sent = tuple[Batch, Mapping[str, str]]


def plan(*sent: Sent, schema: Schema | None = None) -> Insert:
    parts = parts_by_measurement(sent)
    return plan_insert("gpu", parts["gpu"], schema=schema or {})


def gpu(fields: Mapping[str, FieldValue], **tags: str) -> Point:
    return Point("gpu", tags, fields, 1)


def rows(insert: Insert) -> list[dict[str, object]]:
    """Return the rows without what is NULL in them."""
    assert insert.data is not None
    return [
        {name: value for name, value in row.items() if value is not None and name != "time"}
        for row in insert.data.to_pylist()
    ]


def test_blocks_of_many_senders_are_laid_end_to_end_each_with_its_identity() -> None:
    sent = [
        (Batch.of([gpu({"x": 1.0}, gpu="0"), gpu({"x": 2.0}, gpu="1")]), ACME),
        (Batch.of([gpu({"x": 3.0}, gpu="0")]), GLOBEX),
    ]

    assert rows(plan(*sent)) == [
        {"tag_tenant": "acme", "tag_appliance": "a1", "tag_gpu": "0", "field_x": 1.0},
        {"tag_tenant": "acme", "tag_appliance": "a1", "tag_gpu": "1", "field_x": 2.0},
        {"tag_tenant": "globex", "tag_appliance": "g1", "tag_gpu": "0", "field_x": 3.0},
    ]


def test_shapes_that_differ_leave_gaps() -> None:
    batch = Batch.of([gpu({"x": 1.0}, model="H100"), gpu({"y": True, "z": "hot"})])

    identity = {"tag_tenant": "acme", "tag_appliance": "a1"}
    assert rows(plan((batch, ACME))) == [
        {**identity, "tag_model": "H100", "field_x": 1.0},
        {**identity, "field_y": True, "field_z": "hot"},
    ]


def test_a_point_is_refused_by_its_submission_and_its_position_in_the_batch() -> None:
    good = Batch.of([gpu({"x": 1.0})] * 3)
    # The parser left out line 1 and gave the points the positions of their lines.
    block = Block("gpu", (), [()], [0, 0], ("x",), (float,), ([float("nan"), 2.0],), [1, 2], [3, 7])

    insert = plan((good, ACME), (Batch((block,)), GLOBEX), schema=KNOWN)

    assert list(insert.refused) == [(1, 3)]
    assert len(rows(insert)) == 4


def test_one_sender_with_a_bad_type_costs_the_others_nothing() -> None:
    insert = plan(
        (Batch.of([gpu({"x": 1.0})]), ACME),
        (Batch.of([gpu({"x": "hot"}), gpu({"x": "cold"})]), GLOBEX),
        (Batch.of([gpu({"x": 3})]), ACME),
    )

    assert list(insert.refused) == [(1, 0), (1, 1)]
    assert [row["field_x"] for row in rows(insert)] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([1, 2**63 - 1], int, [1.0, float(2**63 - 1)]),
        ([2**64 - 1], int, [float(2**64 - 1)]),
        ([1e308, 1e308], float, [1e308, 1e308]),
    ],
)
def test_numbers_at_the_edges_go_into_a_float_field(
    values: Sequence[FieldValue], kind: type, stored: Sequence[float]
) -> None:
    count = len(values)
    block = Block(
        "gpu", (), [()], [0] * count, ("x",), (kind,), (values,), [1] * count, range(count)
    )

    insert = plan((Batch((block,)), ACME), schema=KNOWN)

    assert insert.refused == {}
    assert [row["field_x"] for row in rows(insert)] == stored


def test_an_identity_without_an_appliance_takes_none_from_the_sender() -> None:
    batch = Batch.of([gpu({"x": 1.0}, appliance="forged", gpu="0")])

    assert rows(plan((batch, {"tenant": "acme"}))) == [
        {"tag_tenant": "acme", "tag_gpu": "0", "field_x": 1.0}
    ]


def test_a_kind_that_no_field_has_is_refused_point_by_point() -> None:
    block = Block("gpu", (), [()], [0], ("x",), (type(None),), ([None],), [1], [4])  # type: ignore[list-item]

    insert = plan((Batch((block,)), ACME))

    assert insert.data is None
    assert "no number, boolean or text" in insert.refused[(0, 4)]


def test_an_unchanged_table_is_handed_back_as_it_is() -> None:
    insert = plan((Batch.of([gpu({"x": 1.0})]), ACME), schema=KNOWN)

    assert insert.table is KNOWN["gpu"]
