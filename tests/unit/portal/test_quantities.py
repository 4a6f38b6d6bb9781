"""Sizes, durations and pieces of logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.showing.logtext import whole_characters
from portal.showing.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8 GiB", 8 * 1024**3),
        ("8gb", 8 * 1024**3),
        ("512m", 512 * 1024**2),
        ("1.5 TiB", 1536 * 1024**3),
        ("1024", 1024),
        ("10 B", 10),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 apples", "8 GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**52))
def test_a_size_written_out_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("5m", 300), ("1h 30m", 5400), ("1d", 86400), ("0.5s", 0.5)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_what_is_no_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration("soon")


def test_durations_are_written_in_two_units() -> None:
    assert format_duration(300) == "5m"
    assert format_duration(93784) == "1d 2h"


@given(st.text(), st.integers(min_value=0, max_value=4000))
def test_a_piece_of_a_log_never_ends_inside_a_character(text: str, cut: int) -> None:
    piece = text.encode("utf-8", errors="ignore")[:cut]
    kept = piece[: whole_characters(piece)]
    assert kept.decode() == kept.decode(errors="replace")
    assert len(piece) - len(kept) < 4


def test_bytes_that_are_no_text_are_not_held_back() -> None:
    assert whole_characters(b"ok\xff") == 3
    assert whole_characters(b"\x80\x80\x80\x80") == 4
