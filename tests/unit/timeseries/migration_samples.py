"""Helpers for migration and export tests: sample data, and a migration that can be stopped."""

from collections.abc import Callable, Iterator

from timeseries.duckdb.store import DuckDBStore
from timeseries.migration.compare import Selection
from timeseries.migration.migration import Migration, MigrationResult, Progress
from timeseries.migration.state import StateFile
from timeseries.points import Point
from timeseries.store import ScanQuery, Store, write

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
# A whole hour: 3,600 x 472,222 seconds.
START_NS = 1_699_999_200 * SECOND_NS
END_NS = START_NS + 1000 * HOUR_NS
APPLIANCES = (
    {"tenant": "acme", "appliance": "a1"},
    {"tenant": "acme", "appliance": "a2"},
    {"tenant": "globex", "appliance": "g1"},
)
ALL = Selection(start_ns=0, end_ns=END_NS)
ACME = {"tenant": "acme", "appliance": "a1"}


def write_history(store: Store, *, hours: int, every_seconds: int = 300) -> int:
    """Write two measurements of three appliances for some hours; return the number of points."""
    written = 0
    for identity in APPLIANCES:
        points = list(_history(hours, every_seconds))
        assert write(store, points, identity=identity) == []
        written += len(points)
    return written


def _history(hours: int, every_seconds: int) -> Iterator[Point]:
    for second in range(0, hours * 3600, every_seconds):
        time_ns = START_NS + second * SECOND_NS
        for gpu in ("0", "1"):
            fields = {"power_watts": 300.0 + second % 7, "count": second}
            yield Point("gpu", {"gpu": gpu}, fields, time_ns)
        yield Point("host", {}, {"is_up": True, "kernel": "6.1"}, time_ns)


def all_of(measurement: str) -> ScanQuery:
    """Return the scan of a whole measurement."""
    return ScanQuery(measurement=measurement, start_ns=0, end_ns=END_NS, tenants=None)


def rows_of(store: Store, measurement: str = "gpu") -> list[tuple[object, ...]]:
    """Return every point of a measurement as a comparable row, duplicates included, sorted."""
    points = (p for batch in store.scan(all_of(measurement)) for p in batch.points())
    return sorted(
        (p.time_ns, *sorted(p.tags.items()), *sorted((k, str(v)) for k, v in p.fields.items()))
        for p in points
    )


def never() -> bool:
    return False


def move(
    source: DuckDBStore,
    destination: DuckDBStore,
    state: StateFile,
    *,
    selection: Selection = ALL,
    should_stop: Callable[[], bool] = never,
    seen: list[Progress] | None = None,
) -> MigrationResult:
    moving = Migration(source, destination, selection, state=state, pause=lambda _seconds: None)

    def note(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress)

    return moving.run(should_stop=should_stop, on_progress=note)


def stop_after(calls: int) -> Callable[[], bool]:
    answers = iter([False] * calls)
    return lambda: next(answers, True)
