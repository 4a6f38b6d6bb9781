"""Samples that are moved arrive once, whatever stops the move."""

from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from core.errors import ConfigurationError, OverloadedError
from tests.unit.timeseries.migration_samples import (
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
from timeseries.migration.compare import Selection, differences
from timeseries.migration.migration import Migration, Progress
from timeseries.migration.state import StateFile
from timeseries.points import Batch, Point
from timeseries.store import RejectedPoint, write


def test_everything_arrives_with_tags_types_and_times(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    total = write_history(source, hours=5)

    outcome = move(source, destination, state)

    assert (outcome.is_complete, outcome.points, outcome.rejected) == (True, total, 0)
    for measurement in ("gpu", "host"):
        assert rows_of(destination, measurement) == rows_of(source, measurement)
        assert destination.fields(measurement, tenants=None) == source.fields(
            measurement, tenants=None
        )


@pytest.mark.parametrize("calls", [0, 1, 12, 27])
def test_a_move_that_was_stopped_goes_on_without_duplicates(
    calls: int, source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    total = write_history(source, hours=5 * 24, every_seconds=1800)

    first = move(source, destination, state, should_stop=stop_after(calls))
    second = move(source, destination, state)

    assert (first.is_complete, second.is_complete) == (calls >= 24, True)
    assert second.points == total
    assert rows_of(destination) == rows_of(source)
    assert rows_of(destination, "host") == rows_of(source, "host")


def test_what_a_killed_run_wrote_and_did_not_record_is_not_written_again(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    total = write_history(source, hours=3)
    move(source, destination, state)
    state.delete()

    second_run = move(source, destination, state)

    assert second_run.present == total
    assert rows_of(destination) == rows_of(source)


def test_a_partial_copy_is_completed(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=3)
    copied = [
        Point("gpu", {"gpu": "1"}, {"power_watts": 300.0, "count": 0}, START_NS),
        Point("gpu", {"gpu": "other"}, {"power_watts": 1.0, "count": 0}, START_NS),
    ]
    write(destination, copied, identity={"tenant": "acme", "appliance": "a1"})

    outcome = move(source, destination, state)

    assert outcome.present == 1
    extra = set(rows_of(destination)) - set(rows_of(source))
    assert len(rows_of(destination)) == len(rows_of(source)) + 1
    assert [("gpu", "other") in row for row in extra] == [True]


def test_chunks_that_are_recorded_are_not_read_again(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=5)
    move(source, destination, state)

    seen: list[Progress] = []
    second_run = move(source, destination, state, seen=seen)

    assert (second_run.is_complete, seen) == (True, [])


def test_only_the_selection_is_migrated(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=5)
    selection = Selection(
        measurements=("gpu",),
        tenants=("globex",),
        start_ns=START_NS + HOUR_NS,
        end_ns=START_NS + 2 * HOUR_NS,
    )

    move(source, destination, state, selection=selection)

    assert destination.measurements(tenants=None) == ["gpu"]
    assert destination.measurements(tenants=("acme",)) == []
    rows = rows_of(destination)
    assert len(rows) == 2 * 12
    assert rows[0][0] == START_NS + HOUR_NS


def test_progress_reports_chunks_points_and_the_total(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    total = write_history(source, hours=4)
    seen: list[Progress] = []

    move(source, destination, state, seen=seen)

    assert {progress.total_points for progress in seen} == {total}
    assert seen[-1].points == total
    assert len({(progress.chunk.measurement, progress.chunk.start_ns) for progress in seen}) == 4


def test_points_that_the_destination_refuses_are_counted_by_reason(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=1)
    text = Point("host", {}, {"is_up": "yes"}, START_NS)
    for tenant in ("acme", "globex"):
        write(destination, [text], identity={"tenant": tenant, "appliance": "o1"})

    outcome = move(source, destination, state)

    assert outcome.rejected == sum(outcome.reasons.values()) == 3 * 12
    assert "is_up" in next(iter(outcome.reasons))


class BusyStore(DuckDBStore):
    """A store that has too much to do at every other call."""

    calls = 0

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        self.calls += 1
        if self.calls % 2:
            raise OverloadedError("later", retry_after_seconds=7)
        return super().submit(batch, identity=identity)


def test_an_overloaded_destination_is_retried_later(source: DuckDBStore, state: StateFile) -> None:
    write_history(source, hours=3)
    busy, pauses = BusyStore(":memory:"), list[float]()
    moving = Migration(source, busy, ALL, state=state, pause=pauses.append)

    assert moving.run(should_stop=never, on_progress=lambda _progress: None).is_complete

    assert rows_of(busy) == rows_of(source)
    assert set(pauses) == {7}
    busy.close()


def test_stores_that_hold_the_same_do_not_differ(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=3)
    move(source, destination, state)
    counted: list[object] = []
    pauses: list[float] = []

    differing = list(
        differences(source, destination, ALL, on_chunk=counted.append, pause=pauses.append)
    )

    assert (differing, len(counted), pauses) == ([], 4, [])


def test_a_difference_names_chunk_field_and_both_counts(
    source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    write_history(source, hours=3)
    move(source, destination, state)
    late = Point("gpu", {"gpu": "9"}, {"power_watts": 1.0}, START_NS + HOUR_NS)
    write(source, [late], identity={"tenant": "acme", "appliance": "a1"})

    pauses: list[float] = []

    (difference,) = differences(
        source, destination, ALL, on_chunk=lambda _chunk: None, pause=pauses.append
    )

    assert pauses == [2.0] * 5

    assert (difference.chunk.measurement, difference.field) == ("gpu", "power_watts")
    assert (difference.chunk.start_ns, difference.chunk.end_ns) == (
        START_NS,
        START_NS + 2 * HOUR_NS,
    )
    assert (difference.source_count, difference.destination_count) == (145, 144)


@pytest.mark.parametrize("content", ["{", '{"key": "x"}', '{"key": 1}'])
def test_a_damaged_or_foreign_progress_file_is_rejected(
    content: str, source: DuckDBStore, destination: DuckDBStore, state: StateFile
) -> None:
    state.path.parent.mkdir()
    state.path.write_text(content)

    with pytest.raises(ConfigurationError, match=r"one\.json .*delete it"):
        move(source, destination, state)
