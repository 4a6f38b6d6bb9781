"""Samples that land in hours which were moved already are moved as well."""

import pytest
from _pytest.mark import ParameterSet

from tests.unit.timeseries.migration_samples import (
    ACME,
    ALL,
    HOUR_NS,
    START_NS,
    move,
    never,
    rows_of,
    stop_after,
    write_history,
)
from timeseries.duckdb.store import DuckDBStore
from timeseries.migration.migration import Migration, Progress
from timeseries.migration.state import StateFile
from timeseries.points import Point
from timeseries.store import write

LATE_NS = {
    "in a recorded hour": START_NS + 7,
    "before the first": START_NS - 30 * HOUR_NS,
    "in a gap": START_NS + 60 * HOUR_NS,
    "after the last": START_NS + 90 * HOUR_NS,
}


def mostly_nightly(*chosen: int) -> list[ParameterSet]:
    """Return all times, of which those that are not chosen are for the night."""
    return [
        pytest.param(late_ns, id=name, marks=() if number in chosen else pytest.mark.nightly)
        for number, (name, late_ns) in enumerate(LATE_NS.items())
    ]


def write_with_a_gap(store: DuckDBStore) -> None:
    """Write two days, and one more hour after another day and a half."""
    write_history(store, hours=48, every_seconds=1800)
    last = Point("gpu", {}, {"power_watts": 1.0}, START_NS + 84 * HOUR_NS)
    write(store, [last], identity=ACME)


@pytest.mark.parametrize("late_ns", mostly_nightly(0, 3))
def test_late_samples_of_recorded_hours_are_moved_when_a_move_goes_on(
    late_ns: int, source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_with_a_gap(source)
    move(source, destination, state, should_stop=stop_after(7))
    write(source, [Point("gpu", {"gpu": "late"}, {"power_watts": 9.0}, late_ns)], identity=ACME)

    outcome = move(source, destination, state)

    assert outcome.is_complete
    assert rows_of(destination) == rows_of(source)
    assert rows_of(destination, "host") == rows_of(source, "host")
    assert outcome.points == len(rows_of(source)) + len(rows_of(source, "host"))


@pytest.mark.parametrize("late_ns", mostly_nightly(1, 2))
def test_late_samples_that_land_during_a_move_are_moved_at_its_end(
    late_ns: int, source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_with_a_gap(source)
    late = [Point("gpu", {"gpu": "late"}, {"power_watts": 9.0}, late_ns)]

    def land(progress: Progress) -> None:
        if late and progress.chunk.measurement == "host":
            write(source, [late.pop()], identity=ACME)

    moving = Migration(source, destination, ALL, state=state, pause=lambda _seconds: None)
    outcome = moving.run(should_stop=never, on_progress=land)

    assert (outcome.is_complete, late) == (True, [])
    assert rows_of(destination) == rows_of(source)


def test_only_hours_that_changed_are_read_again(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=72, every_seconds=1800)
    move(source, destination, state)
    late = Point("host", {}, {"load": 9.0}, START_NS + 30 * HOUR_NS + 1)
    write(source, [late], identity=ACME)

    seen: list[Progress] = []
    move(source, destination, state, seen=seen)

    assert {(progress.chunk.measurement, progress.chunk.start_ns) for progress in seen} == {
        ("host", START_NS + 26 * HOUR_NS)  # the day that begins at midnight
    }
    assert rows_of(destination, "host") == rows_of(source, "host")


def test_half_a_line_that_a_kill_has_left_does_not_count(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    total = write_history(source, hours=72, every_seconds=1800)
    move(source, destination, state)
    whole = state.path.read_bytes()
    state.path.write_bytes(whole[:-9])

    outcome = move(source, destination, state)

    assert (outcome.points, outcome.is_complete) == (total, True)
    assert state.path.read_bytes() == whole
    assert rows_of(destination) == rows_of(source)
