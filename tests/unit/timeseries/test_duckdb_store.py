"""The embedded store beyond the contract: files, crashes, locks, load and threads."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import duckdb
import pytest

from core.errors import OverloadedError
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Point
from timeseries.store import (
    Aggregate,
    Latest,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    StoreUnavailableError,
    write,
)

ACME = {"tenant": "acme", "appliance": "a1"}

# Writes a row, and says so once the store has acknowledged it, until somebody kills it.
WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import write

store = DuckDBStore(Path(sys.argv[1]))
for number in range(1_000_000):
    points = [Point("gpu", {}, {"number": number, f"field{number % 50}": 1.0}, number)]
    write(store, points, identity={"tenant": "acme", "appliance": "a1"})
    print(number, flush=True)
"""

HOLDS_THE_FILE = """
import sys
from pathlib import Path
from timeseries.duckdb.store import DuckDBStore

store = DuckDBStore(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.duckdb"


@pytest.fixture
def memory_store() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    yield store
    store.close()


def number(value: int) -> Point:
    return Point("gpu", {}, {"number": value}, value)


def count(store: DuckDBStore, field: str = "number") -> float:
    query = RangeQuery(
        measurement="gpu",
        fields=(field,),
        start_ns=0,
        end_ns=2**62,
        aggregate=Aggregate.COUNT,
        tenants=None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


def start_python(program: str, path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    store = DuckDBStore(path)
    write(store, [Point("GPU é", {"t": "x"}, {"a": 1.5, "b": 1, "c": True}, 5)], identity=ACME)
    store.close()

    store = DuckDBStore(path)
    query = LatestQuery(measurement="GPU é", fields=("a", "b", "c"), since_ns=0, tenants=None)
    assert store.latest(query) == [Latest(ACME, 5, {"a": 1.5, "b": 1, "c": True})]
    assert store.tags("GPU é", tenants=None) == ["tenant", "appliance", "t"]
    store.close()


def test_every_acknowledged_row_outlives_kill_9(path: Path) -> None:
    with start_python(WRITES_UNTIL_KILLED, path) as writer:
        assert writer.stdout
        acknowledged = [int(writer.stdout.readline()) for _ in range(200)]
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]

    store = DuckDBStore(path)
    # The row that was being written may be there as well.
    assert count(store) in {len(acknowledged), len(acknowledged) + 1}
    assert acknowledged == list(range(len(acknowledged)))
    assert len(store.fields("gpu", tenants=None)) == 51
    store.close()


def test_a_file_in_use_is_rejected_with_its_owner_and_advice(path: Path) -> None:
    with start_python(HOLDS_THE_FILE, path) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == "open\n"

        with pytest.raises(StoreUnavailableError) as caught:
            DuckDBStore(path)
        holder.stdin.close()

    assert str(path) in caught.value.message
    assert f"in use by process {holder.pid}" in caught.value.message
    assert "Stop that process" in caught.value.message


def test_a_file_that_is_no_database_is_rejected_with_its_reason_and_advice(path: Path) -> None:
    locked = path.with_name("lock.duckdb")
    locked.write_text("not a database")
    with pytest.raises(StoreUnavailableError) as caught:
        DuckDBStore(locked)
    assert "not a valid DuckDB database file" in caught.value.message
    assert "TIMESERIES_URL" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_folder_that_cannot_be_made_is_rejected_with_advice() -> None:
    with pytest.raises(StoreUnavailableError, match="make the folder writable"):
        DuckDBStore(Path("/proc/vedette/metrics.duckdb"))


def test_the_file_can_be_opened_again_after_close(path: Path) -> None:
    DuckDBStore(path).close()

    duckdb.connect(str(path), read_only=True).close()


def test_points_over_the_limit_are_rejected_while_others_wait() -> None:
    store = DuckDBStore(":memory:", max_queued_points=10)
    accepted: list[Future[list[RejectedPoint]]] = []
    points = [number(value) for value in range(9)]

    with pytest.raises(OverloadedError, match="limit is 10"):
        accepted.extend(store.submit(Batch.of(points), identity=ACME) for _ in range(100_000))

    assert [future.result() for future in accepted] == [[]] * len(accepted)
    assert write(store, points, identity=ACME) == []
    store.close()


def test_an_empty_queue_accepts_a_body_larger_than_its_limit() -> None:
    store = DuckDBStore(":memory:", max_queued_points=10)

    write(store, [number(value) for value in range(50)], identity=ACME)

    assert count(store) == 50
    store.close()


def test_a_sender_that_gave_up_waiting_harms_nobody(memory_store: DuckDBStore) -> None:
    futures = [memory_store.submit(Batch.of([number(value)]), identity=ACME) for value in range(50)]
    cancelled = [future.cancel() for future in futures]

    write(memory_store, [number(1000)], identity=ACME)

    assert count(memory_store) == 51 - sum(cancelled)


def test_threads_read_while_others_write_and_add_columns(memory_store: DuckDBStore) -> None:
    failures: list[BaseException] = []
    counts: list[list[float]] = [[], []]

    def write_rows() -> None:
        for value in range(100):
            point = Point("gpu", {f"t{value % 10}": "x"}, {"number": value, f"f{value}": 1}, value)
            write(memory_store, [point], identity=ACME)

    def read_rows(seen: list[float]) -> None:
        try:
            while not seen or seen[-1] < 100:
                seen.append(count(memory_store))
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            failures.append(error)

    threads = [threading.Thread(target=read_rows, args=(seen,)) for seen in counts]
    for thread in threads:
        thread.start()
    write_rows()
    for thread in threads:
        thread.join(timeout=60)

    assert failures == []
    assert [seen == sorted(seen) and seen[-1] == 100 for seen in counts] == [True, True]


def test_a_measurement_with_too_many_columns_is_rejected(memory_store: DuckDBStore) -> None:
    wide = {f"f{index}": 1.0 for index in range(999)}

    (rejected,) = write(memory_store, [Point("gpu", {}, wide, 1), number(2)], identity=ACME)

    assert rejected.position == 0
    assert "over 1000 tags and fields" in rejected.reason
    assert memory_store.fields("gpu", tenants=None) == {"number": "integer"}


def test_statements_cannot_reach_other_files(memory_store: DuckDBStore) -> None:
    with pytest.raises(duckdb.Error, match="disabled"):
        memory_store.database.cursor().execute("COPY (SELECT 1) TO '/tmp/leak.csv'")
