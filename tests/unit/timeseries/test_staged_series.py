"""Samples of numbered series are stored as any others are, whatever happens to the store."""

import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Thread

import duckdb
import numpy as np
import pytest

from timeseries.duckdb.files import manifest
from timeseries.duckdb.hot import staged_files, staged_series
from timeseries.duckdb.hot.staged_series import MOVED_TABLE, SAMPLES_TABLE, SERIES_TABLE
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.series_batch import LabeledSeries, SeriesBatch, SeriesTable
from timeseries.store import DAY_NS, Detail, ScanQuery, StoreUnavailableError, write

MEASUREMENTS = ("load", "free", "up")
Sample = tuple[str, str, str, int]
"""Measurement, tenant, tag and time."""

# Has samples of three commits acknowledged, of which a reader has moved those of one measurement,
# and is gone.
DIES_AFTER_THE_ACKNOWLEDGEMENT = """
import os, signal, sys
from pathlib import Path
from tests.unit.timeseries.test_staged_series import post, scanned, series
from timeseries.duckdb.store import DuckDBStore
from timeseries.series_batch import SeriesTable

store, table = DuckDBStore(Path(sys.argv[1])), SeriesTable()
sent = [(series(name, tag), 1.5) for name in ("load", "up") for tag in ("a", "b")]
for time_ns in (1, 2, 3):
    assert post(store, table, sent, time_ns) == []
assert store.writer.staged_points > 0
scanned(store, "load")
assert post(store, table, sent, 4) == []
os.kill(os.getpid(), signal.SIGKILL)
"""


# The same of files: staged samples are in a file, and the process dies before it is committed.
DIES_BEFORE_A_FILE_COUNTS = """
import os, signal, sys
from pathlib import Path
from tests.unit.timeseries.test_staged_series import open_store, post, scanned, series
from timeseries.duckdb.hot import staged_files
from timeseries.series_batch import SeriesTable

staged_files.MIN_FILE_SAMPLES = 2
store, table = open_store(Path(sys.argv[1])), SeriesTable()
sent = [(series(name, tag), 1.5) for name in ("load", "up") for tag in ("a", "b")]
for time_ns in (1, 2, 3):
    assert post(store, table, sent, time_ns) == []
assert len(scanned(store, "load")) == 6
assert store.manifest.of("load")
assert post(store, table, sent, 4) == []
store.manifest.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
scanned(store, "up")
"""


def open_store(path: Path) -> DuckDBStore:
    """Return a store that rolls nothing up, so that many staged samples go to files."""
    return DuckDBStore(path, detail_of=lambda _measurement, _field: Detail.NONE)


def series(measurement: str, tag: str, *, tenant: str = "acme") -> LabeledSeries:
    return LabeledSeries(measurement, ("tenant", "appliance", "tag"), (tenant, "a1", tag))


def post(
    store: DuckDBStore,
    table: SeriesTable,
    sent: list[tuple[LabeledSeries, float]],
    times_ns: int | list[int],
) -> list[int]:
    """Write a sample of each series; return the positions of those that are rejected."""
    times = [times_ns] * len(sent) if isinstance(times_ns, int) else times_ns
    batch = SeriesBatch(
        table,
        np.array([table.number(labeled) for labeled, _ in sent], dtype=np.int32),
        np.array([value for _, value in sent]),
        np.array(times, dtype=np.int64),
        np.arange(len(sent)),
    )
    return [point.position for point in store.submit_series(batch).result()]


def scanned(store: DuckDBStore, measurement: str) -> dict[Sample, float]:
    """Return the samples of a measurement, each of which the store must have once."""
    query = ScanQuery(measurement=measurement, start_ns=0, end_ns=99 * DAY_NS, tenants=None)
    samples: dict[Sample, float] = {}
    for batch in store.scan(query):
        for point in batch.points():
            sample = (measurement, point.tags["tenant"], point.tags["tag"], point.time_ns)
            assert sample not in samples
            samples[sample] = float(point.fields["value"])
    return samples


def rows(path: Path, table: str) -> int:
    with duckdb.connect(str(path)) as connection:
        return len(connection.execute(f"FROM {table}").fetchall())


