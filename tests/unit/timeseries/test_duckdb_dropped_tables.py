"""A tenant's table is dropped once its samples are in files, at any moment of reads and deletions.

Each test stops one of them at the moment that a busy machine may stop it at.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pytest

from tests.fixtures.memory_stores import memory_store
from tests.unit.timeseries.killed_sealing import MIDNIGHT_NS, SETTLED_NS, count_by_hour, fill
from tests.unit.timeseries.rollup_samples import ACME, ACME_2, GLOBEX, gpu, write_all
from timeseries.duckdb.hot.staged_series import SeriesIntake
from timeseries.duckdb.query import units
from timeseries.duckdb.schema import Key
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import LatestQuery, ScanQuery, StoreUnavailableError

ACMES, GLOBEXES = Key("acme", "gpu"), Key("globex", "gpu")
LATEST = LatestQuery(measurement="gpu", fields=("x",), since_ns=0, tenants=None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckDBStore]:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    opened = memory_store()
    yield opened
    opened.close()


def emptied(store: DuckDBStore) -> None:
    """Write samples of two tenants and delete them, which leaves an empty table of each."""
    for identity in (ACME, GLOBEX):
        write_all(store, [gpu(MIDNIGHT_NS, x=1.0)], identity)
    store.delete_before(SETTLED_NS)
    assert store.writer.keys("gpu") == [ACMES, GLOBEXES]


def before_each_read(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], object]) -> None:
    """Do something after a reader has found the tables, and before it reads them."""
    fetch, reads = DuckDBStore.fetch, list[int]()

    def stopped(self: DuckDBStore, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        reads.append(len(reads))
        work(reads[-1])
        return fetch(self, text, values)

    monkeypatch.setattr(DuckDBStore, "fetch", stopped)


def test_a_read_that_begins_while_a_table_is_dropped_finds_its_samples(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    forget, counts = SeriesIntake.forget, list[float]()

    def read_first(self: SeriesIntake, cursor: duckdb.DuckDBPyConnection, key: Key) -> None:
        counts.append(count_by_hour(store))
        forget(self, cursor, key)

    monkeypatch.setattr(SeriesIntake, "forget", read_first)
    assert store.maintain(now_ns=SETTLED_NS) == 288

    assert counts == [288]


def test_a_read_begins_again_for_each_table_that_is_dropped_meanwhile(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(store)
    tables = [ACMES, GLOBEXES]
    before_each_read(monkeypatch, lambda n: store.writer.drop(tables[n : n + 1]))

    assert store.latest(LATEST) == []
    assert store.writer.keys("gpu") == []


def test_a_read_begins_again_for_a_table_that_was_dropped_and_made_with_other_columns(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(store)

    def replace_table(number: int) -> None:
        if number == 0:
            store.writer.drop([ACMES])
            write_all(store, [gpu(SETTLED_NS, y=1.0)], ACME_2)
            assert store.measurements(tenants=("acme",)) == ["gpu"]

    before_each_read(monkeypatch, replace_table)
    assert store.latest(LATEST) == []


def test_a_table_that_the_schema_lists_and_that_is_not_there_is_an_error(
    store: DuckDBStore,
) -> None:
    emptied(store)
    with store.database.cursor() as cursor:
        cursor.execute('DROP TABLE "t_acme.gpu"')

    with pytest.raises(StoreUnavailableError, match=r"t_acme\.gpu does not exist"):
        store.latest(LATEST)


def test_a_table_that_can_not_be_dropped_is_read_and_written_on(store: DuckDBStore) -> None:
    emptied(store)
    with store.database.cursor() as cursor:
        cursor.begin()
        cursor.execute('ALTER TABLE "t_acme.gpu" ADD COLUMN "field_y" DOUBLE')
        with pytest.raises(StoreUnavailableError):
            store.writer.drop([ACMES])
        cursor.rollback()

    assert store.writer.keys("gpu") == [ACMES, GLOBEXES]
    write_all(store, [gpu(SETTLED_NS, x=2.0)], ACME)
    assert [latest.values for latest in store.latest(LATEST)] == [{"x": 2.0}]


def test_retention_passes_over_a_table_that_was_dropped_meanwhile(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(store)
    run = store.writer.run

    def drop_first(work: Callable[..., Any]) -> Any:  # noqa: ANN401 - what the work returns
        store.writer.drop([ACMES])
        return run(work)

    monkeypatch.setattr(store.writer, "run", drop_first)
    store.delete_before(SETTLED_NS)
    store.delete_tenant("globex")

    scanned = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=None)
    assert list(store.scan(scanned)) == []
    assert store.writer.keys("gpu") == []
