"""Batches: columns in place of points, and nothing lost on the way there and back."""

from hypothesis import given
from hypothesis import strategies as st

from timeseries.points import Batch, Point

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(), st.booleans(), st.text(max_size=3))
POINTS = st.builds(
    Point,
    NAMES,
    st.dictionaries(NAMES, NAMES, max_size=2),
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=3),
    st.integers(min_value=0, max_value=9),
)


@given(st.lists(POINTS, max_size=20))
def test_a_batch_gives_back_its_points_in_their_order(points: list[Point]) -> None:
    batch = Batch.of(points)
    assert batch.points() == points
    assert len(batch) == len(points)


@given(st.lists(POINTS, max_size=20))
def test_every_column_of_a_block_is_of_one_type_and_length(points: list[Point]) -> None:
    for block in Batch.of(points).blocks:
        assert {len(column) for column in block.values} == {len(block)}
        for kind, column in zip(block.kinds, block.values, strict=True):
            assert {type(value) for value in column} == {kind}


@given(st.lists(POINTS, max_size=20), st.sets(st.integers(min_value=0, max_value=20)))
def test_points_are_removed_by_position(points: list[Point], out: set[int]) -> None:
    expected = [point for position, point in enumerate(points) if position not in out]
    left = Batch.of(points).without(out)
    assert left.points() == expected
    assert all(len(block) for block in left.blocks)
