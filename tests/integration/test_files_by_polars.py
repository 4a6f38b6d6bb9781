"""A tenant's history can be read by polars and DuckDB, as docs/operating.md says."""

import random
import re
from pathlib import Path

import duckdb
import polars as pl
import pytest

from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    GLOBEX,
    HOUR_NS,
    START_NS,
    gpu,
    write_all,
)
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import detail_of
from timeseries.store import DAY_NS

DOCUMENT = Path(__file__).parents[2] / "docs" / "operating.md"
MIDNIGHT_NS = START_NS // DAY_NS * DAY_NS
TENANT = "0195-Acme"
FOLDER = "0195%2d%41cme"
MINUTE_NS = 60 * 10**9


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, int], float]]:
    """A folder of two days of two appliances, and the power of a tenant's by appliance and time."""
    folder = tmp_path_factory.mktemp("polars")
    store = DuckDBStore(folder / "samples.duckdb", detail_of=detail_of)
    rng, expected = random.Random(1), dict[tuple[str, int], float]()  # noqa: S311 - samples
    for late in (0, 1):
        for day in (0, 1):
            start = MIDNIGHT_NS + day * DAY_NS + late * 1_000
            for appliance, identity in (("a1", ACME), ("a2", ACME_2)):
                points = []
                for time_ns in range(start, start + DAY_NS - MINUTE_NS, 10 * MINUTE_NS):
                    # The first day has floats, the second decimals, late ones whole numbers.
                    power = round(rng.gauss(300, 9), 1 if day else 17)
                    power = float(round(power)) if day and late else power
                    expected[appliance, time_ns] = power
                    points.append(gpu(time_ns, power_watts=power, energy_joules=1.0))
                write_all(store, points, identity | {"tenant": TENANT})
            write_all(store, [gpu(start, power_watts=-1.0)], GLOBEX)
        store.maintain(now_ns=MIDNIGHT_NS + 3 * DAY_NS)
    store.close()
    return folder, expected


def documented() -> str:
    """Return the example in the documentation."""
    (code,) = re.findall(r"```python\n([^`]*import polars[^`]*)```", DOCUMENT.read_text("utf-8"))
    return str(code)


def test_the_documented_example_reads_every_sample(
    written: tuple[Path, dict[tuple[str, int], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = written
    monkeypatch.chdir(folder)
    names: dict[str, pl.DataFrame] = {}

    exec(documented().replace("<tenant id>", FOLDER), names)  # noqa: S102 - ours

    power = names["power"]
    assert power.schema["time"] == pl.Datetime("ns")
    rows = power.select("tag_appliance", pl.col("time").to_physical(), "field_power_watts").rows()
    assert {(appliance, time_ns): value for appliance, time_ns, value in rows} == expected
    assert len(rows) == len(expected)


def test_the_documented_sql_reads_every_sample(
    written: tuple[Path, dict[tuple[str, int], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = written
    monkeypatch.chdir(folder)
    (folder / "export").mkdir()
    text = DOCUMENT.read_text("utf-8")
    query, copy = re.findall(r"```sql\n((?:SELECT|COPY) [^`]*read_parquet[^`]*)```", text)
    with duckdb.connect() as database:
        power = database.sql(query.replace("<tenant id>", FOLDER))
        rows = power.project("tag_appliance, epoch_ns(sampled_at), power_watts").fetchall()
        database.execute(copy.replace("<tenant id>", FOLDER))
        copied = database.sql(
            "SELECT tag_appliance, time, power_watts FROM 'export/gpu.parquet'"
        ).fetchall()
    assert {(appliance, time_ns): value for appliance, time_ns, value in rows} == expected
    assert len(rows) == len(expected)
    assert sorted(copied) == sorted(rows)


def test_roll_ups_add_up_to_the_samples(
    written: tuple[Path, dict[tuple[str, int], float]],
) -> None:
    folder, expected = written
    files = sorted((folder / "samples" / FOLDER / "gpu").glob("*/*.1h.parquet"))

    totals = (
        pl.concat([pl.scan_parquet(file) for file in files], how="diagonal_relaxed")
        .group_by("tag_appliance", "time")
        .agg(pl.sum("count_power_watts"), pl.max("max_power_watts"))
        .collect()
    )

    windows: dict[tuple[str, int], list[float]] = {}
    for (appliance, time_ns), value in expected.items():
        windows.setdefault((appliance, time_ns - time_ns % HOUR_NS), []).append(value)
    assert {(row[0], row[1]): row[2:] for row in totals.rows()} == {
        window: (len(values), max(values)) for window, values in windows.items()
    }
