"""How the embedded store looks after its file: crashes under load, retention and its size."""

import subprocess
import sys
import threading
from pathlib import Path

from timeseries.batch import Batch, Block
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import LatestQuery, ScanQuery, Store, write

ACME = {"tenant": "acme", "appliance": "a1"}
HOUR_NS = 3_600 * 10**9
POINTS_AN_HOUR = 2_000
FIELDS = tuple(f"f{index}" for index in range(10))

# Four senders write batches of several shapes; each says which one the store has acknowledged.
WRITES_UNDER_LOAD = """
import sys, threading
from pathlib import Path
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import write

store = DuckDBStore(Path(sys.argv[1]))
first = int(sys.argv[2])

def send(sender):
    for number in range(first + sender, first + 1_000_000, 4):
        points = [Point("gpu", {"gpu": str(gpu)}, {"number": number}, number) for gpu in range(8)]
        points.append(Point("gpu", {}, {"number": number, f"field{number % 7}": 1.0}, number))
        points.append(Point("host", {}, {"number": number}, number))
        write(store, points, identity={"tenant": "acme", "appliance": f"a{sender}"})
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

for sender in range(4):
    threading.Thread(target=send, args=(sender,)).start()
"""


def killed_under_load(path: Path, *, first: int, after: int) -> set[int]:
    """Return the numbers that were acknowledged by a process before it was killed."""
    command = [sys.executable, "-c", WRITES_UNDER_LOAD, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(after)]
        writer.kill()
        lines += [line for line in writer.stdout if line.endswith("\n")]
    return {int(number) for line in lines for number in line.split()}


def numbers(store: Store, measurement: str) -> dict[int, int]:
    """Return how many points have each number."""
    query = ScanQuery(measurement=measurement, start_ns=0, end_ns=2**62, tenants=None)
    found: dict[int, int] = {}
    for batch in store.scan(query):
        for point in batch.points():
            number = point.fields["number"]
            assert isinstance(number, int)
            found[number] = found.get(number, 0) + 1
    return found


def test_acknowledged_batches_outlive_kill_9_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    acknowledged: set[int] = set()
    for kill in range(3):
        acknowledged |= killed_under_load(path, first=kill * 1_000_000, after=100 + 77 * kill)

    store = DuckDBStore(path)
    gpus, hosts = numbers(store, "gpu"), numbers(store, "host")
    store.close()

    assert len(acknowledged) >= 531
    assert acknowledged <= hosts.keys()
    # A batch is there as a whole or not at all.
    assert set(hosts.values()) == {1}
    assert gpus == dict.fromkeys(hosts, 9)


def hour_of_points(hour: int) -> Batch:
    """Return noise that does not compress, so that the size of the file says how much is kept."""
    noise = [
        [
            ((hour * 7_919 + row * 104_729 + column * 1_299_709) ** 3 % 1_000_003) / 7
            for row in range(POINTS_AN_HOUR)
        ]
        for column in range(len(FIELDS))
    ]
    rows = range(POINTS_AN_HOUR)
    times = [hour * HOUR_NS + row * (HOUR_NS // POINTS_AN_HOUR) for row in rows]
    kinds = (float,) * len(FIELDS)
    return Batch(
        (Block("gpu", (), [()], [0] * POINTS_AN_HOUR, FIELDS, kinds, tuple(noise), times, rows),)
    )


def test_a_file_under_steady_writes_and_retention_stops_growing(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    store = DuckDBStore(path)
    sizes = []
    for hour in range(10, 50):
        assert store.submit(hour_of_points(hour), identity=ACME).result() == []
        store.delete_before((hour - 4) * HOUR_NS)
        sizes.append(path.stat().st_size)
    store.close()

    # Forty hours of samples went through; five are kept.
    kept_bytes = 5 * POINTS_AN_HOUR * (len(FIELDS) + 1) * 8
    assert max(sizes[30:]) <= max(sizes[10:30]) * 1.1
    assert max(sizes) < 5 * kept_bytes


def test_writes_go_on_while_retention_deletes_hour_by_hour(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    for hour in range(30):
        store.submit(hour_of_points(hour), identity=ACME).result()
    deletion = threading.Thread(target=store.delete_before, args=(29 * HOUR_NS,))

    deletion.start()
    answers = [store.submit(hour_of_points(30 + n), identity=ACME).result() for n in range(5)]
    deletion.join(timeout=60)

    kept = [len(batch) for batch in store.scan(forever("gpu"))]
    store.close()
    assert answers == [[]] * 5
    assert sum(kept) == 6 * POINTS_AN_HOUR


def forever(measurement: str) -> ScanQuery:
    return ScanQuery(measurement=measurement, start_ns=0, end_ns=2**62, tenants=None)


def test_a_new_column_is_taken_by_statements_that_were_prepared_before(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    for value in range(3):
        write(store, [Point("gpu", {}, {"a": float(value)}, value)], identity=ACME)
        write(store, [Point("gpu", {}, {"a": 0.5, f"b{value}": 1}, 100 + value)], identity=ACME)

    query = LatestQuery(measurement="gpu", fields=("a", "b0", "b2"), since_ns=0, tenants=None)
    assert store.latest(query)[0].values == {"a": 0.5, "b0": 1, "b2": 1}
    assert sum(map(len, store.scan(forever("gpu")))) == 6
    store.close()