@pytest.mark.parametrize("min_file_samples", [1, 4, 5_000])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_last_write_of_a_series_and_instant_counts_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, min_file_samples: int
) -> None:
    monkeypatch.setattr(staged_series, "MAX_SERIES", 15)
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", min_file_samples)
    step_ns = DAY_NS // 40 if min_file_samples == 4 else 1
    random, expected = Random(seed), dict[Sample, float]()  # noqa: S311 - not for secrets
    store, table = open_store(tmp_path / "samples.duckdb"), SeriesTable()
    for step in range(40 if seed else 25):
        sent, times = [], []
        for _ in range(random.randint(1, 8)):
            measurement, tag = random.choice(MEASUREMENTS), random.choice("abcdef")
            tenant = random.choice(("acme", "globex"))
            time_ns = max(1, 10 * step - random.choice((0, 0, 0, 7, 30))) * step_ns
            value = random.choice((random.random(), 2.0, -0.0))
            sent.append((series(measurement, tag, tenant=tenant), value))
            times.append(time_ns)
            expected[measurement, tenant, tag, time_ns] = sent[-1][1]
        action = random.randint(0, 9)
        if action == 0:  # by another way
            for (labeled, value), time_ns in zip(sent, times, strict=True):
                tags = {"tag": labeled.tag_values[2]}
                point = Point(labeled.measurement, tags, {"value": value}, time_ns)
                write(store, [point], identity={"tenant": labeled.tenant, "appliance": "a1"})
            continue
        assert post(store, table, sent, times) == []
        if action == 1:
            store.close()
            store = open_store(tmp_path / "samples.duckdb")
        elif action == 2:
            scanned(store, random.choice(MEASUREMENTS))
        elif action == 4:
            store.maintain(now_ns=random.choice((1, 5, 30)) * DAY_NS)
        elif action == 3:
            table = SeriesTable()
    samples = dict(item for name in MEASUREMENTS for item in scanned(store, name).items())
    store.close()
    assert samples == expected
    assert {place for place, value in samples.items() if np.signbit(value)} == {
        place for place, value in expected.items() if np.signbit(value)
    }


