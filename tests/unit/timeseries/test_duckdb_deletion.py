"""A tenant is deleted in steps: others write in between, and what was cut short is completed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.timeseries.rollup_samples import ACME, GLOBEX, HOUR_NS, START_NS, gpu, write_all
from timeseries.duckdb.query import scan
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import DAY_NS, ScanQuery

HOURS = 6
EACH = 50


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckDBStore]:
    """A store of two tenants whose first day is sealed; of the rest one hour makes one step."""
    monkeypatch.setattr(scan, "SLICE_POINTS", EACH)
    opened = DuckDBStore(tmp_path / "samples.duckdb")
    for identity in (ACME, GLOBEX):
        for hour in range(HOURS):
            times = (START_NS + hour * HOUR_NS + at for at in range(EACH))
            write_all(opened, [gpu(time, power_watts=1.0) for time in times], identity)
    sealed = [gpu(START_NS - DAY_NS + at, power_watts=1.0) for at in range(EACH)]
    write_all(opened, sealed, ACME)
    opened.maintain(now_ns=START_NS + (HOURS + 1) * HOUR_NS)
    yield opened
    opened.close()


def begin(store: DuckDBStore) -> Iterator[int]:
    return store.maintenance.delete_tenant("acme")


def points_of(store: DuckDBStore, tenant: str) -> int:
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=(tenant,))
    return sum(map(len, store.scan(query)))


def test_a_step_is_bounded_and_others_write_after_it(store: DuckDBStore) -> None:
    steps = begin(store)

    assert next(steps) == EACH
    write_all(store, [gpu(START_NS + 999, power_watts=2.0)], GLOBEX)

    assert points_of(store, "globex") == HOURS * EACH + 1
    assert points_of(store, "acme") == HOURS * EACH
    assert sum(steps) > 0
    assert points_of(store, "acme") == 0


def test_what_was_cut_short_is_completed_by_another_deletion(store: DuckDBStore) -> None:
    steps = begin(store)
    for _ in range(3):
        next(steps)
    steps.close()  # type: ignore[attr-defined] # a generator

    store.delete_tenant("acme")

    assert store.measurements(tenants=("acme",)) == []
    assert points_of(store, "acme") == 0
    assert not (store.database.folder / "acme").exists()
    assert points_of(store, "globex") == HOURS * EACH


def test_sealing_waits_for_the_deletion_and_brings_nothing_back(store: DuckDBStore) -> None:
    steps = begin(store)
    next(steps)
    with ThreadPoolExecutor() as pool:
        sealing = pool.submit(store.maintain, now_ns=START_NS + 2 * DAY_NS)
        assert sum(steps) > 0
        sealing.result()

    assert store.measurements(tenants=("acme",)) == []
    assert points_of(store, "globex") == HOURS * EACH
