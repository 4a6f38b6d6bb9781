"""A round trip through line protocol loses nothing, and the fast path changes nothing."""

from hypothesis import given
from hypothesis import strategies as st

from timeseries.lineprotocol import LineError, ParseResult, encode, parse
from timeseries.lineprotocol_grammar import LineFaultError, logical_lines, parse_line
from timeseries.points import Point

NOW_NS = 1_700_000_000_000_000_000

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n")
NAMES = st.text(CHARACTERS, min_size=1, max_size=8).filter(lambda name: not name.endswith("\\"))
MEASUREMENTS = NAMES.filter(lambda name: not name.startswith(("#", "\r")))
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
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=3),
    st.integers(-(2**63), 2**63 - 1),
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
    ]
)
BODIES = st.lists(PIECES, max_size=24).map("".join)


def parse_exactly(text: str) -> ParseResult:
    points, errors = [], []
    for number, line in logical_lines(text):
        try:
            point = parse_line(line, multiplier=1, default_time_ns=NOW_NS)
        except LineFaultError as fault:
            errors.append(LineError(number, str(fault), line))
        else:
            points.extend([point] if point else [])
    return ParseResult(points, errors)


@given(st.lists(POINTS, max_size=4))
def test_what_was_encoded_is_parsed_back(points: list[Point]) -> None:
    result = parse(encode(points), default_time_ns=NOW_NS)

    assert (result.points, result.errors) == (points, [])
    for before, after in zip(points, result.points, strict=True):
        types = {name: type(value) for name, value in after.fields.items()}
        assert types == {name: type(value) for name, value in before.fields.items()}


@given(st.one_of(BODIES, st.text(max_size=40), BODIES.map(lambda body: f"m,a=b f=1{body}")))
def test_the_fast_path_gives_what_the_exact_grammar_gives(body: str) -> None:
    text = body.encode(errors="replace").decode()

    assert repr(parse(text.encode(), default_time_ns=NOW_NS)) == repr(parse_exactly(text))


@given(st.binary(max_size=60))
def test_no_bytes_make_the_parser_fail(data: bytes) -> None:
    parse(data, default_time_ns=NOW_NS)
