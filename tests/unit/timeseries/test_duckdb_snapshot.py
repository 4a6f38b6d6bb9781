"""A snapshot of an embedded store holds what its file lists, whatever the store does meanwhile."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.timeseries.killed_sealing import SETTLED_NS, count_by_hour
from tests.unit.timeseries.rollup_samples import ACME, HOUR_NS, START_NS, gpu, write_all
from timeseries.duckdb.snapshot import listed_files, snapshot, stored_samples_of
from timeseries.duckdb.store import DuckDBStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    """A store with five sealed samples, and two new ones."""
    opened = DuckDBStore(tmp_path / "samples.duckdb")
    write_all(opened, [gpu(START_NS + n * HOUR_NS, power_watts=float(n)) for n in range(5)], ACME)
    opened.maintain(now_ns=SETTLED_NS)
    write_all(opened, [gpu(SETTLED_NS + n, power_watts=9.0) for n in range(2)], ACME)
    yield opened
    opened.close()


def test_files_that_retention_deletes_stay_until_the_snapshot_ends(
    store: DuckDBStore, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.duckdb"
    with snapshot(store) as path:
        store.delete_before(SETTLED_NS)
        shutil.copyfile(path, copy)
        files = listed_files(copy)
        assert files
        assert {name: (store.database.folder / name).stat().st_size for name in files} == files
    store.manifest.delete_garbage()
    raw = [name for name in files if name.endswith(".raw.parquet")]
    assert not any((store.database.folder / name).exists() for name in raw)


def test_a_store_opens_from_the_snapshot_with_all_samples(
    store: DuckDBStore, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    before = count_by_hour(store)
    with snapshot(store) as path:
        write_all(store, [gpu(SETTLED_NS + 9, power_watts=1.0)], ACME)  # writers go on
        assert stored_samples_of(path) == 7
        shutil.copytree(store.database.folder, elsewhere / "samples")
        shutil.copyfile(path, elsewhere / "samples.duckdb")
    assert not list(store.database.folder.glob("snapshot*"))
    restored = DuckDBStore(elsewhere / "samples.duckdb")
    assert count_by_hour(restored) == before
    restored.close()
