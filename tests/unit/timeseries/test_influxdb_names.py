import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeseries.influxdb.influxql import (
    decode_name,
    drop_tenant_statement,
    encode_key,
    encode_name,
    from_clause,
    identifier,
    literal,
)


@pytest.mark.parametrize(
    "name", ["power_watts", "GPU", "a b", 'a"b', "a\\b", "100%", "a%b", "ü 🔥"]
)
def test_a_name_that_influxdb_can_hold_is_stored_as_it_is(name: str) -> None:
    assert encode_key(name) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a\nb", "a%0Ab"),
        ("a\r", "a%0D"),
        ("a\x00b", "a%00b"),
        ("a\\", "a%5C"),
        ("a\\,b", "a%5C,b"),
        ('a\\"b', 'a%5C"b'),
        ("\tb", "%09b"),
        ("#a", "%23a"),
        ("a#", "a#"),
        ("time", "%74ime"),
        ("%0A", "%250A"),
        ("%2", "%2"),
    ],
)
def test_what_influxdb_cannot_hold_is_escaped(name: str, expected: str) -> None:
    assert encode_key(name) == expected


def test_a_value_may_be_called_time() -> None:
    assert encode_name("time") == "time"


@given(st.text(alphabet=st.one_of(st.sampled_from("%0257AD#\\\n\r\x00time"), st.characters())))
def test_every_name_comes_back(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    assert decode_name(encode_key(name)) == name


@given(st.text(alphabet=st.one_of(st.sampled_from("%0257AD#\\\n\r\x00time"), st.characters())))
def test_no_stored_name_breaks_a_line_or_a_statement(name: str) -> None:
    encoded = encode_name(name)

    assert not set(encoded) & set("\n\r\x00")
    assert not encoded.endswith("\\")
    assert not encoded.startswith("#")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu", '"gpu"'),
        ('gpu"; DROP SERIES FROM /.*/; --', '"gpu\\"; DROP SERIES FROM /.*/; --"'),
        ('gpu\\"', '"gpu\\\\\\""'),
        ("a\nb", '"a\\nb"'),
    ],
)
def test_an_identifier_closes_only_at_its_end(name: str, expected: str) -> None:
    assert identifier(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acme", "'acme'"),
        ("x' OR 'a' = 'a", "'x\\' OR \\'a\\' = \\'a'"),
        ("x\\' OR 1=1", "'x\\\\\\' OR 1=1'"),
    ],
)
def test_a_literal_closes_only_at_its_end(text: str, expected: str) -> None:
    assert literal(text) == expected


def test_statements_hold_hostile_names_as_quoted_text() -> None:
    assert from_clause('gpu"; DROP DATABASE "x') == 'FROM "gpu\\"; DROP DATABASE \\"x"'
    assert drop_tenant_statement("a' OR 'b' = 'b") == (
        "DROP SERIES FROM /.*/ WHERE \"tenant\" = 'a\\' OR \\'b\\' = \\'b'"
    )
