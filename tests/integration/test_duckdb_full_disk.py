"""A disk that is really full: the store says so, loses nothing, and comes back by itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fixtures.polling import eventually
from tests.servers import require_program, require_root
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Block
from timeseries.store import Resolution, ScanQuery, StoreUnavailableError

pytestmark = pytest.mark.needs_root

ACME = {"tenant": "acme", "appliance": "a1"}
POINTS = 5_000
FIELDS = tuple(f"f{index}" for index in range(12))


class SmallDisk:
    """A file system of 12 MiB that can be made larger."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mount = require_program("mount", package="mount")
        path.mkdir()
        subprocess.run([self._mount, "-t", "tmpfs", "-o", "size=12m", "tmpfs", path], check=True)

    def enlarge(self) -> None:
        subprocess.run([self._mount, "-o", "remount,size=200m", self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    require_root("mounts a file system")
    unmount = require_program("umount", package="mount")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    subprocess.run([unmount, "--lazy", disk.path], check=True)


@pytest.fixture
def store(disk: SmallDisk) -> Iterator[DuckDBStore]:
    store = DuckDBStore(disk.path / "samples.duckdb")
    yield store
    store.close()


def batch(number: int) -> Batch:
    """Return noise that does not compress."""
    random = Random(number)  # noqa: S311 - repeatable
    noise = tuple([random.random() for _ in range(POINTS)] for _ in FIELDS)
    kinds = (float,) * len(FIELDS)
    times = range(number * POINTS, (number + 1) * POINTS)
    return Batch(
        (Block("gpu", (), [()], [0] * POINTS, FIELDS, kinds, noise, times, range(POINTS)),)
    )


def write_until_full(store: DuckDBStore) -> int:
    """Return how many batches were acknowledged before the store refused one."""
    for number in range(1_000):
        try:
            assert store.submit(batch(number), identity=ACME).result() == []
        except StoreUnavailableError:
            return number
    raise AssertionError("the disk was never full")


def is_stored(store: DuckDBStore, number: int) -> bool:
    try:
        return store.submit(batch(number), identity=ACME).result() == []
    except StoreUnavailableError:
        return False


def points(store: DuckDBStore) -> int:
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=None)
    return sum(map(len, store.scan(query)))


def test_a_full_disk_refuses_and_keeps_what_was_acknowledged(
    disk: SmallDisk, store: DuckDBStore
) -> None:
    stored = write_until_full(store)

    assert stored > 0
    assert points(store) == stored * POINTS
    disk.enlarge()
    assert is_stored(store, stored)
    assert points(store) == (stored + 1) * POINTS


def checkpoint(store: DuckDBStore) -> None:
    """Have the store checkpoint, which invalidates the database when the disk is full."""
    store.delete_before(0, resolution=Resolution.RAW)


def test_a_database_that_shut_itself_down_is_opened_again(
    disk: SmallDisk, store: DuckDBStore
) -> None:
    stored = write_until_full(store)
    checkpoint(store)
    with pytest.raises(StoreUnavailableError):
        points(store)

    disk.enlarge()

    eventually(lambda: is_stored(store, stored))
    assert points(store) == (stored + 1) * POINTS


@pytest.mark.nightly
def test_a_reader_alone_brings_it_back(disk: SmallDisk, store: DuckDBStore) -> None:
    stored = write_until_full(store)
    checkpoint(store)
    disk.enlarge()

    def can_be_read() -> bool:
        try:
            return points(store) == stored * POINTS
        except StoreUnavailableError:
            return False

    eventually(can_be_read)


@pytest.mark.nightly
def test_a_store_that_is_down_can_be_closed_and_opened_by_the_next_process(
    disk: SmallDisk, store: DuckDBStore
) -> None:
    stored = write_until_full(store)
    checkpoint(store)
    store.close()
    disk.enlarge()

    reopened = DuckDBStore(disk.path / "samples.duckdb")
    assert points(reopened) == stored * POINTS
    reopened.close()
