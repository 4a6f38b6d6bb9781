"""Sealing that is killed before and after each step that reaches the disk, or a bucket."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    HOUR_NS,
    START_NS,
    gpu,
    write_all,
)
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import DAY_NS, Aggregate, RangeQuery, ScanQuery, Store

MIDNIGHT_NS = START_NS // DAY_NS * DAY_NS
SETTLED_NS = MIDNIGHT_NS + 2 * DAY_NS

# For each line (number, time) a process maintains the store at that time, and kills itself at
# the moment of that number: there is one before and after each step that reaches the disk.
DIES = """
import os, signal, sys
from pathlib import Path
from timeseries.duckdb.cold import sealing
from timeseries.duckdb.files import manifest
from timeseries.duckdb.query import units
from timeseries.duckdb.store import DuckDBStore

moments = 0
path, bucket = Path(sys.argv[1]), sys.argv[2]

def dying(work, at):
    def pass_moment():
        global moments
        moments += 1
        if moments == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(*args, **kwargs):
        pass_moment()
        result = work(*args, **kwargs)
        pass_moment()
        return result

    return step

def maintain(at, now_ns):
    files = None
    if bucket:
        from timeseries.duckdb.files.s3 import S3Files
        files = S3Files(bucket, folder=path.with_suffix(""), cache_bytes=2**20)
    store = DuckDBStore(path, files=files)
    sealing.write_parquet = dying(sealing.write_parquet, at)
    files = store.database.files
    files.publish = dying(files.publish, at)
    manifest.Manifest.commit = dying(manifest.Manifest.commit, at)
    manifest.Manifest.delete_garbage = dying(manifest.Manifest.delete_garbage, at)
    units.MIN_ROWS = 1
    sealing.MAX_SHARE = 100
    store.maintain(now_ns=now_ns)
    os._exit(moments)

for line in sys.stdin:
    at, now_ns = line.split()
    child = os.fork()
    if child == 0:
        maintain(int(at), int(now_ns))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def kill_at_each_step(
    path: Path,
    *,
    open_them: Callable[[], DuckDBStore],
    files: Callable[[], set[str]],
    bucket: str = "",
) -> None:
    """Kill sealing, then merging, at each step; each sample must be there once after each kill.

    Args:
        path: the database.
        open_them: opens the store.
        files: returns the paths of all its files.
        bucket: where the files are; by default beside the database.
    """
    command = [sys.executable, "-c", DIES, str(path), bucket]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as killed:
        assert killed.stdin
        assert killed.stdout
        statuses, second, at = list[int](), 0, 0
        # First hours are sealed, then the day is sealed and its segments are merged.
        for now_ns in (MIDNIGHT_NS + 23 * HOUR_NS, SETTLED_NS):
            while not statuses or statuses[-1] == -signal.SIGKILL:
                at, second = at + 1, second + 1
                store = open_them()
                fill(store, second=second)
                expected = times_of(store)
                store.close()
                killed.stdin.write(f"{at} {now_ns}\n")
                killed.stdin.flush()
                statuses.append(int(killed.stdout.readline()))
                store = open_them()
                assert times_of(store) == expected
                assert set(expected.values()) == {1}
                assert count_by_hour(store) == len(expected)
                segments = store.manifest.of("gpu")
                assert files() == {file for segment in segments for file in segment.paths.values()}
                store.close()
            assert statuses.pop() == at - 1
            at -= 1
        killed.stdin.close()

    # Both ways write and publish three files, commit, and discard what they replace.
    assert len(statuses) >= 2 * 2 * 8 - 4


def fill(store: Store, *, second: int = 0) -> None:
    """Write a sample every ten minutes of a day, from two appliances."""
    times = range(MIDNIGHT_NS + second * 10**9, MIDNIGHT_NS + DAY_NS, 600 * 10**9)
    for identity in (ACME, ACME_2):
        write_all(store, [gpu(time, x=float(time % 7)) for time in times], identity)


def times_of(store: Store) -> Counter[tuple[str, int]]:
    """Return how often the store has each sample, by appliance and time."""
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=None)
    return Counter(
        (point.tags["appliance"], point.time_ns)
        for batch in store.scan(query)
        for point in batch.points()
    )


def count_by_hour(store: Store, *tenants: str, hours: int = 24) -> float:
    """Return how many samples an hourly query counts in the day, or in its first hours."""
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=MIDNIGHT_NS + hours * HOUR_NS,
        aggregate=Aggregate.COUNT,
        step_ns=HOUR_NS,
        tenants=tenants or None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)
