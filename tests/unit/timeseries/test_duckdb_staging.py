"""Staged points are durable, seen by every reader, and in their tables soon."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from tests.fixtures.polling import eventually
from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.hot import writer as duckdb_writer
from timeseries.duckdb.hot.database import Database
from timeseries.duckdb.hot.rows import deserialize, rows_of, serialize
from timeseries.duckdb.hot.staging import STAGING_TABLE, StagingTable
from timeseries.duckdb.hot.writer import MIN_DIRECT_POINTS, DuckDBWriter
from timeseries.duckdb.schema import COLUMNS_SQL, Key, Table, parse_schema, quoted, table_name
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch, Point
from timeseries.store import Latest, LatestQuery, StoreUnavailableError, write
from timeseries.validation import FieldType

ACME = {"tenant": "acme", "appliance": "a1"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}

# Has points acknowledged, with a new tag and a new field each time, and is gone before they are
# in their tables.
DIES_AFTER_THE_ACKNOWLEDGEMENT = """
import os, signal, sys
from pathlib import Path
import timeseries.duckdb.hot.writer
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import write

timeseries.duckdb.hot.writer.FLUSH_INTERVAL_SECONDS = 3600.0
store = DuckDBStore(Path(sys.argv[1]))
for n in range(3):
    gpu = Point("gpu", {f"tag{n}": "x"}, {"n": n, f"f{n}": 0.5}, n)
    points = [gpu, Point("cpu", {}, {"b": True}, n)]
    assert write(store, points, identity={"tenant": "acme", "appliance": "a1"}) == []
