"""Sealed samples are in one file each, whatever happens, and files are few and found by a query."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    GLOBEX,
    HOUR_NS,
    START_NS,
    gpu,
    write_all,
)
from timeseries.duckdb import range_query, sealing
from timeseries.duckdb.segments import Segment
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import (
    DAY_NS,
    Aggregate,
    RangeQuery,
    Resolution,
    ScanQuery,
    StoreUnavailableError,
)

MIDNIGHT_NS = START_NS // DAY_NS * DAY_NS
SETTLED_NS = MIDNIGHT_NS + 2 * DAY_NS
HOURS = 24

# For each line (file, number, time) a process maintains the store at that time, and kills itself at
# the moment of that number: there is one before and after each step that reaches the disk.
DIES = """
import os, signal, sys
from pathlib import Path
from timeseries.duckdb import sealing, segments
from timeseries.duckdb.store import DuckDBStore

moments = 0

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

def maintain(path, at, now_ns):
    store = DuckDBStore(Path(path))
    sealing.write_parquet = dying(sealing.write_parquet, at)
    sealing.publish = dying(sealing.publish, at)
    segments.Manifest.commit = dying(segments.Manifest.commit, at)
    segments.Manifest._discard = dying(segments.Manifest._discard, at)
    sealing.MIN_ROWS = 1
    sealing.MAX_SHARE = 100
    store.maintain(now_ns=now_ns)
    os._exit(moments)

for line in sys.stdin:
    path, at, now_ns = line.split()
    child = os.fork()
    if child == 0:
        maintain(path, int(at), int(now_ns))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[DuckDBStore]:
    opened = DuckDBStore(path)
    yield opened
    opened.close()


def times_of(store: DuckDBStore) -> Counter[tuple[str, int]]:
    """Return how often the store has each sample, by appliance and time."""
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=None)
    return Counter(
        (point.tags["appliance"], point.time_ns)
        for batch in store.scan(query)
        for point in batch.points()
    )


def count_by_hour(store: DuckDBStore) -> float:
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=MIDNIGHT_NS + DAY_NS,
        aggregate=Aggregate.COUNT,
        step_ns=HOUR_NS,
        tenants=None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


def segments_of(store: DuckDBStore) -> tuple[Segment, ...]:
    return store.manifest.of("gpu")


def files_under(path: Path) -> set[str]:
    return {file.name for file in path.with_suffix("").rglob("*.*")}


def fill(store: DuckDBStore, *, second: int = 0) -> None:
    """Write a sample every ten minutes of a day, from two appliances."""
    times = range(MIDNIGHT_NS + second * 10**9, MIDNIGHT_NS + DAY_NS, 600 * 10**9)
    for identity in (ACME, ACME_2):
        write_all(store, [gpu(time, x=float(time % 7)) for time in times], identity)


def test_a_kill_9_at_any_step_leaves_each_sample_once(path: Path) -> None:
    """Each kill hits the store that the one before has left, and new samples."""
    command = [sys.executable, "-c", DIES]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as killed:
        assert killed.stdin
        assert killed.stdout
        statuses, second, at = list[int](), 0, 0
        # First hours are sealed, then the day is sealed and its segments are merged.
        for now_ns in (MIDNIGHT_NS + 23 * HOUR_NS, SETTLED_NS):
            while not statuses or statuses[-1] == -signal.SIGKILL:
                at, second = at + 1, second + 1
                store = DuckDBStore(path)
                fill(store, second=second)
                expected = times_of(store)
                store.close()
                killed.stdin.write(f"{path} {at} {now_ns}\n")
                killed.stdin.flush()
                statuses.append(int(killed.stdout.readline()))
                store = DuckDBStore(path)
                assert times_of(store) == expected
                assert set(expected.values()) == {1}
                assert count_by_hour(store) == len(expected)
                known = [
                    Path(file).name for one in segments_of(store) for file in one.paths.values()
                ]
                assert files_under(path) == set(known)
                store.close()
            assert statuses.pop() == at - 1
            at -= 1
        killed.stdin.close()

    # Both ways write and publish three files, commit, and discard what they replace.
    assert len(statuses) >= 2 * 2 * 8 - 4


