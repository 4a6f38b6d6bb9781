"""Threads that write to SQLite wait in a line, in which tenants take turns."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from core import turns
from core.db import begin_writing, create_database_engine, create_session_factory, transaction
from core.errors import DatabaseUnavailableError
from core.turns import WRITER, WriteTurns
from tests.fixtures.polling import eventually


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'turns.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE names (name TEXT UNIQUE)"))
    yield engine
    engine.dispose()


def insert(engine: Engine, name: str) -> None:
    with transaction(create_session_factory(engine)) as session:
        session.execute(text("INSERT INTO names VALUES (:name)"), {"name": name})


def names(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM names ORDER BY rowid")).scalars())


def waiting_thread(turns: WriteTurns, writer: str, work: Callable[[], None]) -> threading.Thread:
    """Return a thread that waits for its turn already."""
    before = turns.length

    def run() -> None:
        assert turns.acquire(writer, timeout_seconds=30)
        work()
        turns.release()

    thread = threading.Thread(target=run)
    thread.start()
    assert eventually(lambda: turns.length == before + 1)
    return thread


def test_a_tenant_with_many_writes_delays_another_by_one() -> None:
    turns, order = WriteTurns(), list[str]()
    assert turns.acquire("globex", timeout_seconds=0)
    writers = ("globex 1", "globex 2", "globex 3", "acme 1", "globex 4", "acme 2")
    threads = [
        waiting_thread(turns, writer.split()[0], partial(order.append, writer))
        for writer in writers
    ]
    turns.release()
    for thread in threads:
        thread.join()
    assert order == ["acme 1", "globex 1", "acme 2", "globex 2", "globex 3", "globex 4"]


def test_a_writer_that_has_waited_too_long_leaves_the_queue() -> None:
    turns = WriteTurns()
    assert turns.acquire("acme", timeout_seconds=0)
    assert not turns.acquire("globex", timeout_seconds=0.01)
    turns.release()
    assert turns.acquire("initech", timeout_seconds=0)


class ReleasedMeanwhile:
    """The lock of turns, one of which is released just before it is acquired a second time."""

    def __init__(self, turns: WriteTurns) -> None:
        self.turns = turns
        self.lock = threading.Lock()
        self.entries = 0

    def __enter__(self) -> None:
        self.entries += 1
        if self.entries == 2:
            self.turns.release()
        self.lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self.lock.release()


def test_a_turn_that_comes_as_the_time_is_over_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = WriteTurns()
    assert turns.acquire("acme", timeout_seconds=0)
    monkeypatch.setattr(turns, "_lock", ReleasedMeanwhile(turns))
    assert turns.acquire("globex", timeout_seconds=0.001)
    turns.release()
    assert turns.acquire("acme", timeout_seconds=0)


def test_the_turn_ends_with_the_transaction(engine: Engine) -> None:
    insert(engine, "first")
    with pytest.raises(IntegrityError):
        insert(engine, "first")
    insert(engine, "second")
    assert names(engine) == ["first", "second"]


def test_a_busy_database_is_reported_and_reading_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TIMEOUT_SECONDS", 0.01)
    with transaction(create_session_factory(engine)) as session:
        begin_writing(session)
        with pytest.raises(DatabaseUnavailableError):
            insert(engine, "second")
        assert names(engine) == []
    insert(engine, "third")
    assert names(engine) == ["third"]


def test_no_writer_fails_beside_many_others(engine: Engine) -> None:
    def write(tenant: str) -> None:
        WRITER.set(tenant)
        for number in range(25):
            insert(engine, f"{tenant} {number}")

    threads = [threading.Thread(target=write, args=(f"tenant {n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(engine)) == 300
