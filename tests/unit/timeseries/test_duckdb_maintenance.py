"""How the embedded store looks after its file: crashes under load, retention and its size."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from timeseries.duckdb.cold import maintenance
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Block, Point
from timeseries.store import HOUR_NS, Aggregate, LatestQuery, RangeQuery, ScanQuery, Store, write

ACME = {"tenant": "acme", "appliance": "a1"}
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
    counts: dict[int, int] = {}
    for batch in store.scan(query):
        for point in batch.points():
            number = point.fields["number"]
            assert isinstance(number, int)
            counts[number] = counts.get(number, 0) + 1
    return counts


def test_acknowledged_batches_survive_repeated_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    acknowledged: set[int] = set()
    for kill in range(2):
        acknowledged |= killed_under_load(path, first=kill * 1_000_000, after=40 + 50 * kill)

    store = DuckDBStore(path)
    gpus, hosts = numbers(store, "gpu"), numbers(store, "host")
    store.close()

    assert len(acknowledged) >= 130
    assert acknowledged <= hosts.keys()
    # A batch is complete or absent.
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

    sizes = [len(batch) for batch in store.scan(forever("gpu"))]
    store.close()
    assert answers == [[]] * 5
    assert sum(sizes) == 6 * POINTS_AN_HOUR


def forever(measurement: str) -> ScanQuery:
    return ScanQuery(measurement=measurement, start_ns=0, end_ns=2**62, tenants=None)


def test_prepared_statements_accept_a_new_column(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    for value in range(3):
        write(store, [Point("gpu", {}, {"a": float(value)}, value)], identity=ACME)
        write(store, [Point("gpu", {}, {"a": 0.5, f"b{value}": 1}, 100 + value)], identity=ACME)

    query = LatestQuery(measurement="gpu", fields=("a", "b0", "b2"), since_ns=0, tenants=None)
    assert store.latest(query)[0].values == {"a": 0.5, "b0": 1, "b2": 1}
    assert sum(map(len, store.scan(forever("gpu")))) == 6
    store.close()


# The peak of this process: `ru_maxrss` would begin with that of its parent, a worker of pytest.
WIDE = """
import re, sys
from pathlib import Path
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Point
from timeseries.store import HOUR_NS

store = DuckDBStore(Path(sys.argv[1]))
for fields in (1, int(sys.argv[2])):
    points = [Point("wide", {}, {f"f{n}": float(n) for n in range(fields)}, HOUR_NS + fields)]
    store.submit(Batch.of(points), identity={"tenant": "acme", "appliance": "gpu-01"}).result()
    store.maintain(now_ns=int(sys.argv[3]) * HOUR_NS)
peak_kib = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(int(peak_kib) // 1024)
store.close()
"""


@pytest.mark.parametrize(
    ("fields", "hours", "max_mib"),
    [
        (400, 3, 600),
        # Sealed, with all of its aggregates, which takes a minute.
        pytest.param(200, 72, 1_000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)]),
    ],
)
def test_a_wide_measurement_takes_little_memory(
    tmp_path: Path, fields: int, hours: int, max_mib: int
) -> None:
    """Its columns and aggregates once took memory with the square of the fields: gigabytes."""
    path = tmp_path / "samples.duckdb"
    run = subprocess.run(
        [sys.executable, "-c", WIDE, str(path), str(fields), str(hours)],
        capture_output=True,
        check=True,
    )
    assert int(run.stdout) < max_mib
    store = DuckDBStore(path)
    query = RangeQuery(
        measurement="wide",
        fields=("f0", "f1", f"f{fields - 1}"),
        aggregate=Aggregate.SUM,
        start_ns=HOUR_NS,
        end_ns=2 * HOUR_NS,
        tenants=None,
        group_by=(),
        step_ns=HOUR_NS,
    )
    assert [series.values for series in store.query_range(query)] == [
        [0.0],
        [1.0],
        [fields - 1.0],
    ]
    store.close()


def test_maintenance_forces_no_checkpoint_while_much_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "QUIET_POINTS", 1)
    store = DuckDBStore(tmp_path / "samples.duckdb")
    write(store, [Point("gpu", {}, {"number": 1}, 1)], identity=ACME)

    store.maintain(now_ns=0)
    busy = store.database.wal_bytes
    store.maintain(now_ns=0)  # nothing was written since

    assert store.database.wal_bytes < busy
    store.close()
