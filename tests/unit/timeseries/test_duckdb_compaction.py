"""Laying samples of an appliance together changes where they are, and no answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from tests.unit.timeseries.rollup_samples import (
    ACME,
    IDENTITIES,
    MINUTE_NS,
    START_NS,
    gpu,
    random_points,
    seeded,
    write_all,
)
from timeseries.duckdb.compaction import Compaction
from timeseries.duckdb.database import Database
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import Aggregate, RangeQuery, Resolution, ScanQuery, Series, Store

END_NS = START_NS + 120 * MINUTE_NS
NAMES = tuple(identity["appliance"] for identity in IDENTITIES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a store is that has 600 samples of three appliances over two hours."""
    path = tmp_path / "samples.duckdb"
    with opened(path) as store:
        for number, identity in enumerate(IDENTITIES):
            write_all(store, random_points(seeded(number), hours=(0, 2), amount=200), identity)
    return path


@contextmanager
def opened(path: Path) -> Iterator[DuckDBStore]:
    """Open a store for the length of the block."""
    store = DuckDBStore(path)
    try:
        yield store
    finally:
        store.close()


def lay_together(path: Path, *, batch_rows: int = 100, before_ns: int = END_NS) -> list[int]:
    """Lay samples together until there is no batch left; return how many at each turn."""
    database = Database(path)
    try:
        one = Compaction(database, batch_rows=batch_rows)
        return list(iter(lambda: one.run("gpu", before_ns=before_ns), 0))
    finally:
        database.close()


def rows(path: Path, text: str) -> list[tuple[object, ...]]:
    """Return what the file says."""
    with duckdb.connect(str(path)) as connection:
        return connection.execute(text).fetchall()


def of_appliance(store: Store, name: str, aggregate: Aggregate = Aggregate.SUM) -> list[Series]:
    """Return what a store says about an appliance by ten minutes."""
    return store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("count",),
            start_ns=START_NS,
            end_ns=END_NS,
            aggregate=aggregate,
            step_ns=10 * MINUTE_NS,
            tenants=None,
            filters={"appliance": (name,)},
            group_by=("gpu",),
        )
    )


def all_points(store: Store) -> list[tuple[object, ...]]:
    """Return every sample, in an order that does not depend on where it is."""
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=END_NS, tenants=None)
    found = [point for batch in store.scan(query) for point in batch.points()]
    return sorted(
        (point.time_ns, tuple(sorted(point.tags.items())), tuple(sorted(point.fields.items())))
        for point in found
    )


def answers(path: Path) -> object:
    """Return much of what a store can say."""
    with opened(path) as store:
        asked = [
            of_appliance(store, name, aggregate)
            for name in NAMES
            for aggregate in (Aggregate.SUM, Aggregate.P95)
        ]
        return asked, all_points(store)


def test_answers_are_the_same_before_and_after(path: Path) -> None:
    before = answers(path)
    assert sum(lay_together(path)) > 400
    assert answers(path) == before


def test_the_samples_of_an_appliance_lie_together_within_a_batch(path: Path) -> None:
    lay_together(path, batch_rows=600)
    names = [name for (name,) in rows(path, "SELECT tag_appliance FROM m_gpu ORDER BY rowid")]
    changes = sum(one != other for one, other in pairwise(names))
    assert changes == len(NAMES) - 1


def test_fewer_samples_than_a_batch_stay_where_they_are(path: Path) -> None:
    assert lay_together(path, batch_rows=601) == []


def test_samples_of_the_minutes_that_are_still_open_stay_where_they_are(path: Path) -> None:
    open_since = START_NS + 60 * MINUTE_NS
    lay_together(path, batch_rows=10, before_ns=open_since)
    ((newest,),) = rows(path, "SELECT max(time) FROM m_gpu WHERE loose IS NULL")
    assert isinstance(newest, int)
    assert START_NS < newest < open_since


def test_a_sample_that_comes_later_is_found_beside_those_laid_together(path: Path) -> None:
    lay_together(path)
    with opened(path) as store:
        late = Point("gpu", {"gpu": "late"}, {"count": 7}, START_NS + MINUTE_NS)
        write_all(store, [late], ACME)
        found = of_appliance(store, ACME["appliance"])
    assert [series.values for series in found if series.tags == {"gpu": "late"}] == [[7.0]]


def test_roll_ups_are_the_same_of_samples_laid_together(path: Path) -> None:
    lay_together(path)
    with opened(path) as store:
        before = [of_appliance(store, name) for name in NAMES]
        store.roll_up(now_ns=END_NS + 5 * MINUTE_NS)
        after = [of_appliance(store, name) for name in NAMES]
    assert [[one.times_ns for one in some] for some in after] == [
        [one.times_ns for one in some] for some in before
    ]
    for some, others in zip(after, before, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.values == pytest.approx(other.values)


def test_expired_samples_laid_together_are_deleted(path: Path) -> None:
    lay_together(path)
    with opened(path) as store:
        store.delete_before(END_NS, resolution=Resolution.RAW)
        assert all_points(store) == []


def test_a_file_of_an_earlier_version_is_brought_up_to_date(path: Path) -> None:
    rows(path, "ALTER TABLE m_gpu DROP COLUMN loose")
    rows(path, "ALTER TABLE m_gpu DROP COLUMN cluster")
    before = answers(path)
    assert sum(lay_together(path)) > 400
    assert answers(path) == before


def test_samples_that_had_no_number_while_they_were_loose_get_one(path: Path) -> None:
    rows(path, "ALTER TABLE m_gpu DROP COLUMN loose")
    rows(path, "UPDATE m_gpu SET cluster = NULL")
    before = answers(path)
    assert sum(lay_together(path)) > 400
    assert answers(path) == before


def test_a_column_added_meanwhile_costs_no_sample(path: Path) -> None:
    database = Database(path)
    try:
        with database.cursor() as other:
            other.begin()
            other.execute("ALTER TABLE m_gpu ADD COLUMN field_new DOUBLE")
            assert Compaction(database, batch_rows=100).run("gpu", before_ns=END_NS) == 0
            other.commit()
    finally:
        database.close()
    assert sum(lay_together(path)) > 400
    with opened(path) as store:
        assert len(all_points(store)) == 3 * 200


def test_writes_go_on_while_samples_are_laid_together(path: Path) -> None:
    with opened(path) as store:
        stop = threading.Event()
        written: list[int] = []

        def write_on() -> None:
            while not stop.is_set():
                write_all(store, [gpu(END_NS - 1 - len(written), count=1)], ACME)
                written.append(1)

        writer = threading.Thread(target=write_on)
        writer.start()
        try:
            one = Compaction(store._database, batch_rows=50)  # noqa: SLF001 - the file has one opener
            while one.run("gpu", before_ns=END_NS - 30 * MINUTE_NS):
                pass
        finally:
            stop.set()
            writer.join()
        assert len(all_points(store)) == 3 * 200 + len(written)
