"""Few windows are aggregated one by one, and give what all of them together give."""

from collections.abc import Iterator

import pytest

from tests.fixtures.memory_stores import memory_store
from tests.unit.timeseries.rollup_samples import ACME, gpu, write_all
from timeseries.duckdb.query import sql
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Aggregate, RangeQuery, Series

SPANS = ((0, 100), (-100, 100), (-35, -5), (7, 8), (99, 101), (-1, 0), (50, 50), (60, 40))
STEPS_NS = (None, 10, 25, 33, 100, 1_000)


@pytest.fixture
def store() -> Iterator[DuckDBStore]:
    """Return a store with samples on both sides of 1970."""
    store = memory_store()
    points = [gpu(time, gpu=str(time % 3), watts=float(time * time)) for time in range(-120, 120)]
    write_all(store, points, ACME)
    yield store
    store.close()


def answer(store: DuckDBStore, span: tuple[int, int], step_ns: int | None) -> list[Series]:
    """Return all aggregates by GPU, every other one with a filter, in turn from step to step."""
    shift = STEPS_NS.index(step_ns)
    return [
        series
        for number, aggregate in enumerate(Aggregate, shift)
        for series in store.query_range(
            RangeQuery(
                measurement="gpu",
                fields=("watts",),
                start_ns=span[0],
                end_ns=span[1],
                aggregate=aggregate,
                step_ns=step_ns,
                tenants=("acme",),
                filters={"appliance": ("a1",)} if number % 2 else {},
                group_by=("gpu",),
            )
        )
    ]


@pytest.mark.parametrize(
    "span",
    [*SPANS[2:5], *(pytest.param(s, marks=pytest.mark.nightly) for s in (*SPANS[:2], *SPANS[5:]))],
)
def test_windows_one_by_one_give_what_they_give_together(
    store: DuckDBStore, span: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step_ns in STEPS_NS:
        one_by_one = answer(store, span, step_ns)
        monkeypatch.setattr(sql, "MAX_SEPARATE_WINDOWS", 0)
        assert answer(store, span, step_ns) == one_by_one
        monkeypatch.undo()


def test_each_window_begins_at_a_multiple_of_the_step(store: DuckDBStore) -> None:
    starts = {time for series in answer(store, (-30, 30), 25) for time in series.times_ns}
    assert starts == {-50, -25, 0, 25}