def test_a_reader_sees_each_sample_once_while_others_seal_and_merge(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MIN_ROWS", 1)
    fill(store)
    expected, failures = len(times_of(store)), list[object]()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                found = (sum(times_of(store).values()), count_by_hour(store))
            except StoreUnavailableError as error:
                failures.append(error)
                return
            if found != (expected, expected):
                failures.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    for hour in range(2, 26, 2):
        store.maintain(now_ns=MIDNIGHT_NS + hour * HOUR_NS)
    store.maintain(now_ns=SETTLED_NS)
    done.set()
    reader.join()

    assert failures == []
    assert len(segments_of(store)) == 1


def test_few_samples_wait_for_the_end_of_their_day(store: DuckDBStore) -> None:
    fill(store)

    assert store.maintain(now_ns=MIDNIGHT_NS + 24 * HOUR_NS) == 0
    assert store.maintain(now_ns=MIDNIGHT_NS + 24 * HOUR_NS + sealing.GRACE_NS) == 288

    (segment,) = segments_of(store)
    assert segment.path(Resolution.RAW).startswith("acme/gpu/2023-11-14/")
    assert (segment.first_appliance, segment.last_appliance, segment.rows) == ("a1", "a2", 288)


def test_late_samples_get_a_segment_that_is_merged(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MIN_ROWS", 1)
    fill(store)
    for second in (1, 2):
        store.maintain(now_ns=MIDNIGHT_NS + 23 * HOUR_NS)
        fill(store, second=second)
    # Also what was sent again is kept once.
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    store.maintain(now_ns=SETTLED_NS)

    assert len(segments_of(store)) == 1
    assert set(times_of(store).values()) == {1}
    assert count_by_hour(store) == len(times_of(store)) == 3 * 288


def test_a_large_day_is_merged_into_ranges_of_appliances(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_MERGED_ROWS", 20)
    monkeypatch.setattr(sealing, "MAX_ROWS", 10)
    for number in range(5):
        identity = ACME | {"appliance": f"a{number}"}
        write_all(store, [gpu(MIDNIGHT_NS + hour * HOUR_NS, x=1.0) for hour in range(8)], identity)
    monkeypatch.setattr("timeseries.duckdb.maintenance.MAX_MERGED_ROWS", 100)
    store.maintain(now_ns=SETTLED_NS)

    assert sorted((one.first_appliance, one.last_appliance) for one in segments_of(store)) == [
        ("a0", "a1"),
        ("a2", "a3"),
        ("a4", "a4"),
    ]
    assert len(times_of(store)) == 40


def test_a_query_reads_only_files_that_may_have_its_samples(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_ROWS", 100)
    for day in range(2):
        for identity in (ACME, ACME_2, GLOBEX):
            times = range(60)
            points = [gpu(MIDNIGHT_NS + day * DAY_NS + at, x=1.0) for at in times]
            write_all(store, points, identity)
    store.maintain(now_ns=MIDNIGHT_NS + 4 * DAY_NS)
    seen: list[int] = []
    plan = range_query.plan_sources

    def noted(*args: object) -> range_query.Plan:
        found = plan(*args)  # type: ignore[arg-type]
        seen.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(range_query, "plan_sources", noted)
    for tenants, appliance, days in ((None, (), 2), (("acme",), (), 2), (("acme",), ("a2",), 1)):
        query = RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=MIDNIGHT_NS,
            end_ns=MIDNIGHT_NS + days * DAY_NS,
            aggregate=Aggregate.COUNT,
            tenants=tenants,
            filters={"appliance": appliance} if appliance else {},
        )
        assert store.query_range(query)[0].values == [
            60 * days * (3 if tenants is None else 1 if appliance else 2)
        ]
    assert seen == [4, 2, 1]


def test_segments_without_samples_are_merged_by_period(store: DuckDBStore) -> None:
    for day in range(5, 15):  # within one of the periods
        write_all(store, [gpu(MIDNIGHT_NS + day * DAY_NS, x=float(day))], ACME)
    later_ns = MIDNIGHT_NS + 20 * DAY_NS
    store.maintain(now_ns=later_ns)
    before = [one.sizes.keys() for one in segments_of(store)]
    store.delete_before(later_ns)
    store.maintain(now_ns=later_ns)

    assert before == [{Resolution.RAW, Resolution.HOUR}] * 10
    assert [one.sizes.keys() for one in segments_of(store)] == [{Resolution.HOUR}]
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=later_ns,
        aggregate=Aggregate.SUM,
        tenants=("acme",),
    )
    assert store.query_range(query)[0].values == [95.0]


def test_only_some_fields_have_roll_ups(path: Path) -> None:
    store = DuckDBStore(
        path, is_rolled_up=lambda measurement, field: (measurement, field) == ("gpu", "x")
    )
    write_all(store, [gpu(MIDNIGHT_NS, x=1.0, y=2.0, note="text")], ACME)
    write_all(store, [gpu(MIDNIGHT_NS, y=2.0)], GLOBEX)
    store.maintain(now_ns=SETTLED_NS)

    by_tenant = {one.tenant: one for one in segments_of(store)}
    assert by_tenant["acme"].rolled == {"x"}
    assert by_tenant["globex"].sizes.keys() == {Resolution.RAW}
    store.delete_before(SETTLED_NS)
    assert store.fields("gpu", tenants=None) == {"x": "float"}
    store.close()
    assert [one.name for one in path.with_suffix("").iterdir()] == ["acme"]


def test_files_of_samples_are_never_deleted_for_a_new_database(path: Path) -> None:
    store = DuckDBStore(path)
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    store.close()
    kept = files_under(path)
    saved = path.rename(path.with_name("saved"))

    with pytest.raises(StoreUnavailableError, match="Restore the file"):
        DuckDBStore(path)

    assert files_under(path) == kept
    path.unlink()
    saved.rename(path)
    store = DuckDBStore(path)
    assert count_by_hour(store) == 288
    store.close()
