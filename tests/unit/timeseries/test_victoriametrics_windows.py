from timeseries.victoriametrics.client import FIRST_MS
from timeseries.victoriametrics.reader import MAX_WINDOWS, Span, WindowRange, span_of, window_ranges


def test_a_range_without_steps_is_one_window() -> None:
    assert list(window_ranges(Span(1_030, 1_200), None)) == [WindowRange(1_030, 1_200, 170, 1_030)]


def test_whole_windows_are_one_piece() -> None:
    assert list(window_ranges(Span(1_000, 1_300), 100)) == [WindowRange(1_000, 1_300, 100, 1_000)]


def test_cut_windows_at_both_ends_are_pieces_of_their_own() -> None:
    assert list(window_ranges(Span(1_030, 1_350), 100)) == [
        WindowRange(1_030, 1_100, 70, 1_000),
        WindowRange(1_100, 1_300, 100, 1_100),
        WindowRange(1_300, 1_350, 50, 1_300),
    ]


def test_a_range_inside_one_window_is_shown_at_its_start() -> None:
    (piece,) = window_ranges(Span(1_030, 1_060), 100)

    assert piece == WindowRange(1_030, 1_060, 30, 1_000)
    assert piece.label_of(1_060) == 1_000


def test_windows_are_shown_at_their_starts() -> None:
    (piece,) = window_ranges(Span(1_000, 1_300), 100)

    assert [piece.label_of(end) for end in (1_100, 1_200, 1_300)] == [1_000, 1_100, 1_200]


def test_more_windows_than_the_server_answers_are_split() -> None:
    ranges = list(window_ranges(Span(0, 100 * (MAX_WINDOWS + 5)), 100))

    edge = 100 * MAX_WINDOWS
    assert ranges == [WindowRange(0, edge, 100, 0), WindowRange(edge, edge + 500, 100, edge)]


def test_an_empty_span_has_no_windows() -> None:
    assert list(window_ranges(Span(5, 5), None)) == []
    assert list(window_ranges(Span(5, 5), 100)) == []


def test_a_span_begins_and_ends_with_whole_milliseconds_that_the_server_keeps() -> None:
    last_ms = FIRST_MS + 10**12
    start_ns, end_ns = FIRST_MS * 10**6 + 1, (FIRST_MS + 5) * 10**6 + 1

    assert span_of(start_ns, end_ns, last_ms=last_ms) == Span(FIRST_MS + 1, FIRST_MS + 6)
    assert span_of(-(2**70), 2**70, last_ms=last_ms) == Span(FIRST_MS, last_ms + 1)
    assert span_of(end_ns, start_ns, last_ms=last_ms).is_empty