os.kill(os.getpid(), signal.SIGKILL)
"""


def point(value: float, *, measurement: str = "cpu", time_ns: int = 1) -> Point:
    return Point(measurement, {}, {"used": value}, time_ns)


def newest(store: DuckDBStore, measurement: str = "cpu") -> list[Latest]:
    query = LatestQuery(
        measurement=measurement,
        fields=("used", "n", "f0", "f1", "f2", "b"),
        tenants=None,
        group_by=("tenant",),
        since_ns=0,
    )
    return store.latest(query)


@contextmanager
def writing(path: Path) -> Iterator[DuckDBWriter]:
    database = Database(path)
    with database.cursor() as cursor:
        manifest = Manifest(cursor, database.files)
    writer = DuckDBWriter(database, manifest, is_rolled_up=lambda *_: True, max_queued_points=1_000)
    try:
        yield writer
    finally:
        writer.close()
        database.close()


def rows(path: Path, table: str) -> int:
    with duckdb.connect(str(path)) as connection:
        return len(connection.execute(f"FROM {quoted(table)}").fetchall())


def test_a_reader_sees_what_was_acknowledged_before(store: DuckDBStore) -> None:
    for n in range(20):
        write(store, [point(n, time_ns=n)], identity=ACME)
        assert [latest.values for latest in newest(store)] == [{"used": n}]


def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    died = subprocess.run(
        [sys.executable, "-c", DIES_AFTER_THE_ACKNOWLEDGEMENT, str(path)],
        check=False,
        timeout=120,
    )
    assert died.returncode == -9
    assert rows(path, STAGING_TABLE) == 6

    store = DuckDBStore(path)
    assert [latest.values for latest in newest(store, "gpu")] == [
        {"n": 2, "f0": 0.5, "f1": 0.5, "f2": 0.5}
    ]
    assert store.tags("gpu", tenants=None) == ["tenant", "appliance", "tag0", "tag1", "tag2"]
    assert store.fields("cpu", tenants=None) == {"b": "boolean"}
    store.close()
    assert (rows(path, STAGING_TABLE), rows(path, table_name(Key("acme", "gpu")))) == (0, 3)


def test_the_stage_is_empty_after_a_while_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_writer, "FLUSH_INTERVAL_SECONDS", 0.2)
    path = tmp_path / "samples.duckdb"
    with writing(path) as writer:
        writer.submit(Batch.of([point(1)]), ACME).result()
        assert eventually(lambda: writer.staged_points == 0)
        writer.submit(Batch.of([point(2)]), ACME).result()

    assert (rows(path, STAGING_TABLE), rows(path, table_name(Key("acme", "cpu")))) == (0, 2)


def test_a_field_keeps_the_type_it_has_on_the_stage(store: DuckDBStore) -> None:
    write(store, [point(1.5)], identity=ACME)

    (rejected,) = write(store, [Point("cpu", {}, {"used": "much"}, 2)], identity=ACME)

    assert "type float" in rejected.reason


def test_many_points_go_past_the_stage(store: DuckDBStore) -> None:
    write(store, [point(1.0)], identity=ACME)
    write(store, [point(2.0, time_ns=n + 2) for n in range(MIN_DIRECT_POINTS)], identity=ACME)

    assert [latest.values for latest in newest(store)] == [{"used": 2.0}]


def test_a_deleted_tenants_samples_do_not_come_back_from_the_stage(store: DuckDBStore) -> None:
    write(store, [point(1.0)], identity=ACME)
    write(store, [point(2.0)], identity=GLOBEX)

    store.delete_tenant("acme")

    assert [latest.tags["tenant"] for latest in newest(store)] == ["globex"]


def test_a_table_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    with writing(path) as writer:
        writer.submit(Batch.of([point(1, measurement="gpu"), point(1)]), ACME).result()
        assert writer.measurements(None) == {"gpu", "cpu"}
        writer.run(lambda cursor, _schema: cursor.execute('DROP TABLE "t_acme.gpu"'))
        writer.submit(Batch.of([point(2, measurement="gpu"), point(2)]), ACME).result()
        assert writer.measurements(None) == {"gpu", "cpu"}
        assert Key("acme", "cpu") in writer.schema  # once all that can be is in the tables
        assert writer.staged_points == 1

    assert (rows(path, STAGING_TABLE), rows(path, table_name(Key("acme", "cpu")))) == (1, 2)


def test_a_read_fails_while_staged_samples_cannot_be_flushed(
    store: DuckDBStore,
) -> None:
    for measurement in ("gpu", "cpu"):
        write(store, [point(1.0, measurement=measurement)], identity=ACME)
    assert store.measurements(tenants=None) == ["cpu", "gpu"]
    run = store.writer.run  # nothing else can break one table
    run(lambda cursor, _schema: cursor.execute('ALTER TABLE "t_acme.gpu" RENAME TO hidden'))
    for measurement in ("gpu", "cpu"):
        write(store, [point(2.0, measurement=measurement, time_ns=2)], identity=ACME)

    assert [latest.values for latest in newest(store)] == [{"used": 2.0}]
    with pytest.raises(StoreUnavailableError, match="Samples of 'gpu' are staged"):
        newest(store, "gpu")
    with pytest.raises(StoreUnavailableError):
        store.measurements(tenants=None)


def test_columns_are_the_same_after_they_were_staged(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    mixed = [
        Point("mix", {"a": "x"}, {"f": 1.5, "i": 2**62, "b": False, "s": "täxt\n"}, -5),
        Point("mix", {"b": ""}, {"f": -0.0}, 7),
        Point("M", {}, {"f": 3}, 7),
    ]
    with writing(path) as writer:
        for sample in mixed:
            writer.submit(Batch.of([sample]), ACME).result()

    with duckdb.connect(str(path)) as connection:
        table_rows = connection.execute(
            "SELECT time, tag_a, tag_b, field_f, field_i, field_b, field_s "
            'FROM "t_acme.mix" ORDER BY time'
        ).fetchall()
        schema = parse_schema(connection.execute(COLUMNS_SQL).fetchall())
    assert table_rows == [
        (-5, "x", None, 1.5, 2**62, False, "täxt\n"),
        (7, None, None, -0.0, *[None] * 3),
    ]
    assert set(schema) == {Key("acme", "mix"), Key("acme", "M")}


def test_the_stage_has_the_schema_that_its_tables_will_have() -> None:
    table = Table(
        frozenset({"tenant", "appliance", "host"}),
        {"a": FieldType.FLOAT, "b": FieldType.INTEGER, "c": FieldType.STRING},
    )
    block = Batch.of([Point("m", {"host": "x"}, {"a": 1, "b": 2, "c": "täxt"}, 1)]).blocks[0]
    rows = [rows_of(block, ACME, table)]
    with duckdb.connect() as connection:
        stage = StagingTable(connection.cursor())
        stage.inserted({Key("acme", "m"): rows})

        assert stage.schema({}) == {Key("acme", "m"): table}

    assert deserialize(serialize(rows)) == rows
