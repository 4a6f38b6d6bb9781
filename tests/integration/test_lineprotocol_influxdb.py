"""Odd lines, one by one, through a real InfluxDB 1.6 and through the codec: both mean the same.

Where they differ on purpose the line stands in `DEVIATIONS` with the reason's name in
docs/decisions/0006-line-protocol.md.
"""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import requests

from tests.fixtures.databases import influxdb
from timeseries.lineprotocol.parser import NS_PER_UNIT, parse

pytestmark = pytest.mark.nightly

NOW_NS = 1_700_000_000_000_000_000
EARLIEST_NOW_NS = 1_700_000_000_000_000_001
TYPES = {float: "float", int: "integer", bool: "boolean", str: "string"}
Row = tuple[str, dict[str, str], dict[str, tuple[object, str]], int | str]

VALUES = (
    "1",
    "1.",
    ".5",
    "-.5",
    "-0",
    "007",
    "1e5",
    "1E5",
    "1e+5",
    "1e-05",
    "1e",
    "1e5i",
    "1e400",
    ".",
    "-",
    "--1",
    "+1",
    "+.5",
    "+93i",
    "1.2.3",
    "1-2",
    "0x10",
    "1_000",
    "NaN",
    "nan",
    "Inf",
    "-inf",
    "infinity",
    "93i",
    "-93i",
    "007i",
    "-0i",
    "1.0i",
    "93I",
    "i",
    "9i3",
    "i93",
    "-1u",
    "9223372036854775807i",
    "9223372036854775808i",
    "-9223372036854775808i",
    "-9223372036854775809i",
    "12345678901234567890123",
    "0.1234567890123456789",
    "t",
    "T",
    "true",
    "True",
    "TRUE",
    "f",
    "F",
    "false",
    "False",
    "FALSE",
    "tRUE",
    "yes",
    "",
    "1=2",
    "1#x",
    "1\t",
    "\x0b1",
    "\u0661",
    '""',
    '"a\nb"',
    '"a\r\nb"',
    '"a\\\nb"',
    '"a',
    'a"b"',
    "'a'",
    '"a""',
    r'"a\"b"',
    r'"a\\b"',
    r'"a\\"',
    r'"a\"',
    r'"a\nb"',
    r'"a\\\"b"',
    '"a,b=c d"',
    '"\x00"',
    '"#"',
)
TIMES = (
    "",
    " ",
    " \t",
    " \0",
    "  5",
    " 5 ",
    " 5 \t",
    " 5\t",
    "\t5",
    " 5 6",
    " 5x",
    " 1.5",
    " -5",
    " +5",
    " 0",
    " -0",
    " 007",
    " 9223372036854775806",
    " 9223372036854775807",
    " 9223372036854775808",
    " -9223372036854775806",
    " -9223372036854775807",
    " -",
    " now",
    " 1_0",
    " # x",
)
LINES = (
    "m,a=1,a=2 f=1 1",
    "m,a=1,a=1 f=1 1",
    "m,a= f=1 1",
    "m,a=,b=2 f=1 1",
    "m,=b f=1 1",
    "m,a f=1 1",
    "m,b=2,a=1 f=1 1",
    "m,a=b=c f=1 1",
    "m, f=1 1",
    "m,a=1, f=1 1",
    ",a=1 f=1 1",
    "m,f=1 f=2 1",
    "m,_field=x f=1 1",
    "m  f=1 5",
    " m f=1 5",
    "\tm f=1 5",
    "\0m f=1 5",
    "m\tf=1 5",
    "m \tf=1 \t5",
    "m f=1, g=2 5",
    "m f=1 ,g=2 5",
    "m f",
    "m",
    "m f=1,",
    "m f=1, 5",
    "m f=1,,g=2 5",
    "m ,f=1 5",
    "m =1 5",
    "m f=1,f=2 5",
    "m f=1,g 5",
    "m f,g=1 5",
    "# comment",
    " # comment",
    "#m f=1 1",
    "m# f=1 1",
    "",
    "  ",
    "\t",
    "\0",
    "m\0 f=1 1",
    "m f=1 1\0",
    "m,a=\0b f=1 1",
    "m,a=x\x0bf f=1 1",
    "m \x0bf=1 1",
    'm f="a=",g="b" 1',
    'm f="x",g="y z" 1',
    r"m\ x f=1 1",
    r"m\,x f=1 1",
    r"m\=x f=1 1",
    "m=x f=1 1",
    'm"x f=1 1',
    r"m\x f=1 1",
    r"m\\x f=1 1",
    r"m\ f=1 1",
    r"m\,a=b f=1 1",
    r"m,a\ b=c\ d f=1 1",
    r"m,a\,b=c\,d f=1 1",
    r"m,a\=b=c\=d f=1 1",
    r"m,a=b\ f=1 1",
    r"m,a=b\\ f=1 1",
    r"m,a=b\,c=d f=1 1",
    r"m,a=b\\,c=d f=1 1",
    r"m,a=C:\dir f=1 1",
    'm,a="x" f=1 1',
    'm,a="x y" f=1 1',
    'm,a="x,y" f=1 1',
    r"m,a\\=b f=1 1",
    r"m,a\=1 f=1 1",
    r"m a\ b=1 1",
    r"m a\,b=1 1",
    r"m a\=b=1 1",
    r"m a\b=1 1",
    r"m a\\b=1 1",
    r"m a\\=1 1",
    'm "a"=1 1',
    'm "a b"=1 1',
    'm "a=1 1',
    'm a"=1 1',
    'm a"b=1,c="d" 1',
    r"m f\=1 1",
    'm,a=b"c f=1 1',
    'm,a="b f="c d" 1',
    'm a="x y" 1',
    'm a"b="x y" 1',
    'm f="x\ny",g=1.0i 1\nm h=1 1',
    "\ufeffm f=1 1",
    "m\x01,a=x\x02y f\x1f=1 1",
    "m\tx,a\tb=c\td f=1 1",
    "m,a=é f=1,ü=2 1",
    'm f=true,g=1i,h=2,i="s" 1',
    "m f=1 1\n\n\nm f=2 2",
    "m " + "f" * 70_000 + "=1 1",
    "m,a=" + "x" * 70_000 + " f=1 1",
    "m" * 70_000 + " f=1 1",
    "m," + "a" * 30_000 + "=b " + "f" * 30_000 + "=1 1",
)
DEVIATIONS = (
    b"\r",
    b"m f=1 1\r",
    b"m f=1\r",
    b"m f=t\r",
    b'm f="a"\r\nm f=1 1',
    b"m f=1 1\r\nm f=2 2\r\n",  # CRLF
    b"m f=93u 1",
    b"m f=9223372036854775808u 1",
    b"m f=18446744073709551615u 1",  # unsigned
    b"m,a=\xff f=1 1",
    b'm f="\xff" 1',  # UTF-8
    b'm f="a"b 1',  # closing quote
    b"m,t=a\\\nb f=1 1",
    b'm f="open\nm f=1 1',
    b'm f=1 1\nm f="open\nm g=2 2',  # one bad line
    b"m f=1,f=2i 5",
    b'm f=1i,f="x" 1',  # field twice
    b"m\\\\ x f=1 1",
    b"m\\\\,a=1 f=1 1",
    b"m a\\\\,b=1 1",  # two backslashes
    b"m,time=5 f=1 1",
    b"m time=5,f=1 1",
    b"m time=5 1",  # names of the store
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with influxdb(tmp_path_factory.mktemp("influxdb")) as url:
        yield url


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count()


CASES = [
    *(f"m f={value} 1".encode() for value in VALUES),
    *(f"m f=1{time}".encode() for time in TIMES),
    *(line.encode() for line in LINES),
    b"m\xff f=1 1",
    b"m \xff=1 1",
    b"m f=\xff 1",
]


@pytest.mark.parametrize("line", CASES, ids=lambda line: repr(line[:40]))
def test_a_line_means_what_it_means_to_influxdb(
    server: str, numbers: Iterator[int], line: bytes
) -> None:
    assert by_codec(line) == by_influxdb(server, f"d{next(numbers)}", line)


@pytest.mark.parametrize("line", DEVIATIONS, ids=repr)
def test_what_is_listed_as_a_deviation_is_one(
    server: str, numbers: Iterator[int], line: bytes
) -> None:
    assert by_codec(line) != by_influxdb(server, f"d{next(numbers)}", line)


@pytest.mark.parametrize("precision", ["ns", "u", "ms", "s", "m", "h"])
def test_the_time_of_the_server_is_truncated_to_the_unit_of_the_request(
    server: str, precision: str
) -> None:
    database = f"t_{precision}"
    requests.post(f"{server}/query", {"q": f"CREATE DATABASE {database}"}, timeout=60)
    query = {"db": database, "precision": precision}
    requests.post(f"{server}/write", b"m f=1", params=query, timeout=60).raise_for_status()

    ((row,),) = [series["values"] for series in ask(server, database, "SELECT f FROM m")]
    (point,) = parse(b"m f=1", precision=precision, default_time_ns=NOW_NS + 123_456_789).points
    unit_ns = NS_PER_UNIT[precision]
    assert (row[0] % unit_ns, point.time_ns % unit_ns) == (0, 0)


def by_codec(line: bytes) -> tuple[bool, list[Row]]:
    """Return whether all was accepted, and what was understood."""
    result = parse(line, default_time_ns=NOW_NS)
    rows: list[Row] = [
        (
            point.measurement,
            dict(point.tags),
            {name: (value, TYPES[type(value)]) for name, value in point.fields.items()},
            "now" if point.time_ns == NOW_NS else point.time_ns,
        )
        for point in result.points
    ]
    return not result.errors, sorted(rows, key=repr)


def by_influxdb(url: str, database: str, line: bytes) -> tuple[bool, list[Row]]:
    """Return whether a fresh database accepted all, and what it answers when it is read."""
    requests.post(f"{url}/query", {"q": f"CREATE DATABASE {database}"}, timeout=60)
    written = requests.post(f"{url}/write", line, params={"db": database}, timeout=60)
    kinds = {
        name: kind
        for series in ask(url, database, "SHOW FIELD KEYS")
        for name, kind in series["values"]
    }
    rows: list[Row] = [
        (
            series["name"],
            {name: value for name, value in series["tags"].items() if value}
            if "tags" in series
            else {},
            {
                name: (value, kinds[name])
                for name, value in zip(series["columns"][1:], row[1:], strict=True)
                if value is not None
            },
            "now" if EARLIEST_NOW_NS < row[0] < 2 * NOW_NS else row[0],
        )
        for series in ask(url, database, "SELECT * FROM /.*/ GROUP BY *")
        for row in series["values"]
    ]
    requests.post(f"{url}/query", {"q": f"DROP DATABASE {database}"}, timeout=60)
    return written.status_code == requests.codes.no_content, sorted(rows, key=repr)


def ask(url: str, database: str, query: str) -> list[dict[str, Any]]:
    """Return the series of an InfluxQL answer."""
    reply = requests.get(
        f"{url}/query", {"db": database, "epoch": "ns", "q": query}, timeout=60
    ).content
    answer = json.loads(reply.decode(errors="replace"))
    return list(answer["results"][0].get("series", []))
