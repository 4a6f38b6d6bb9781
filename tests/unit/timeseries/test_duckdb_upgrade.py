"""Files of the version before are opened: roll-ups of expired samples become files."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.unit.timeseries.rollup_samples import ACME, HOUR_NS, START_NS, gpu, write_all
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import (
    DAY_NS,
    Aggregate,
    LatestQuery,
    RangeQuery,
    ScanQuery,
    StoreUnavailableError,
)

MINUTE_NS = 60 * 10**9
DAYS = 40
EXPIRED_NS = START_NS + DAYS * DAY_NS
STRUCT = (
    'STRUCT(count UINTEGER, sum DOUBLE, min DOUBLE, max DOUBLE, last DOUBLE, "at" BIGINT{sketch})'
)
TAGS = "tag_appliance VARCHAR, tag_gpu VARCHAR, tag_tenant VARCHAR"

# Opens the store, and dies before or after the n-th commit of a file.
DIES = """
import os, signal, sys
from pathlib import Path
from timeseries.duckdb import segments
from timeseries.duckdb.store import DuckDBStore

commit, left = segments.Manifest.commit, [int(sys.argv[2])]

def dying(*args, **kwargs):
    for step in (lambda: commit(*args, **kwargs), lambda: None):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        step()

segments.Manifest.commit = dying
DuckDBStore(Path(sys.argv[1])).close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as the version before has left it: samples of the last day, the rest rolled up.

    Each day of each tenant has two values, 1.0 and 3.0, in two minutes of an hour.
    """
    path = tmp_path / "samples.duckdb"
    with duckdb.connect(str(path)) as connection:
        fields = "time BIGINT NOT NULL, tag_appliance VARCHAR, tag_gpu VARCHAR, tag_tenant VARCHAR"
        connection.execute(
            f"CREATE TABLE m_gpu ({fields}, field_power_watts VARCHAR, field_x DOUBLE, "
            "cluster USMALLINT, unclustered BOOLEAN)"
        )
        sample = ["a1", "0", "acme", "3.5", 2.0, 7, True]
        connection.execute(
            "INSERT INTO m_gpu VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [EXPIRED_NS, *sample]
        )
        for name, sketch in (("r1m_gpu", ""), ("r1h_gpu", ", sketch MAP(INTEGER, UINTEGER)")):
            struct = STRUCT.format(sketch=sketch)
            connection.execute(
                f"CREATE TABLE {name} (time BIGINT NOT NULL, newest BIGINT NOT NULL, {TAGS}, "
                f"field_power_watts {struct}, field_note STRUCT(count UINTEGER))"
            )
        times = f"range(0, {DAYS}) days(day), (VALUES ('acme'), ('globex')) tenants(tenant)"
        at = f"{START_NS} + day * {DAY_NS}"
        text = "{'count': 1}"
        for minute, value in ((0, 1.0), (1, 3.0)):
            start = f"{at} + {minute * MINUTE_NS}"
            one = f"'sum': {value}, 'min': {value}, 'max': {value}, 'last': {value}, 'at': NULL"
            connection.execute(
                f"INSERT INTO r1m_gpu SELECT {start}, {start} + 5, 'a1', '0', tenant, "  # noqa: S608
                f"{{'count': 1, {one}}}, {text} FROM {times}"
            )
        both = "'count': 2, 'sum': 4.0, 'min': 1.0, 'max': 3.0, 'last': 3.0, 'at': NULL"
        sketch = "'sketch': MAP([1, 2], [1::UINTEGER, 1::UINTEGER])"
        connection.execute(
            f"INSERT INTO r1h_gpu SELECT {at}, {at} + {MINUTE_NS} + 5, 'a1', '0', tenant, "  # noqa: S608
            f"{{{both}, {sketch}}}, {text} FROM {times}"
        )
        connection.execute(
            "CREATE TABLE rollup_progress (measurement VARCHAR, minute_until BIGINT, "
            "hour_until BIGINT, raw_since BIGINT, minute_since BIGINT, hour_since BIGINT)"
        )
        connection.execute(
            f"INSERT INTO rollup_progress VALUES ('gpu', {EXPIRED_NS}, {EXPIRED_NS}, {EXPIRED_NS}, "  # noqa: S608
            "NULL, NULL)"
        )
        connection.execute("CREATE TABLE rollup_late (measurement VARCHAR, hour BIGINT)")
        connection.execute(
            "CREATE TABLE staged (number BIGINT NOT NULL, measurement VARCHAR NOT NULL, "
            "columns BLOB NOT NULL)"
        )
    return path


def values(store: DuckDBStore, aggregate: Aggregate, step_ns: int | None) -> Sequence[float]:
    (series,) = store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=START_NS,
            end_ns=EXPIRED_NS,
            aggregate=aggregate,
            step_ns=step_ns,
            tenants=("acme",),
        )
    )
    return series.values


def assert_upgraded(store: DuckDBStore) -> None:
    assert values(store, Aggregate.SUM, None) == [4.0 * DAYS]
    assert values(store, Aggregate.AVG, HOUR_NS) == [2.0] * DAYS
    assert values(store, Aggregate.LAST, 5 * MINUTE_NS) == [3.0] * DAYS
    assert store.measurements(tenants=("globex",)) == ["gpu"]
    left = store.fetch(
        "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'r1%' "
        "OR table_name LIKE 'rollup%'",
        [],
    )
    assert left == []


def test_expired_roll_ups_become_files_and_samples_stay(path: Path) -> None:
    store = DuckDBStore(path)

    assert_upgraded(store)
    # What had been stored as text, because somebody sent that first, is a number again.
    query = LatestQuery(
        measurement="gpu", fields=("power_watts", "x"), since_ns=EXPIRED_NS, tenants=None
    )
    assert [one.values for one in store.latest(query)] == [{"power_watts": 3.5, "x": 2.0}]
    write_all(store, [gpu(EXPIRED_NS + 1, power_watts=4.5)], ACME)
    assert store.maintain(now_ns=EXPIRED_NS + 3 * DAY_NS) == 2
    scan = ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=("acme",))
    points = [point for batch in store.scan(scan) for point in batch.points()]
    assert [point.fields["power_watts"] for point in points] == [3.5, 4.5]
    store.close()


def test_an_upgrade_that_is_killed_again_and_again_is_completed(path: Path) -> None:
    command = [sys.executable, "-c", DIES, str(path)]
    for number in range(20):
        child = subprocess.run([*command, str(number % 3)], check=False, timeout=120)
        if child.returncode == 0:
            break
        assert child.returncode == -9

    store = DuckDBStore(path)
    assert_upgraded(store)
    store.close()
    assert number >= 3


def test_staged_arrow_streams_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    DuckDBStore(path).close()
    data = pa.table(
        {
            "time": [1, 2],
            "tag_tenant": pa.array(["acme", "acme"]).dictionary_encode(),
            "tag_appliance": pa.array(["a1", "a1"]).dictionary_encode(),
            "tag_g%20x": pa.array(["0", None]).dictionary_encode(),
            "field_watts": pa.array([1.5, None]),
            "field_%53tate": pa.array([None, "hot"]),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as stream:
        stream.write_table(data)
    with duckdb.connect(str(path)) as connection:
        row = [sink.getvalue().to_pybytes(), "acme"]
        connection.execute("INSERT INTO staged VALUES (1, 'm', ?, ?)", row)

    store = DuckDBStore(path)
    scan = ScanQuery(measurement="m", start_ns=0, end_ns=2**62, tenants=("acme",))
    points = [point for batch in store.scan(scan) for point in batch.points()]
    store.close()

    assert sorted(points, key=lambda point: point.time_ns) == [
        Point("m", {**ACME, "g x": "0"}, {"watts": 1.5}, 1),
        Point("m", ACME, {"State": "hot"}, 2),
    ]


def test_a_file_of_an_earlier_development_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE r1h_gpu (time BIGINT, count_power_watts BIGINT)")

    with pytest.raises(StoreUnavailableError, match="earlier development version"):
        DuckDBStore(path)
