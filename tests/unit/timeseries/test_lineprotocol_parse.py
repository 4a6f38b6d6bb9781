import pytest

from core.errors import InvalidInputError
from timeseries.lineprotocol.parser import LineError, parse
from timeseries.points import FieldValue, Point

NOW_NS = 1_700_000_000_000_000_000


def good(text: str) -> list[Point]:
    result = parse(text.encode(), default_time_ns=NOW_NS)
    assert result.errors == []
    return result.points


def faults(data: bytes) -> list[LineError]:
    return parse(data, default_time_ns=NOW_NS).errors


def test_a_line_is_measurement_tags_fields_and_time() -> None:
    line = "gpu,gpu=0,uuid=GPU-1 power_watts=250.5,memory_used_bytes=93i 1700000000123456789\n"

    assert good(line) == [
        Point(
            "gpu",
            {"gpu": "0", "uuid": "GPU-1"},
            {"power_watts": 250.5, "memory_used_bytes": 93},
            1_700_000_000_123_456_789,
        )
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015),
        ("93i", 93),
        ("-93i", -93),
        ("9223372036854775807i", 2**63 - 1),
        ("-9223372036854775808i", -(2**63)),
        ("93u", 93),
        ("18446744073709551615u", 2**64 - 1),
        *((text, True) for text in ("t", "T", "true", "True", "TRUE")),
        *((text, False) for text in ("f", "F", "false", "False", "FALSE")),
        ('""', ""),
        ('"a, b = c"', "a, b = c"),
        (r'"say \"hi\" to C:\\x \n"', r'say "hi" to C:\x \n'),
        ('"two\nlines"', "two\nlines"),
        ('"# no comment"', "# no comment"),
    ],
)
def test_every_spelling_of_a_value_is_read(text: str, value: FieldValue) -> None:
    (point,) = good(f"m f={text} 1")

    assert point.fields == {"f": value}
    assert type(point.fields["f"]) is type(value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"my\ disk\,x f=1 1", Point("my disk,x", {}, {"f": 1.0}, 1)),
        (r"a\=b=c f=1 1", Point("a=b=c", {}, {"f": 1.0}, 1)),
        (r"m,k\ 1=v\,\=\  f=1 1", Point("m", {"k 1": "v,= "}, {"f": 1.0}, 1)),
        (r"m a\,b\=c\ d=1 1", Point("m", {}, {"a,b=c d": 1.0}, 1)),
        (r"m,path=C:\dir f=1 1", Point("m", {"path": r"C:\dir"}, {"f": 1.0}, 1)),
        (r"m,k=a\\,b f=1 1", Point("m", {"k": r"a\,b"}, {"f": 1.0}, 1)),
        ('m,k="quoted" f=1 1', Point("m", {"k": '"quoted"'}, {"f": 1.0}, 1)),
        (
            "mesure,clé=été température=1 1",
            Point("mesure", {"clé": "été"}, {"température": 1.0}, 1),
        ),
    ],
)
def test_escapes_in_names_and_tags_are_undone(line: str, expected: Point) -> None:
    assert good(line) == [expected]


def test_a_line_without_a_timestamp_gets_the_default_time() -> None:
    assert [point.time_ns for point in good('m f=1\nm f="x"\n')] == [NOW_NS, NOW_NS]


@pytest.mark.parametrize(
    ("precision", "time_ns"),
    [
        ("ns", 5),
        ("n", 5),
        ("us", 5_000),
        ("u", 5_000),
        ("ms", 5_000_000),
        ("s", 5_000_000_000),
        ("m", 300_000_000_000),
        ("h", 18_000_000_000_000),
    ],
)
@pytest.mark.parametrize("value", ["1", "true"])
def test_the_precision_is_the_unit_of_timestamps(precision: str, time_ns: int, value: str) -> None:
    result = parse(f"m f={value} 5".encode(), precision=precision, default_time_ns=NOW_NS)

    assert [point.time_ns for point in result.points] == [time_ns]


@pytest.mark.parametrize(("precision", "unit_ns"), [("ns", 1), ("u", 10**3), ("s", 10**9)])
@pytest.mark.parametrize("value", ["1", '"text"'])
def test_a_line_without_a_time_gets_that_of_the_server_in_the_unit(
    precision: str, unit_ns: int, value: str
) -> None:
    default_ns = 1_700_000_000_123_456_789

    result = parse(f"m f={value}".encode(), precision=precision, default_time_ns=default_ns)

    assert [point.time_ns for point in result.points] == [default_ns // unit_ns * unit_ns]


def test_an_unknown_precision_is_rejected_with_the_supported_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"'days'. Use one of ns, n, us"):
        parse(b"", precision="days", default_time_ns=NOW_NS)


def test_times_before_1970_are_accepted() -> None:
    assert good("m f=1 -5")[0].time_ns == -5


def test_comments_blank_lines_and_line_ends_of_windows_are_no_errors() -> None:
    text = '# a comment with a "quote="\r\n\r\n   \n  # another="\nm f=1 1\r\nm f="x"\r\n'

    assert [point.fields["f"] for point in good(text)] == [1.0, "x"]


def test_spaces_around_the_parts_are_skipped() -> None:
    assert good("  m,a=b   f=1   5  ") == [Point("m", {"a": "b"}, {"f": 1.0}, 5)]
    assert good("\t \0m,a=b \tf=1 \t5  ") == [Point("m", {"a": "b"}, {"f": 1.0}, 5)]


