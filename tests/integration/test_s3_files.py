"""Files of samples in a bucket: written, read, replaced and deleted as in a folder."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest

from tests.fixtures.s3 import Bucket, credentials, new_bucket, s3_server
from tests.servers import free_port
from tests.unit.timeseries.killed_sealing import MIDNIGHT_NS, SETTLED_NS, kill_at_each_step
from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    GLOBEX,
    HOUR_NS,
    gpu,
    write_all,
)
from timeseries.duckdb.cold import sealing
from timeseries.duckdb.files.s3 import S3Files
from timeseries.duckdb.query import units
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import open_store
from timeseries.store import (
    DAY_NS,
    Aggregate,
    RangeQuery,
    Resolution,
    Store,
    StoreUnavailableError,
)

SAMPLES = 144
Opener = Callable[[], DuckDBStore]


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in credentials(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return new_bucket(s3_endpoint)


@pytest.fixture
def open_files(bucket: Bucket, tmp_path: Path) -> Iterator[Opener]:
    """Opens the store; closes what is open."""
    opened: list[DuckDBStore] = []

    def open_them() -> DuckDBStore:
        for store in opened:
            store.close()
        files = S3Files(bucket.address, folder=tmp_path / "samples", cache_bytes=2**20)
        opened.append(DuckDBStore(tmp_path / "samples.duckdb", files=files))
        return opened[-1]

    yield open_them
    for store in opened:
        store.close()


def fill(store: Store, *, second: int = 0) -> None:
    """Write a sample every ten minutes of a day, from three appliances of two tenants."""
    times = range(MIDNIGHT_NS + second * 10**9, MIDNIGHT_NS + DAY_NS, 600 * 10**9)
    for identity in (ACME, ACME_2, GLOBEX):
        write_all(store, [gpu(time, x=float(time % 7)) for time in times], identity)


def count(store: Store, *tenants: str, step_ns: int | None = None) -> float:
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=MIDNIGHT_NS + DAY_NS,
        aggregate=Aggregate.COUNT,
        step_ns=step_ns,
        tenants=tenants or None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


def listed(store: DuckDBStore) -> set[str]:
    """Return the files that the store lists, and its claim on the prefix."""
    files = (path for segment in store.manifest.of("gpu") for path in segment.paths.values())
    return {"owner", *files}


def test_sealed_samples_are_in_the_bucket_only_and_are_deleted_there(
    open_files: Opener, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    monkeypatch.setattr(sealing, "MAX_SHARE", 100)
    store = open_files()
    fill(store)
    # Several files of a day, which are then merged, with late samples and some sent again.
    store.maintain(now_ns=MIDNIGHT_NS + 12 * HOUR_NS)
    fill(store, second=1)
    fill(store)
    store.maintain(now_ns=SETTLED_NS)

    assert bucket.paths() == listed(store)
    assert len(listed(store)) == 1 + 2 * len(Resolution)
    assert list((tmp_path / "samples").rglob("*.parquet")) == []
    store = open_files()
    assert bucket.paths() == listed(store)
    for step_ns in (None, HOUR_NS, HOUR_NS // 6):
        assert count(store, step_ns=step_ns) == 3 * 2 * SAMPLES
        assert count(store, "globex", step_ns=step_ns) == 2 * SAMPLES
    assert store.tag_values("gpu", "appliance", tenants=("acme",)) == ["a1", "a2"]

    store.delete_tenant("acme")
    assert bucket.paths() == listed(store)
    assert not any("acme" in path for path in bucket.paths())
    # The cache has no part of it, either.
    store.delete_before(SETTLED_NS)
    assert {path.rpartition(".raw")[1] for path in bucket.paths()} == {""}
    for resolution in (Resolution.FIVE_MINUTES, Resolution.HOUR):
        store.delete_before(SETTLED_NS, resolution=resolution)
    assert bucket.paths() == {"owner"}
    assert [path for path in (tmp_path / "samples").rglob("*") if path.is_file()] == []


def test_threads_read_one_object_at_their_own_offsets(open_files: Opener) -> None:
    """A file of many row groups, larger than the cache, gives what was written."""
    store = open_files()
    rng = random.Random(1)  # noqa: S311 - samples, not secrets
    values = [[rng.gauss(0, 1) for _ in range(20_000)] for _ in range(10)]
    for number, series_values in enumerate(values):
        points = [gpu(MIDNIGHT_NS + at, x=value) for at, value in enumerate(series_values)]
        write_all(store, points, ACME | {"appliance": f"a{number}"})
    store.maintain(now_ns=SETTLED_NS)
    (size,) = (segment.sizes[Resolution.RAW] for segment in store.manifest.of("gpu"))
    assert size > 2**20
    expected = [sum(series_values) for series_values in values]
    failures: list[object] = []

    def read() -> None:
        query = RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=MIDNIGHT_NS,
            end_ns=MIDNIGHT_NS + 20_000,
            aggregate=Aggregate.SUM,
            tenants=None,
            group_by=("appliance",),
        )
        sums = [series.values[0] for series in store.query_range(query)]
        if sums != pytest.approx(expected):
            failures.append(sums)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_prefix_belongs_to_one_database(
    open_files: Opener, bucket: Bucket, tmp_path: Path
) -> None:
    open_files()

    with pytest.raises(StoreUnavailableError, match="another database") as caught:
        open_store(f"duckdb:///{tmp_path}/other.duckdb?files={bucket.address}/")

    assert bucket.address in caught.value.message


def test_files_may_be_in_another_folder(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path}/samples.duckdb"
    for place in ("", f"?files={tmp_path}/cold", f"?files={tmp_path}/samples"):
        if place.endswith("samples"):
            (tmp_path / "cold").rename(tmp_path / "samples")
        store = open_store(url + place)
        fill(store)
        store.maintain(now_ns=SETTLED_NS)
        assert count(store) == 3 * SAMPLES
        store.close()
        names = {path.parts[len(tmp_path.parts)] for path in tmp_path.rglob("*.parquet")}
        assert names == {"cold" if place.endswith("cold") else "samples"}


def test_files_move_to_the_bucket_when_it_is_set(
    open_files: Opener, bucket: Bucket, tmp_path: Path
) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    store.close()
    # One was uploaded before the process was killed.
    path = next((tmp_path / "samples").rglob("*.raw.parquet"))
    name = path.relative_to(tmp_path / "samples").as_posix()
    obstore.put(bucket.client(), name, path.read_bytes())

    store = open_files()

    assert bucket.paths() == listed(store)
    assert count(store) == 3 * SAMPLES
    assert list((tmp_path / "samples").rglob("*.parquet")) == []
    store.close()
    with pytest.raises(StoreUnavailableError, match="none of them is in"):
        DuckDBStore(tmp_path / "samples.duckdb")


def test_files_that_an_older_database_does_not_list_stay(
    open_files: Opener, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    """A restored database lists files that were merged since, and lacks those made since."""
    store = open_files()
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    first = min(listed(store) - {"owner"})
    obstore.delete(bucket.client(), first)
    obstore.put(bucket.client(), first.replace("acme", "newer"), b"samples")
    before = bucket.paths()

    with caplog.at_level(logging.ERROR):
        store = open_files()

    assert bucket.paths() == before
    assert first in caplog.text
    assert count(store, "globex", step_ns=HOUR_NS) == SAMPLES


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_kill_9_at_any_step_leaves_each_sample_once(
    open_files: Opener, bucket: Bucket, tmp_path: Path
) -> None:
    kill_at_each_step(
        tmp_path / "samples.duckdb",
        open_them=open_files,
        files=lambda: bucket.paths() - {"owner"},
        bucket=bucket.address,
    )


def test_an_outage_of_the_bucket_delays_sealing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, value in credentials(f"http://127.0.0.1:{port}").items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path, port=port) as endpoint:
        bucket = new_bucket(endpoint)
        files = S3Files(bucket.address, folder=tmp_path / "samples", cache_bytes=0)
        store = DuckDBStore(tmp_path / "samples.duckdb", files=files)
        fill(store)
    with pytest.raises(StoreUnavailableError, match="AWS_ENDPOINT_URL"):
        store.maintain(now_ns=SETTLED_NS)

    assert list((tmp_path / "samples" / "uploads").iterdir()) == []
    assert count(store) == 3 * SAMPLES
    with s3_server(tmp_path, port=port):
        new_bucket(endpoint, name=bucket.name)
        store.maintain(now_ns=SETTLED_NS)
        assert count(store) == 3 * SAMPLES
        assert bucket.paths() == listed(store) - {"owner"}  # the server forgets
    fill(store, second=1)
    with pytest.raises(StoreUnavailableError):
        count(store, "acme")
    store.close()
    with pytest.raises(StoreUnavailableError, match=r"Can't list the samples in s3://"):
        open_store(f"duckdb:///{tmp_path}/samples.duckdb?files={bucket.address}")
