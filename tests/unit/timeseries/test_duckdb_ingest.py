"""From blocks to columns: shapes side by side, whose position is rejected, and by what type."""

from collections.abc import Mapping, Sequence

import pytest

from timeseries.duckdb.hot.ingest import InsertPlan, parts_by_key, plan_insert
from timeseries.duckdb.hot.rows import arrow_table
from timeseries.duckdb.schema import Key, Schema, Table
from timeseries.points import Batch, Block, FieldValue, Point
from timeseries.validation import FieldType

ACME = {"tenant": "acme", "appliance": "a1"}
ACME_2 = {"tenant": "acme", "appliance": "a2"}
SCHEMA = {Key("acme", "gpu"): Table(frozenset({"tenant", "appliance"}), {"x": FieldType.FLOAT})}

Sent = tuple[Batch, Mapping[str, str]]


def plan(*sent: Sent, schema: Schema | None = None) -> InsertPlan:
    parts = parts_by_key((*pair, ()) for pair in sent)
    (key,) = parts
    return plan_insert(key, parts[key], schema=schema or {})


def gpu(fields: Mapping[str, FieldValue], **tags: str) -> Point:
    return Point("gpu", tags, fields, 1)


def rows(insert: InsertPlan) -> list[dict[str, object]]:
    """Return the rows without what is NULL in them."""
    return [
        {name: value for name, value in row.items() if value is not None and name != "time"}
        for row in arrow_table(insert.rows, insert.table).to_pylist()
    ]


def test_blocks_of_many_senders_are_concatenated_with_their_identities() -> None:
    sent = [
        (Batch.of([gpu({"x": 1.0}, gpu="0"), gpu({"x": 2.0}, gpu="1")]), ACME),
        (Batch.of([gpu({"x": 3.0}, gpu="0")]), ACME_2),
    ]

    assert rows(plan(*sent)) == [
        {"tag_tenant": "acme", "tag_appliance": "a1", "tag_gpu": "0", "field_x": 1.0},
        {"tag_tenant": "acme", "tag_appliance": "a1", "tag_gpu": "1", "field_x": 2.0},
        {"tag_tenant": "acme", "tag_appliance": "a2", "tag_gpu": "0", "field_x": 3.0},
    ]


def test_shapes_that_differ_leave_gaps() -> None:
    batch = Batch.of([gpu({"x": 1.0}, model="H100"), gpu({"y": True, "z": "hot"})])

    identity = {"tag_tenant": "acme", "tag_appliance": "a1"}
    assert rows(plan((batch, ACME))) == [
        {**identity, "tag_model": "H100", "field_x": 1.0},
        {**identity, "field_y": True, "field_z": "hot"},
    ]


def test_a_point_is_rejected_by_submission_and_position() -> None:
    good = Batch.of([gpu({"x": 1.0})] * 3)
    # The parser left out line 1 and gave the points the positions of their lines.
    block = Block("gpu", (), [()], [0, 0], ("x",), (float,), ([float("nan"), 2.0],), [1, 2], [3, 7])

    insert = plan((good, ACME), (Batch((block,)), ACME_2), schema=SCHEMA)

    assert list(insert.rejected) == [(1, 3)]
    assert len(rows(insert)) == 4


def test_a_type_conflict_of_one_sender_does_not_affect_others() -> None:
    insert = plan(
        (Batch.of([gpu({"x": 1.0})]), ACME),
        (Batch.of([gpu({"x": "hot"}), gpu({"x": "cold"})]), ACME_2),
        (Batch.of([gpu({"x": 3})]), ACME),
    )

    assert list(insert.rejected) == [(1, 0), (1, 1)]
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

    insert = plan((Batch((block,)), ACME), schema=SCHEMA)

    assert insert.rejected == {}
    assert [row["field_x"] for row in rows(insert)] == stored


def test_an_identity_without_an_appliance_takes_none_from_the_sender() -> None:
    batch = Batch.of([gpu({"x": 1.0}, appliance="forged", gpu="0")])

    assert rows(plan((batch, {"tenant": "acme"}))) == [
        {"tag_tenant": "acme", "tag_gpu": "0", "field_x": 1.0}
    ]


def test_an_unsupported_type_is_rejected_point_by_point() -> None:
    block = Block("gpu", (), [()], [0], ("x",), (type(None),), ([None],), [1], [4])  # type: ignore[list-item]

    insert = plan((Batch((block,)), ACME))

    assert not insert.rows
    assert "not a number" in insert.rejected[(0, 4)]


def test_an_unchanged_table_is_handed_back_as_it_is() -> None:
    insert = plan((Batch.of([gpu({"x": 1.0})]), ACME), schema=SCHEMA)

    assert insert.table is SCHEMA[Key("acme", "gpu")]


def test_declared_points_share_a_table_and_others_are_their_tenants() -> None:
    globex = {"tenant": "globex", "appliance": "g1"}
    declared = gpu({"power_watts": 93}, gpu="0", host="a")
    batches = [Batch.of([declared, gpu({"x": 1}), gpu({"power_watts": 1.0}, x="tag")])] * 2

    parts = parts_by_key((batch, of, ()) for batch, of in zip(batches, (ACME, globex), strict=True))

    assert {
        key: sum(len(part.block) for part in table_parts) for key, table_parts in parts.items()
    } == {
        Key("", "gpu"): 2,
        Key("acme", "gpu"): 2,
        Key("globex", "gpu"): 2,
    }
    insert = plan_insert(Key("", "gpu"), parts[Key("", "gpu")], schema={})
    assert insert.table.fields == {"power_watts": FieldType.FLOAT}


def test_a_verified_block_of_two_tenants_goes_to_the_tables_of_both() -> None:
    tag_sets = [("acme", "a1"), ("globex", "g1")]
    values = ([1.0, 2.0, 3.0],)
    block = Block(
        "m",
        ("tenant", "appliance"),
        tag_sets,
        [0, 1, 0],
        ("x",),
        (float,),
        values,
        [1, 2, 3],
        [0, 1, 2],
    )

    parts = parts_by_key([(Batch((block,), is_stamped=True), {}, ())])

    assert {key.owner: list(part.block.positions) for key, (part,) in parts.items()} == {
        "acme": [0, 2],
        "globex": [1],
    }


def test_a_field_has_the_type_of_its_sealed_values() -> None:
    key = Key("acme", "gpu")
    parts = parts_by_key([(Batch.of([gpu({"x": 21}), gpu({"x": 21.5})]), ACME, ())])

    insert = plan_insert(key, parts[key], schema={}, sealed=lambda _key: {"x": FieldType.INTEGER})

    assert insert.table.fields == {"x": FieldType.INTEGER}
    assert [row["field_x"] for row in rows(insert)] == [21]
    assert list(insert.rejected) == [(0, 1)]
