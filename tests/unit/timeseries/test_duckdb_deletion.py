"""A tenant is deleted in steps: others write in between, and what was cut short is completed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.timeseries.rollup_samples import ACME, GLOBEX, HOUR_NS, START_NS, gpu, write_all
from timeseries.duckdb import scan
from timeseries.duckdb.deletion import TenantDeletion
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import ScanQuery

HOURS = 6
EACH = 50


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckDBStore]:
    """A store with rolled up samples of two tenants, of which one hour makes one step."""
    monkeypatch.setattr(scan, "SLICE_POINTS", EACH)
    opened = DuckDBStore(tmp_path / "samples.duckdb")
    for identity in (ACME, GLOBEX):
        for hour in range(HOURS):
            times = (START_NS + hour * HOUR_NS + at for at in range(EACH))
            write_all(opened, [gpu(time, power_watts=1.0) for time in times], identity)
    opened.roll_up(now_ns=START_NS + (HOURS + 1) * HOUR_NS)
    yield opened
    opened.close()


def begin(store: DuckDBStore) -> Iterator[int]:
    return TenantDeletion(store._writer, store._fetch, "acme").steps()  # noqa: SLF001


def points_of(store: DuckDBStore, tenant: str) -> int:
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=(tenant,))
    return sum(map(len, store.scan(query)))


def test_a_step_is_bounded_and_others_write_after_it(store: DuckDBStore) -> None:
    steps = begin(store)

    assert next(steps) == EACH
    write_all(store, [gpu(START_NS + 999, power_watts=2.0)], GLOBEX)

    assert points_of(store, "globex") == HOURS * EACH + 1
    assert points_of(store, "acme") == (HOURS - 1) * EACH
    assert sum(steps) > 0
    assert points_of(store, "acme") == 0


def test_what_was_cut_short_is_completed_by_another_deletion(store: DuckDBStore) -> None:
    steps = begin(store)
    for _ in range(HOURS + 1):
        next(steps)
    steps.close()  # type: ignore[attr-defined] # a generator

    store.delete_tenant("acme")

    assert store.measurements(tenants=("acme",)) == []
    for table in ("m_gpu", "r1m_gpu", "r1h_gpu"):
        counted = f"SELECT count(*) FROM {table} WHERE tag_tenant = 'acme'"  # noqa: S608
        assert store._fetch(counted, []) == [(0,)]  # noqa: SLF001
    assert points_of(store, "globex") == HOURS * EACH


def test_rolling_up_in_the_middle_brings_nothing_back(store: DuckDBStore) -> None:
    write_all(store, [gpu(START_NS + 999, power_watts=2.0)], ACME)
    for _ in begin(store):
        store.roll_up(now_ns=START_NS + (HOURS + 2) * HOUR_NS)

    assert store.measurements(tenants=("acme",)) == []
