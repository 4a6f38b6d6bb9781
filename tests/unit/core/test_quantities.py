"""Values, sizes and durations as users read and write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.quantities import (
    format_duration,
    format_size,
    format_value,
    parse_duration,
    parse_size,
    parse_value,
    unit_of,
)
from tests.costs import check_cost


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("temperature_celsius", 71.0, "71 °C"),
        ("temperature_celsius", 71.25, "71.2 °C"),
        ("used_percent", 100.0, "100 %"),
        ("used_bytes", 12.4 * 2**30, "12.4 GiB"),
        ("used_bytes", 1023.0, "1023 B"),
        ("sent_bytes_per_second", 1536.0, "1.5 KiB/s"),
        ("reads_per_second", 12_000.0, "12 k/s"),
        ("sm_clock_hertz", 1.98e9, "2.0 GHz"),
        ("power_watts", 699.6, "700 W"),
        ("load1", 0.5, "0.5"),
        ("throttled", 1.0, "1"),
        ("latency_seconds", 59.5, "59.5 s"),
        ("remaining_seconds", 259_200.0, "3d"),
        ("remaining_seconds", -5400.0, "-1h 30m"),
        ("power_watts", -1.6e-17, "0.0 W"),
        ("power_watts", -0.0, "0 W"),
        ("power_watts", -0.06, "-0.1 W"),
    ],
)
def test_a_value_is_read_with_its_unit(field: str, value: float, text: str) -> None:
    assert format_value(field, value) == text


def test_the_longest_suffix_determines_the_unit() -> None:
    assert unit_of("received_bytes_per_second").symbol == "B/s"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("10 B", 10),
        ("1k", 1024),
        ("512m", 512 * 1024**2),
        ("512MiB", 512 * 1024**2),
        ("8gb", 8 * 1024**3),
        ("8 GiB", 8 * 1024**3),
        ("1.5g", 3 * 512 * 1024**2),
        ("1.5 TiB", 1536 * 1024**3),
        ("2TB", 2 * 1024**4),
    ],
)
def test_sizes_count_in_powers_of_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "lots", "GiB", "-1", "8 apples", "8 GiBs", "1e3"])
def test_text_that_is_not_a_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**52))
def test_an_exact_size_parses_back_to_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes, exact=True)) == size_bytes


def test_a_size_is_short_unless_exact() -> None:
    assert format_size(8 * 1024**3 + 1) == "8.0 GiB"
    assert format_size(8 * 1024**3, exact=True) == "8 GiB"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("5m", 300), ("1h 30m", 5400), ("1d", 86400), ("0.5s", 0.5)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5:30", "5 minutes"])
def test_text_that_is_not_a_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.4, "0s"),
        (59.6, "1m"),
        (119, "1m 59s"),
        (300, "5m"),
        (7199, "1h 59m"),
        (7200, "2h"),
        (93784, "1d 2h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (1.5, "1.5s"), (90, "1m 30s"), (86400, "1d"), (93784, "1d 2h 3m 4s")],
)
def test_an_exact_duration_has_all_units(seconds: float, text: str) -> None:
    assert format_duration(seconds, exact=True) == text


@given(st.integers(min_value=0, max_value=10**9))
def test_an_exact_duration_parses_back_to_itself(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds, exact=True)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["9" * 100_000, "9" * 400 + " GiB", "1d" * 50_000, "1 " * 20_000, "." * 50_000]
)
def test_long_texts_are_no_quantities(text: str) -> None:
    def parse() -> None:
        for parser in (parse_size, parse_duration, lambda value: parse_value("used_bytes", value)):
            with pytest.raises(ValueError, match=r"characters$"):
                parser(text)

    check_cost(parse)


@pytest.mark.parametrize("text", ["9" * 350, "9" * 300 + " TiB", "9999999 TiB"])
def test_a_size_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too large a size"):
        parse_size(text)
