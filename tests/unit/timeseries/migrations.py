"""How the tests of moving move everything from one store to another, stopped or not."""

from collections.abc import Callable

from tests.unit.timeseries.moving import END_NS
from timeseries.duckdb.store import DuckDBStore
from timeseries.moving.delivery import Outcome
from timeseries.moving.migration import Migration, Progress, Selection
from timeseries.moving.state import StateFile

ALL = Selection(start_ns=0, end_ns=END_NS)
ACME = {"tenant": "acme", "appliance": "a1"}


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
) -> Outcome:
    moving = Migration(source, destination, selection, state=state, pause=lambda _seconds: None)

    def note(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress)

    return moving.run(should_stop=should_stop, on_progress=note)


def stop_after(calls: int) -> Callable[[], bool]:
    answers = iter([False] * calls)
    return lambda: next(answers, True)
