import pytest

from core.errors import InvalidInputError
from timeseries.lineprotocol import encode
from timeseries.points import FieldValue, Point


def test_a_point_is_one_line() -> None:
    fields: dict[str, FieldValue] = {"a": 93, "b": True, "c": False, "d": 0.1, "e": 2.0, "f": "x"}

    line = encode([Point("gpu", {"gpu": "0"}, fields, 5)])

    assert line == b'gpu,gpu=0 a=93i,b=true,c=false,d=0.1,e=2.0,f="x" 5\n'


def test_special_characters_are_escaped() -> None:
    point = Point("a,b c=d", {"k, =": "v, ="}, {"f, =": 'say "hi" \\ \n, ='}, 1)

    assert encode([point]) == (
        rb"a\,b\ c=d,k\,\ \==v\,\ \= f\,\ \==" + b'"say \\"hi\\" \\\\ \n, =" 1\n'
    )


def test_no_points_are_no_bytes() -> None:
    assert encode([]) == b""


def test_an_integer_over_63_bits_is_written_unsigned() -> None:
    assert encode([Point("m", {}, {"f": 2**64 - 1}, 1)]) == b"m f=18446744073709551615u 1\n"


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (Point("m", {}, {}, 1), "no fields"),
        (Point("", {}, {"f": 1.0}, 1), "the measurement is empty"),
        (Point("#m", {}, {"f": 1.0}, 1), "begins like a comment"),
        (Point("m", {"": "x"}, {"f": 1.0}, 1), "a tag's name is empty"),
        (Point("m", {"a": ""}, {"f": 1.0}, 1), "tag 'a' is empty"),
        (Point("m", {"a": "x\ny"}, {"f": 1.0}, 1), "holds a newline"),
        (Point("m", {"a": "C:\\"}, {"f": 1.0}, 1), "ends with a backslash"),
        (Point("m", {}, {"": 1.0}, 1), "a field name is empty"),
        (Point("m", {}, {"f": float("nan")}, 1), "field 'f' is nan"),
        (Point("m", {}, {"f": float("-inf")}, 1), "field 'f' is -inf"),
        (Point("m", {}, {"f": 2**64}, 1), "out of the range"),
        (Point("m", {}, {"f": "\ud800"}, 1), "surrogate"),
        (Point("m", {}, {"f": 1.0}, 2**63), "the time 9223372036854775808 is out of the range"),
    ],
)
def test_what_no_line_can_carry_is_refused_by_name(point: Point, reason: str) -> None:
    with pytest.raises(InvalidInputError, match="line protocol") as caught:
        encode([point])

    assert reason in caught.value.message
