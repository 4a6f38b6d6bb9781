"""A long write-ahead log is moved into the file, and no sender waits for it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.fixtures.polling import eventually
from timeseries.duckdb.hot import database
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import ScanQuery, write

ACME = {"tenant": "acme", "appliance": "a1"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckDBStore]:
    """A store in a file whose log is long soon, by far not as long as commits would have it."""
    monkeypatch.setattr(database, "CHECKPOINT_MIB", 1 / 16)
    store = DuckDBStore(tmp_path / "samples.duckdb")
    yield store
    store.close()


def write_some(store: DuckDBStore, number: int) -> None:
    """Write 100 points."""
    points = [Point("cpu", {"core": f"{at}"}, {"used": at / 7}, number) for at in range(100)]
    assert write(store, points, identity=ACME) == []


def write_a_long_log(store: DuckDBStore) -> int:
    """Write until the log is long; return how many points."""
    for number in range(1_000):
        if store.database.wal_bytes >= 2**16:
            return 100 * number
        write_some(store, number)
    raise AssertionError("the log stayed short")


def points(store: DuckDBStore) -> int:
    query = ScanQuery(measurement="cpu", start_ns=0, end_ns=2**62, tenants=("acme",))
    return sum(map(len, store.scan(query)))


def test_a_long_log_is_moved_into_the_file(store: DuckDBStore, tmp_path: Path) -> None:
    written = write_a_long_log(store)

    eventually(lambda: store.database.wal_bytes < 2**16, what="a checkpoint")

    write_some(store, 1_000)
    store.close()
    reopened = DuckDBStore(tmp_path / "samples.duckdb")
    assert points(reopened) == written + 100
    reopened.close()


def test_writes_are_acknowledged_during_a_checkpoint(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()

    def checkpoint() -> None:
        begun.set()
        assert released.wait(30)

    monkeypatch.setattr(store.database, "checkpoint", checkpoint)
    written = write_a_long_log(store)
    try:
        assert begun.wait(30)
        write_some(store, 1_000)
        assert points(store) == written + 100
    finally:
        released.set()


def test_a_checkpoint_that_fails_is_tried_again_once_more_was_written(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def checkpoint() -> None:
        tries.append(store.database.wal_bytes)
        raise duckdb.IOException("no space left")

    monkeypatch.setattr(store.database, "checkpoint", checkpoint)
    written = write_a_long_log(store)
    eventually(lambda: len(tries) == 1, what="the first try")

    for number in range(1_000, 2_000):
        if len(tries) > 1:
            break
        write_some(store, number)
        written += 100
    assert tries[1] >= tries[0] + 2**16
    assert "no space left" in caplog.text
    assert points(store) == written
