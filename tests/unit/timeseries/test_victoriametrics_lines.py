from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeseries.points import Batch, Block, FieldValue, Point
from timeseries.store import RejectedPoint
from timeseries.victoriametrics.lines import (
    MAX_TAGS,
    WriteContext,
    encode,
    prefix_of,
    prefixes_of,
)

MS = 1_000_000
AT_NS = 1_500_000 * MS
FRAME = WriteContext(
    "vedette", {"tenant": "acme", "appliance": "a1"}, first_ms=1_000_000, last_ms=2_000_000
)
VALUES = st.text('abA0-_.,= \\\n%"#ü\ud800', max_size=8) | st.just("x" * 20_000)
OURS = "tenant=acme,appliance=a1,vedette_scope=vedette/acme,vedette_measurement"


def point(
    measurement: str = "gpu", /, *, time_ms: float = 1_500_000, **fields: FieldValue
) -> Point:
    return Point(measurement, {}, fields, int(time_ms) * MS)


def lines(*points: Point) -> list[str]:
    return encode(Batch.of(points), FRAME).text.splitlines()


def reject(*points: Point) -> list[RejectedPoint]:
    return encode(Batch.of(points), FRAME).rejected


def test_a_point_becomes_a_line_with_its_scope_measurement_and_millisecond() -> None:
    sample = Point("gpu", {"gpu": "0"}, {"power_watts": 250.5, "fan_percent": 40}, AT_NS + 1)

    assert lines(sample) == [f"gpu,gpu=0,{OURS}=gpu power_watts=250.5,fan_percent=40 1500000"]


def test_booleans_are_zero_and_one() -> None:
    assert lines(point(a=True), point(a=False)) == [
        f"gpu,{OURS}=gpu a=1 1500000",
        f"gpu,{OURS}=gpu a=0 1500000",
    ]


def test_names_and_values_are_escaped() -> None:
    sample = Point("a b,c", {"k=1": "v 1,2\\"}, {"f%s d": 1.0}, AT_NS)

    assert lines(sample) == [f"a\\ b\\,c,k\\=1=v\\ 1\\,2\\\\,{OURS}=a\\ b\\,c f%s\\ d=1.0 1500000"]


def test_the_identity_wins_over_a_forged_tag() -> None:
    forged = Point("gpu", {"tenant": "globex"}, {"x": 1.0}, AT_NS)

    assert lines(forged) == [f"gpu,{OURS}=gpu x=1.0 1500000"]


def test_text_fields_of_a_point_with_numbers_are_dropped_and_reported() -> None:
    encoded = encode(Batch.of([point(model="H100", x=1.0)]), FRAME)

    assert encoded.text.splitlines() == [f"gpu,{OURS}=gpu x=1.0 1500000"]
    assert (encoded.rejected, encoded.left_out) == ([], [("gpu", "model")])


def test_a_point_of_text_only_is_left_out_at_its_position() -> None:
    (rejected,) = reject(point(x=1.0), point(model="H100"))

    why = "field 'model' is text, and this store has only numbers"
    assert rejected == RejectedPoint(1, why, is_left_out=True)


@pytest.mark.parametrize(
    ("time_ms", "reason"),
    [(999_999, "retention"), (2_000_001, "more than two days ahead")],
)
def test_a_time_that_the_server_would_drop_is_rejected(time_ms: int, reason: str) -> None:
    good = [point(x=1.0, time_ms=1_000_000), point(x=1.0, time_ms=2_000_000)]

    (rejected,) = reject(*good, point(x=1.0, time_ms=time_ms))

    assert rejected.position == 2
    assert reason in rejected.reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (point(x=float("nan")), "field 'x' is nan"),
        (point(x=2**63), "out of the range"),
        (point(x=-(2**63) - 1), "out of the range"),
        (point("#gpu", x=1.0), "starts a comment"),
        (point("a\nb", x=1.0), "line break"),
        (point(**{'a"b': 1.0}), "quotation mark"),
        (point(**{"x" * 300: 1.0}), "longer than 250 bytes"),
        (point("", x=1.0), "empty name"),
        (point(), "no fields"),
        (Point("gpu", {"vedette_scope": "v/globex"}, {"x": 1.0}, AT_NS), "reserved"),
        (Point("gpu", {"__name__": "other"}, {"x": 1.0}, AT_NS), "reserved"),
        (Point("gpu", {"k": "a\nb"}, {"x": 1.0}, AT_NS), "tag 'k' has a line break"),
        (Point("gpu", {"k": "x" * 17_000}, {"x": 1.0}, AT_NS), "tag 'k' is longer than 16384"),
        (Point("gpu", {"k": "\ud800"}, {"x": 1.0}, AT_NS), "not valid Unicode"),
        (Point("gpu", {f"k{i}": "v" for i in range(MAX_TAGS)}, {"x": 1.0}, AT_NS), "29 tags"),
        (point(**{f"f{i}": 1.0 for i in range(500)}), "500 fields"),
    ],
)
def test_what_the_server_would_skip_or_truncate_is_rejected(bad: Point, reason: str) -> None:
    encoded = encode(Batch.of([point(x=1.0), bad]), FRAME)

    assert [rejection.position for rejection in encoded.rejected] == [1]
    assert reason in encoded.rejected[0].reason
    assert encoded.text.splitlines() == [f"gpu,{OURS}=gpu x=1.0 1500000"]


def test_an_invalid_tag_set_rejects_only_its_own_points() -> None:
    points = [Point("gpu", {"k": value}, {"x": 1.0}, AT_NS) for value in ("a", "b\n", "c", "b\n")]

    assert [rejection.position for rejection in reject(*points)] == [1, 3]
    assert len(lines(*points)) == 2


def test_an_empty_batch_has_no_text() -> None:
    assert encode(Batch(()), FRAME).text == ""


@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=3),
    st.sampled_from([("gpu", "host"), ("tenant", "gpu"), ("gpu a", "b=c")]),
    st.sampled_from([{}, {"tenant": "acme", "appliance": "a1"}, {"tenant": "a b"}, {"gpu": "x"}]),
    st.sampled_from(["gpu", "my gpu", "a%d", "ü"]),
)
def test_what_needs_no_escapes_is_encoded_as_anything_else(
    tag_sets: list[tuple[str, str]], tags: tuple[str, str], identity: dict[str, str], name: str
) -> None:
    """The short way gives the text, and the errors, of the way that looks at each value."""
    rows, times = range(len(tag_sets)), [AT_NS] * len(tag_sets)
    block = Block(
        name,
        tags,
        tag_sets,
        rows,
        ("x",),
        (float,),
        ([1.5] * len(rows),),
        times,
        rows,
    )
    context = replace(FRAME, identity=identity)

    texts, errors = prefixes_of(block, context)

    one_by_one = [prefix_of(block, tag_set, context) for tag_set in tag_sets]
    assert [(text, errors.get(at)) for at, text in enumerate(texts)] == one_by_one
