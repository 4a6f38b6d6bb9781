from collections.abc import Callable

import pytest

from core.errors import InvalidInputError
from timeseries.lineprotocol.encode import encode, encode_batch
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch, FieldValue, Point

NONE: dict[str, dict[str, str]] = {"extra_tags": {}}


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
        (Point("#m", {}, {"f": 1.0}, 1), "starts with a comment"),
        (Point("\tm", {}, {"f": 1.0}, 1), "or a blank"),
        (Point("m", {}, {"\0f": 1.0}, 1), "starts with a blank"),
        (Point("m", {"": "x"}, {"f": 1.0}, 1), "a tag's name is empty"),
        (Point("m", {"a": ""}, {"f": 1.0}, 1), "tag 'a' is empty"),
        (Point("m", {"a": "x\ny"}, {"f": 1.0}, 1), "has a newline"),
        (Point("m", {"a": "C:\\"}, {"f": 1.0}, 1), "trailing backslash"),
        (Point("m", {}, {"": 1.0}, 1), "a field name is empty"),
        (Point("m", {}, {"f": float("nan")}, 1), "field 'f' is nan"),
        (Point("m", {}, {"f": float("-inf")}, 1), "field 'f' is -inf"),
        (Point("m", {}, {"f": 2**64}, 1), "out of the range"),
        (Point("m", {}, {"f": "\ud800"}, 1), "surrogate"),
        (Point("m", {}, {"f": 1.0}, 2**63 - 1), "the time 9223372036854775807 is out of the range"),
    ],
)
@pytest.mark.parametrize("write", [encode, lambda points: encode_batch(Batch.of(points), **NONE)])
def test_what_line_protocol_cannot_encode_is_rejected_by_name(
    write: Callable[[list[Point]], bytes], point: Point, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match="line protocol") as caught:
        write([point])

    assert reason in caught.value.message


def test_a_batch_is_stamped_over_the_tags_that_its_points_have() -> None:
    points = [Point("gpu", {"tenant": "forged", "gpu": g}, {"f": 1.5}, 5) for g in ("0", "1")]

    lines = encode_batch(Batch.of(points), extra_tags={"tenant": "acme", "appliance": "a 1"})

    assert lines == (
        b"gpu,appliance=a\\ 1,gpu=0,tenant=acme f=1.5 5\n"
        b"gpu,appliance=a\\ 1,gpu=1,tenant=acme f=1.5 5\n"
    )


def test_only_the_column_that_needs_escapes_is_escaped() -> None:
    fields: list[dict[str, FieldValue]] = [{"50%": 2**63, "s": '"'}, {"50%": -1, "s": "x"}]
    points = [Point("%s", {"a": "%d", "b": tag}, f, 5) for tag, f in zip("= ", fields, strict=True)]

    assert encode_batch(Batch.of(points), **NONE) == (
        b'%s,a=%d,b=\\= 50%=9223372036854775808u,s="\\"" 5\n%s,a=%d,b=\\  50%=-1i,s="x" 5\n'
    )


def test_a_backslash_before_the_equals_sign_of_a_measurement_is_preserved() -> None:
    points = [Point(r"a\=b=c", {}, {"f": 1.0}, 5)]

    assert parse(encode(points), default_time_ns=0).points == points