def test_the_last_value_of_a_repeated_field_counts() -> None:
    assert good("m f=1,f=2 1\nm f=t,f=f 1") == [
        Point("m", {}, {"f": 2.0}, 1),
        Point("m", {}, {"f": False}, 1),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b",a=b f=1", "measurement is missing"),
        (b"m", "no fields"),
        (b"m,a=b", "no fields"),
        (b"m,a=b 1700000000", "has no value: an equals sign is missing"),
        (b"m,a= f=1", "tag 'a' has no value"),
        (b"m,a f=1", "tag 'a' has no value"),
        (b"m,=b f=1", "a tag has no name"),
        (b"m,a=b=c f=1", "equals sign"),
        (b"m,a=1,a=2 f=1", "tag 'a' is given twice"),
        (b"m,a=1,a=1 f=1", "tag 'a' is given twice"),
        (b"m =1", "a field has no name"),
        (b"m f=", "field 'f': it has no value"),
        (b"m f=1,", "a field has no name"),
        (b"m f=1,,g=2", "a field has no name"),
        (b"m f=1, g=2", "a field has no name"),
        (b"m f,1=g=2", "an equals sign is missing"),
        (b"m f=1=2", "1=2 is not a float"),
        (b"m f=,g5=3", "field 'f': it has no value"),
        (b"m f=1,g=9i3", "9i3 is not a float"),
        (b"m f=1,g=i93", "i93 is not a float"),
        (b"m f=NaN", "NaN can't be stored"),
        (b"m f=nan", "nan can't be stored"),
        (b"m f=+Inf", "Inf can't be stored"),
        (b"m f=-infinity", "infinity can't be stored"),
        (b"m f=1e999", "out of the range"),
        (b"m f=1.0i", "1.0i is not a float, integer"),
        (b"m f=i", "i is not a float"),
        (b"m f=1_000", "1_000 is not a float"),
        (b"m f=0x10", "0x10 is not a float"),
        (b"m f=--1", "--1 is not a float"),
        (b"m f=+1", "+1 is not a float"),
        (b"m f=+1i", "+1i is not a float"),
        (b"m f=tRUE", "tRUE is not a float"),
        (b"m f=9223372036854775808i", "out of the range of 64 bits"),
        (b"m f=-9223372036854775809i", "out of the range of 64 bits"),
        (b"m f=18446744073709551616u", "out of the range of 64 bits"),
        (b"m f=-1u", "-1u is not a float"),
        (b"m f=" + b"9" * 10_000 + b"i", "out of the range of 64 bits"),
        (b"m f='x'", "'x' is not a float"),
        (b'm f="x', "field 'f': the string is not closed"),
        (b'm f="x"y', "text after the closing quote"),
        (b"m f=1 now", "timestamp 'now' is not an integer"),
        (b"m f=1 1.5", "timestamp '1.5' is not an integer"),
        (b"m f=1 1 2", "timestamp '1 2' is not an integer"),
        (b"m f=1 9223372036854775807", "out of the range of 64 bits"),
        (b"m f=1 -9223372036854775807", "out of the range of 64 bits"),
        (b"m f=1\t1", "is not a float"),
        (b"m f=1 1\t", "is not an integer"),
        (b"m,a=" + b"x" * 70_000 + b" f=1", "more than 65535 bytes"),
        (b"m " + b"f" * 70_000 + b"=1", "more than 65535 bytes"),
        (b"m f" + b"1" * 70_000 + b"=1", "more than 65535 bytes"),
        (b"m\xff f=1", "not valid UTF-8"),
        (b"m,a=\xed\xa0\x80 f=1", "not valid UTF-8"),
        ("m f=\u0661".encode(), "is not a float"),
    ],
)
def test_an_invalid_line_is_reported_and_its_neighbors_are_accepted(
    line: bytes, reason: str
) -> None:
    result = parse(b"m f=1 1\n" + line + b"\nm f=2 2\nm f=t 3\n", default_time_ns=NOW_NS)

    assert [point.time_ns for point in result.points] == [1, 2, 3]
    assert [error.line_number for error in result.errors] == [2]
    assert reason in result.errors[0].reason


def test_a_timestamp_out_of_range_after_the_precision_is_rejected() -> None:
    result = parse(b"m f=1 9223372036854775807", precision="s", default_time_ns=NOW_NS)

    assert [error.line_number for error in result.errors] == [1]


def test_line_numbers_count_the_lines_inside_strings() -> None:
    errors = faults(b'm s="one\ntwo\nthree",x=bad 1\nm f=1 1\nm f=bad 1\n')

    assert [error.line_number for error in errors] == [1, 5]


def test_an_unclosed_string_swallows_only_its_own_line() -> None:
    result = parse(b'm f=1 1\nm f="open\nm f=2 2\n', default_time_ns=NOW_NS)

    assert [point.time_ns for point in result.points] == [1, 2]
    assert [error.line_number for error in result.errors] == [2]


def test_lines_in_the_string_of_an_invalid_line_are_not_points() -> None:
    result = parse(b'm bad=1.0i,s="x\nforged f=1 1\ny" 1\n', default_time_ns=NOW_NS)

    assert result.points == []


@pytest.mark.parametrize("start", [b"m f=bad", b"m,a", b"m,a=b ", b'm f="', b"m f=1 x", b"\\"])
def test_a_long_invalid_line_is_truncated_in_the_error(start: bytes) -> None:
    (error,) = faults(start + b"x" * 100_000)

    assert len(error.text) < 400
    assert len(error.reason) < 400


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", [b"9", b"\\", b'"', b"=", b",", b" ", b"a=", b'="', b"\\,", b"e1"]
)
@pytest.mark.parametrize("start", [b"", b"m f=", b"m,", b'm f="', b"m f=1 "])
def test_a_long_body_of_anything_is_parsed_in_linear_time(start: bytes, piece: bytes) -> None:
    body = start + piece * (250_000 // len(piece)) + b"!"

    assert parse(body, default_time_ns=NOW_NS).points == []


def test_an_empty_body_has_no_points() -> None:
    assert good("") == []
