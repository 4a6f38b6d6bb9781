from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from timeseries.influxdb.validation import FieldTypes, validate
from timeseries.influxdb.writer import (
    PendingSubmission,
    encode_lines,
    pack_requests,
    split_batch,
    split_submission,
)
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch, Point
from timeseries.write_queue import Submission

TEXTS = st.text(alphabet=st.one_of(st.sampled_from('\\,= "#\n\r\x00%time'), st.characters()))
VALUES = st.one_of(st.floats(), st.integers(), st.booleans(), TEXTS)
POINTS = st.lists(
    st.builds(
        Point,
        TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=3),
        st.dictionaries(TEXTS, VALUES, max_size=3),
        st.integers(-(2**64), 2**64),
    ),
    max_size=5,
)


def points(count: int) -> list[Point]:
    return [Point("gpu", {"gpu": str(i % 3)}, {"x": float(i)}, i) for i in range(count)]


def pending_of(batch: Batch) -> PendingSubmission:
    return PendingSubmission(Submission(batch, {}, Future()))


@given(POINTS)
def test_validated_points_encode_to_valid_lines(given_points: list[Point]) -> None:
    batch, rejected = validate(
        Batch.of(given_points), {"tenant": "acme"}, FieldTypes(lambda _: {"x": "float"})
    )

    result = parse(encode_lines(batch), default_time_ns=0)
    assert (len(result.batch), result.errors) == (len(batch), [])
    assert len(batch) + len(rejected) == len(given_points)


def test_parts_keep_all_points_in_their_order() -> None:
    cut = list(split_batch(Batch.of(points(10)), 4))

    assert [len(part) for part in cut] == [4, 4, 2]
    assert [point for part in cut for point in part.points()] == points(10)


def test_small_submissions_share_a_request() -> None:
    pieces = [
        piece
        for _ in range(3)
        for piece in split_submission(pending_of(Batch.of(points(2))), Batch.of(points(2)))
    ]

    (request,) = pack_requests(pieces)

    assert len(request) == 3


def test_a_request_has_at_most_5000_lines() -> None:
    batch = Batch.of(points(12_000))

    sizes = [
        sum(len(piece.batch) for piece in request)
        for request in pack_requests(split_submission(pending_of(batch), batch))
    ]

    assert sizes == [5_000, 5_000, 2_000]


def test_a_request_has_at_most_a_mebibyte_where_points_are_large() -> None:
    batch = Batch.of([Point("gpu", {}, {"text": "x" * 1_000}, i) for i in range(3_000)])

    sizes = [
        sum(len(piece.lines) for piece in request)
        for request in pack_requests(split_submission(pending_of(batch), batch))
    ]

    assert len(sizes) == 3
    assert max(sizes) <= 1024 * 1024


def test_a_point_that_is_no_line_costs_its_neighbors_nothing() -> None:
    batch = Batch.of([*points(3), Point("gpu", {}, {"x": float("nan")}, 0), *points(2)])
    pending = pending_of(batch)

    sent = sum(len(piece.batch) for piece in split_submission(pending, batch))

    assert sent == 5
    assert [point.position for point in pending.rejected] == [3]
