"""Which resolution answers which part of a query, by arithmetic in sight."""

from timeseries.duckdb.rollups_coverage import HOUR_NS, MINUTE_NS, Progress, sources
from timeseries.store import Resolution

RAW, MINUTE, HOUR = Resolution.RAW, Resolution.MINUTE, Resolution.HOUR
DAY_NS = 24 * HOUR_NS
# Ten hours and seven minutes are rolled up.
ROLLED = Progress(until={MINUTE: 10 * HOUR_NS + 7 * MINUTE_NS, HOUR: 10 * HOUR_NS})


def read(
    start: int, end: int, step_ns: int | None, progress: Progress, *, has_sketch: bool = False
) -> dict[Resolution, list[tuple[int, int]]]:
    return sources((start, end), step_ns=step_ns, has_sketch=has_sketch, progress=progress)


def test_hours_answer_what_they_can_minutes_and_samples_the_edges() -> None:
    start, end = HOUR_NS + 90 * 1_000_000_000, 11 * HOUR_NS

    assert read(start, end, None, ROLLED) == {
        HOUR: [(2 * HOUR_NS, 10 * HOUR_NS)],
        MINUTE: [
            (HOUR_NS + 2 * MINUTE_NS, 2 * HOUR_NS),
            (10 * HOUR_NS, 10 * HOUR_NS + 7 * MINUTE_NS),
        ],
        RAW: [(start, HOUR_NS + 2 * MINUTE_NS), (10 * HOUR_NS + 7 * MINUTE_NS, end)],
    }


def test_a_step_of_minutes_takes_minutes_alone() -> None:
    assert read(0, 10 * HOUR_NS, 5 * MINUTE_NS, ROLLED) == {MINUTE: [(0, 10 * HOUR_NS)]}


def test_a_step_that_no_window_divides_takes_samples() -> None:
    assert read(0, 10 * HOUR_NS, 90 * 1_000_000_000, ROLLED) == {RAW: [(0, 10 * HOUR_NS)]}


def test_a_short_range_is_read_from_samples() -> None:
    assert read(0, 5 * MINUTE_NS, MINUTE_NS, ROLLED) == {RAW: [(0, 5 * MINUTE_NS)]}


def test_minutes_have_no_sketches() -> None:
    plan = read(0, 10 * HOUR_NS + MINUTE_NS, None, ROLLED, has_sketch=True)

    assert plan == {
        HOUR: [(0, 10 * HOUR_NS)],
        RAW: [(10 * HOUR_NS, 10 * HOUR_NS + MINUTE_NS)],
    }


def test_late_hours_are_read_from_samples() -> None:
    late = Progress(until=ROLLED.until, late={3 * HOUR_NS: frozenset({"a1"})})

    assert read(0, 5 * HOUR_NS, HOUR_NS, late) == {
        HOUR: [(0, 3 * HOUR_NS), (4 * HOUR_NS, 5 * HOUR_NS)],
        RAW: [(3 * HOUR_NS, 4 * HOUR_NS)],
    }


def test_late_hours_whose_samples_are_gone_are_read_from_hours() -> None:
    frozen = Progress(
        until=ROLLED.until, since={RAW: 4 * HOUR_NS}, late={3 * HOUR_NS: frozenset({"a1"})}
    )

    assert read(0, 5 * HOUR_NS, HOUR_NS, frozen) == {HOUR: [(0, 5 * HOUR_NS)]}


def test_what_finer_resolutions_have_no_more_comes_from_coarser_ones() -> None:
    aged = Progress(until=ROLLED.until, since={RAW: 9 * HOUR_NS, MINUTE: 4 * HOUR_NS, HOUR: 0})

    assert read(0, 10 * HOUR_NS, 10 * 1_000_000_000, aged) == {
        RAW: [(9 * HOUR_NS, 10 * HOUR_NS)],
        MINUTE: [(4 * HOUR_NS, 9 * HOUR_NS)],
        HOUR: [(0, 4 * HOUR_NS)],
    }


def test_what_nothing_has_is_sought_among_the_samples() -> None:
    aged = Progress(
        until=ROLLED.until, since={RAW: 9 * HOUR_NS, MINUTE: 8 * HOUR_NS, HOUR: 2 * HOUR_NS}
    )

    assert read(0, 3 * HOUR_NS, HOUR_NS, aged) == {
        RAW: [(0, 2 * HOUR_NS)],
        HOUR: [(2 * HOUR_NS, 3 * HOUR_NS)],
    }
