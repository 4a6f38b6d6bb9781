"""Which samples are looked up as overwriting others, and what is left once they are sealed."""

from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from tests.unit.timeseries.killed_sealing import MIDNIGHT_NS, SETTLED_NS
from tests.unit.timeseries.rollup_samples import ACME, ACME_2, HOUR_NS, gpu, write_all
from timeseries.duckdb.hot import overwrites, writer
from timeseries.duckdb.hot.overwrites import OVERWRITTEN_TABLE
from timeseries.duckdb.query import units
from timeseries.duckdb.schema import MAX_SPANS, joined, other_part, shared_part
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Aggregate, RangeQuery, Resolution, ScanQuery

EVERYTHING = ScanQuery(
    measurement="gpu", start_ns=MIDNIGHT_NS, end_ns=SETTLED_NS, tenants=("acme",)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.duckdb"


def powers(store: DuckDBStore) -> list[float]:
    points = [point for batch in store.scan(EVERYTHING) for point in batch.points()]
    return [float(point.fields["power_watts"]) for point in points]


def spans(store: DuckDBStore) -> tuple[tuple[int, int], ...]:
    return store.writer.overwrites.of("gpu", None)


def test_nothing_is_noted_for_samples_in_order_or_late_ones(store: DuckDBStore) -> None:
    for second in (5, 6, 7, 1, 2):
        for identity in (ACME, ACME_2):
            points = [gpu(MIDNIGHT_NS + second, gpu=name, power_watts=1.0) for name in "01"]
            write_all(store, points, identity)
    write_all(store, [gpu(MIDNIGHT_NS + 7, gpu="2", power_watts=1.0)], ACME)

    assert len(powers(store)) == 21
    assert spans(store) == ()


def test_the_times_of_overwritten_samples_are_noted_until_they_are_sealed(path: Path) -> None:
    with closing(DuckDBStore(path)) as store:
        for watts in (1.0, 2.0):
            write_all(store, [gpu(MIDNIGHT_NS + 5, power_watts=watts)], ACME)
        assert powers(store) == [2.0]
    with closing(DuckDBStore(path)) as store:
        assert spans(store) == ((MIDNIGHT_NS + 5, MIDNIGHT_NS + 6),)
        assert store.writer.overwrites.of("gpu", ("globex",)) == ()
        write_all(store, [gpu(MIDNIGHT_NS + 5, power_watts=1.0)], ACME)
        assert powers(store) == [1.0]
        store.maintain(now_ns=SETTLED_NS)
        assert spans(store) == ()
    with closing(DuckDBStore(path)) as store:
        assert spans(store) == ()
        assert powers(store) == [1.0]


def test_roll_ups_are_corrected(store: DuckDBStore) -> None:
    for watts in (100.0, 300.0):
        write_all(store, [gpu(MIDNIGHT_NS + 5, power_watts=watts)], ACME)
        store.maintain(now_ns=SETTLED_NS)
    store.delete_before(SETTLED_NS, resolution=Resolution.RAW)

    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=MIDNIGHT_NS,
            end_ns=MIDNIGHT_NS + 24 * HOUR_NS,
            aggregate=Aggregate.SUM,
            tenants=None,
        )
    )
    assert series.values == [300.0]


def test_only_segments_with_overwritten_samples_are_written_anew(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    for hour in (1, 3, 5):
        write_all(store, [gpu(MIDNIGHT_NS + (hour - 1) * HOUR_NS, power_watts=1.0)], ACME)
        store.maintain(now_ns=MIDNIGHT_NS + hour * HOUR_NS)
    before = {segment.name for segment in store.manifest.of("gpu")}

    write_all(store, [gpu(MIDNIGHT_NS + 2 * HOUR_NS, power_watts=2.0)], ACME)
    store.maintain(now_ns=MIDNIGHT_NS + 6 * HOUR_NS)

    assert len(before & {segment.name for segment in store.manifest.of("gpu")}) == len(before) - 1
    assert powers(store) == [1.0, 2.0, 1.0]


def test_a_direct_insert_comes_after_what_was_staged(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(store, [gpu(MIDNIGHT_NS, power_watts=1.0)], ACME)
    monkeypatch.setattr(writer, "MIN_DIRECT_POINTS", 1)
    write_all(store, [gpu(MIDNIGHT_NS, power_watts=2.0)], ACME)

    assert powers(store) == [2.0]


def test_suspects_in_many_files_are_noted_without_reading_these(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overwrites, "MAX_FILES", 0)
    write_all(store, [gpu(MIDNIGHT_NS + at, power_watts=1.0) for at in (0, 9)], ACME)
    store.maintain(now_ns=SETTLED_NS)
    write_all(store, [gpu(MIDNIGHT_NS + 5, power_watts=2.0)], ACME)

    assert powers(store) == [1.0, 2.0, 1.0]
    assert spans(store) == ((MIDNIGHT_NS + 5, MIDNIGHT_NS + 6),)


def test_duplicates_of_an_earlier_version_count_once(path: Path) -> None:
    with closing(DuckDBStore(path)) as store:
        for watts in (1.0, 2.0):
            write_all(store, [gpu(MIDNIGHT_NS, power_watts=watts)], ACME)
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"DROP TABLE {OVERWRITTEN_TABLE}")

    with closing(DuckDBStore(path)) as store:
        assert powers(store) == [2.0]


def test_spans_are_few_and_cover_all() -> None:
    apart = [(day * 24 * HOUR_NS, day * 24 * HOUR_NS + 1) for day in range(100)]

    few = joined(reversed(apart))

    assert len(few) == MAX_SPANS
    assert other_part(apart, few) == []
    assert joined([(0, 1), (2, 3)]) == ((0, 3),)


def test_spans_are_split_by_other_spans() -> None:
    assert shared_part([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert other_part([(0, 10), (20, 30)], [(2, 3), (5, 25)]) == [(0, 2), (3, 5), (25, 30)]