@pytest.mark.parametrize("program", [DIES_AFTER_THE_ACKNOWLEDGEMENT, DIES_BEFORE_A_FILE_COUNTS])
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path, program: str) -> None:
    path = tmp_path / "samples.duckdb"
    command = [sys.executable, "-c", program, str(path)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -9

    for _ in range(2):
        store = DuckDBStore(path)
        for name in ("load", "up"):
            assert scanned(store, name) == {
                (name, "acme", tag, time_ns): 1.5 for tag in "ab" for time_ns in (1, 2, 3, 4)
            }
        store.close()
    assert [rows(path, name) for name in (SAMPLES_TABLE, SERIES_TABLE, MOVED_TABLE)] == [0, 0, 0]


def test_only_new_series_and_samples_that_may_overwrite_others_are_compared(
    store: DuckDBStore,
) -> None:
    table = SeriesTable()
    sent = [(series(name, "a"), 1.0) for name in MEASUREMENTS]
    post(store, table, sent, 1)
    staged = store.writer.staged_points
    post(store, table, sent, 2)
    assert store.writer.staged_points == staged + len(sent)
    assert not store.writer.overwrites.of("load", None)
    post(store, table, sent, 2)
    scanned(store, "load")
    assert store.writer.overwrites.of("load", None) == ((2, 3),)


def test_a_series_that_is_rejected_is_rejected_again(store: DuckDBStore) -> None:
    write(store, [Point("load", {}, {"value": "text"}, 1)], identity={"tenant": "acme"})
    table = SeriesTable()
    for time_ns in (2, 3):
        assert post(
            store, table, [(series("load", "a"), 1.0), (series("up", "a"), 1.0)], time_ns
        ) == [0]
    assert len(scanned(store, "up")) == 2


def test_nothing_of_a_deleted_tenant_is_staged(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    store, table = DuckDBStore(path), SeriesTable()
    sent = [(series("up", "a", tenant=tenant), 1.0) for tenant in ("acme", "globex")]
    for time_ns in (1, 2):
        post(store, table, sent, time_ns)
    store.delete_tenant("acme")
    assert {tenant for _, tenant, _, _ in scanned(store, "up")} == {"globex"}
    owners = store.fetch(f"SELECT owner FROM {SERIES_TABLE}", ())  # noqa: S608 - ours
    assert owners == [("globex",)]
    post(store, table, sent, 3)
    assert len(scanned(store, "up")) == 4
    store.close()


def test_samples_that_are_not_settled_stay_staged(store: DuckDBStore) -> None:
    hour_ns = 3600 * 10**9
    table, sent = SeriesTable(), [(series("up", "a"), 1.0)]
    for hours in (10, 11):
        post(store, table, sent, hours * hour_ns)
    staged = store.writer.staged_points
    store.maintain(now_ns=11 * hour_ns)
    assert store.writer.staged_points == staged > 0
    store.maintain(now_ns=40 * hour_ns)
    assert store.writer.staged_points == 0


def test_many_staged_samples_become_a_file_that_is_sorted_by_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", 4)
    store, table = open_store(tmp_path / "samples.duckdb"), SeriesTable()
    sent = [(series("up", tag), 1.0) for tag in "cab"]
    for time_ns in (1, 2, 3):
        assert post(store, table, sent, time_ns) == []
    assert len(scanned(store, "up")) == 9
    (segment,) = store.manifest.of("up")
    assert (segment.rows, segment.oldest_ns, segment.newest_ns) == (6, 2, 3)
    assert (segment.first_appliance, segment.last_appliance) == ("a1", "a1")
    (path,) = tmp_path.rglob("*.parquet")
    assert store.fetch(f"SELECT tag_tag, time, field_value FROM '{path}'", ()) == [  # noqa: S608 - ours
        (tag, time_ns, 1) for tag in "abc" for time_ns in (2, 3)
    ]
    store.close()


def test_samples_that_are_rolled_up_go_to_their_table(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", 1)
    table = SeriesTable()
    for time_ns in (1, 2):
        post(store, table, [(series("up", "a"), 1.0)], time_ns)
    assert len(scanned(store, "up")) == 2
    assert not store.manifest.of("up")


def test_a_file_that_cannot_be_written_leaves_its_samples_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", 1)
    store, table = open_store(tmp_path / "samples.duckdb"), SeriesTable()
    for time_ns in (1, 2):
        post(store, table, [(series("up", "a"), 1.0)], time_ns)
    folder = store.database.folder / "acme"
    folder.write_text("in the way")
    with pytest.raises(StoreUnavailableError, match="No sample is lost"):
        scanned(store, "up")
    folder.unlink()
    assert len(scanned(store, "up")) == 2
    store.close()


def test_a_sample_of_a_series_that_was_sealed_and_forgotten_overwrites_the_sealed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", 1)
    store, table = open_store(tmp_path / "samples.duckdb"), SeriesTable()
    for time_ns in (1, 2, 3):
        post(store, table, [(series("up", "a"), 1.0)], time_ns)
    store.maintain(now_ns=30 * DAY_NS)
    assert not store.writer.schema
    post(store, table, [(series("up", "a"), 2.0)], 3)
    assert list(scanned(store, "up").values()) == [1.0, 1.0, 2.0]
    store.close()


def test_names_are_listed_without_moving_what_is_staged(store: DuckDBStore) -> None:
    table = SeriesTable()
    for time_ns in (1, 2):
        post(store, table, [(series("up", "a"), 1.0)], time_ns)
    write(store, [Point("up", {"rack": "x"}, {"count": 1}, 3)], identity={"tenant": "acme"})
    staged = store.writer.staged_points
    assert store.tags("up", tenants=("acme",)) == ["tenant", "appliance", "rack", "tag"]
    assert store.fields("up", tenants=("acme",)) == {"count": "integer", "value": "float"}
    assert store.tags("up", tenants=("globex",)) == []
    assert store.fields("up", tenants=("globex",)) == {}
    assert store.writer.staged_points == staged > 0
    store.delete_tenant("globex")  # moves all
    assert store.writer.staged_points == 0
    assert store.tags("up", tenants=None) == ["tenant", "appliance", "rack", "tag"]
    assert store.fields("up", tenants=None) == {"count": "integer", "value": "float"}


def test_a_reader_that_commits_wait_for_does_not_wait_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "MIN_FILE_SAMPLES", 2)
    # As after commits during each earlier try.
    monkeypatch.setattr(manifest, "_MAX_REPEATS", 0)
    store, table = open_store(tmp_path / "samples.duckdb"), SeriesTable()
    sent = [(series("load", tag), 1.5) for tag in ("a", "b")]
    for time_ns in (1, 2, 3):
        assert post(store, table, sent, time_ns) == []
    # The read moves what is staged to a file, which is a commit.
    counts: list[int] = []
    reader = Thread(target=lambda: counts.append(len(scanned(store, "load"))), daemon=True)
    reader.start()
    reader.join(30)
    assert counts == [6]
    assert store.manifest.of("load")
    store.close()
