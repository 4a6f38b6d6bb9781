"""Sizes on the command line are written as people write them."""

import pytest

from cli.job import parse_size
from core.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1k", 1024),
        ("512MiB", 512 * 1024**2),
        ("8 GiB", 8 * 1024**3),
        ("1.5g", 3 * 512 * 1024**2),
        ("2TB", 2 * 1024**4),
    ],
)
def test_a_size_counts_in_1024s(text: str, size_bytes: int) -> None:
    assert parse_size(text, option="--memory") == size_bytes


@pytest.mark.parametrize("text", ["", "lots", "-1", "8 GiBs", "1e3"])
def test_what_is_no_size_is_refused_by_the_option_name(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--memory"):
        parse_size(text, option="--memory")
