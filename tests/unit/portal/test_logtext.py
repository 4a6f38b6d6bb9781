"""Pieces of logs are cut between characters."""

from hypothesis import given
from hypothesis import strategies as st

from portal.presenters.jobs import whole_characters


@given(st.text(), st.integers(min_value=0, max_value=4000))
def test_a_piece_of_a_log_never_ends_inside_a_character(text: str, cut: int) -> None:
    piece = text.encode("utf-8", errors="ignore")[:cut]
    kept = piece[: whole_characters(piece)]
    assert kept.decode() == kept.decode(errors="replace")
    assert len(piece) - len(kept) < 4


def test_bytes_that_are_no_text_are_not_held_back() -> None:
    assert whole_characters(b"ok\xff") == 3
    assert whole_characters(b"\x80\x80\x80\x80") == 4
