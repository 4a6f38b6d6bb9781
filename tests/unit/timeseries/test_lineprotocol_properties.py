"""A round trip through line protocol loses nothing, and the fast path changes nothing."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from timeseries.lineprotocol.encode import encode, encode_batch
from timeseries.lineprotocol.grammar import InvalidLineError, logical_lines, parse_line
from timeseries.lineprotocol.parser import LineError, ParseResult, parse
from timeseries.points import Batch, Point

NOW_NS = 1_700_000_000_000_000_000

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n")
NAMES = st.text(CHARACTERS, min_size=1, max_size=8).filter(lambda name: not name.endswith("\\"))
MEASUREMENTS = NAMES.filter(lambda name: not name.startswith(("#", "\r", "\t", "\0")))
FIELD_NAMES = NAMES.filter(lambda name: not name.startswith(("\t", "\0")))
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
POINTS = st.builds(
    Point,
    MEASUREMENTS,
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.dictionaries(FIELD_NAMES, VALUES, min_size=1, max_size=3),
    st.integers(-(2**63) + 2, 2**63 - 2),
)
# Lines out of the grammar's own pieces are nearly right more often than random text is.
PIECES = st.sampled_from(
    [
        *'m,= \\"\n\r#1i.-+eEu_t',
        "f=",
        ",g=",
        " 1",
        "a=1",
        "93i",
        "1.5",
        "\n",
        "nan",
        "é",
        "٣",
        "inf",
        "f=,g5=3",
        "1e-05",
        "-0",
        " 5\nm,a=b f=",
        "\t",
        "9i3",
        "\r\n",
        "true",
    ]
)
BODIES = st.lists(PIECES, max_size=24).map("".join)


def parse_exactly(text: str) -> ParseResult:
    placed: list[tuple[int, Point]] = []
    errors = []
    for number, line in logical_lines(text):
        try:
            point = parse_line(line, multiplier=1, default_time_ns=NOW_NS)
        except InvalidLineError as fault:
            errors.append(LineError(number, str(fault), line.removesuffix("\r")))
        else:
            placed.extend([(number - 1, point)] if point else [])
    return ParseResult(Batch.from_positioned(placed), errors)


@given(st.lists(POINTS, max_size=4))
def test_what_was_encoded_is_parsed_back(points: list[Point]) -> None:
    result = parse(encode(points), default_time_ns=NOW_NS)

    assert (result.points, result.errors) == (points, [])
    assert [_types(point) for point in result.points] == [_types(point) for point in points]


@given(st.one_of(BODIES, st.text(max_size=40), BODIES.map(lambda body: f"m,a=b f=1{body}")))
def test_the_fast_path_gives_what_the_exact_grammar_gives(body: str) -> None:
    text = body.encode(errors="replace").decode()

    fast, exact = parse(text.encode(), default_time_ns=NOW_NS), parse_exactly(text)

    # Values are compared as text, because -0.0 and 0.0, and 1 and 1.0, are equal.
    assert repr((fast.points, fast.errors)) == repr((exact.points, exact.errors))


@given(st.lists(POINTS, max_size=6), st.dictionaries(NAMES, NAMES, max_size=2))
def test_a_batch_encoded_with_extra_tags_is_parsed_back(
    points: list[Point], extra_tags: dict[str, str]
) -> None:
    batch = Batch.of(points)

    result = parse(encode_batch(batch, extra_tags=extra_tags), default_time_ns=NOW_NS)

    blockwise = [point for block in batch.blocks for point in block.points()]
    stamped = [dataclasses.replace(point, tags={**point.tags, **extra_tags}) for point in blockwise]
    assert (result.points, result.errors) == (stamped, [])
    assert [_types(point) for point in result.points] == [_types(point) for point in stamped]


@given(st.binary(max_size=60))
def test_no_bytes_make_the_parser_fail(data: bytes) -> None:
    parse(data, default_time_ns=NOW_NS)


def _types(point: Point) -> dict[str, type]:
    return {name: type(value) for name, value in point.fields.items()}
