"""Other programs answer from files in the open layout what the portal's API answers.

"GPU power by appliance, last week" is asked of DuckDB in a process of its own, of polars from a
bucket, and of Spark and ClickHouse (chdb), for which `make engines` makes an environment.
There is no Trino in a package: its statements are checked by a parser of its dialect, and their
types by those of the files.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import requests
from sqlalchemy import select

from cli.database import open_database
from core.clock import from_ns, to_ns, utc_now
from tenants.models import Tenant
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.s3 import Bucket, credentials, new_bucket
from tests.unit.timeseries.rollup_samples import gpu, seeded, write_all
from timeseries.open_store import open_store
from timeseries.store import DAY_NS, HOUR_NS, Store

ENGINES = Path(__file__).parents[2] / ".venv-engines" / "bin" / "python"
DAYS, APPLIANCES = 8, ("a1", "a2", "a3")
MINUTE_NS = 60 * 10**9
Rows = dict[tuple[str, str], float]
"""The mean power by appliance and day."""
QUESTION = (
    "SELECT tag_appliance, CAST(day AS {text}) AS day, avg(field_power_watts) AS watts "
    "FROM vedette_gpu WHERE {time} >= {start} AND {time} < {end} GROUP BY 1, 2 ORDER BY 1, 2"
)
DUCKDB = """
import duckdb, json, sys
sql, question = json.load(sys.stdin)
with duckdb.connect() as database:
    database.execute(sql)
    print(json.dumps(database.sql(question).fetchall()))
"""
CLICKHOUSE = """
import json, sys
from chdb import session
sql, question = json.load(sys.stdin)
with session.Session() as database:
    for statement in sql.split(";\\n"):
        if statement.strip():
            database.query(statement)
    print(f"[{','.join(str(database.query(question, 'JSONCompactEachRow')).splitlines())}]")
"""
SPARK = """
import json, sys
from pyspark.sql import SparkSession
sql, question = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
for statement in sql.split(";\\n"):
    if statement.strip():
        spark.sql(statement)
print(json.dumps([list(row) for row in spark.sql(question).collect()]))
"""
TRINO = """
import json, sys
import sqlglot
from sqlglot import expressions
sql, _question = json.load(sys.stdin)
trees = sqlglot.parse(sql, dialect="trino")
print(json.dumps([[type(tree).__name__, tree.sql(dialect="trino")] for tree in trees]))
"""


@dataclass(frozen=True)
class World:
    """A deployment whose store has a week of three appliances of acme, in a bucket or folder."""

    deployment: Deployment
    url: str
    place: Path | Bucket
    midnight_ns: int

    def store(self) -> Store:
        return open_store(self.url)

    @property
    def span(self) -> tuple[int, int]:
        """The last seven whole days."""
        return self.midnight_ns - 7 * DAY_NS, self.midnight_ns

    def statements(self, engine: str, *options: str) -> str:
        """Return what `vedette store files` writes for a program."""
        result = self.deployment.process(
            "store", "files", "--tenant", "acme", "--measurement", "gpu", "--format", engine,
            *options, environ={"TIMESERIES_URL": self.url},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout


def make_world(folder: Path, place: Path | Bucket) -> World:
    deployment = make_deployment(folder)
    address = place.address if isinstance(place, Bucket) else place
    url = f"duckdb:///{folder}/samples.duckdb?files={address}&layout=open"
    now_ns = to_ns(utc_now())
    world = World(deployment, url, place, now_ns // DAY_NS * DAY_NS)
    with open_database(deployment.settings) as (_engine, sessions), sessions() as session:
        tenant = session.scalars(select(Tenant.id).where(Tenant.slug == "acme")).one()
    rng, store = seeded(1), world.store()
    for day in range(-DAYS, 0):
        start = world.midnight_ns + day * DAY_NS
        for number, appliance in enumerate(APPLIANCES):
            # Whole numbers on some days, others with many decimal places, and late ones.
            points = [
                gpu(time, power_watts=float(rng.randrange(300)) if day % 2 else rng.gauss(300, 9))
                for time in range(start + number, start + DAY_NS, 30 * MINUTE_NS)
            ]
            write_all(store, points, {"tenant": tenant, "appliance": appliance})
    # Yesterday is sealed half an hour after midnight, which may not have passed yet.
    sealing_ns = world.midnight_ns + HOUR_NS
    store.maintain(now_ns=sealing_ns)
    late = gpu(world.midnight_ns - 2 * DAY_NS + 7, power_watts=1e4)
    write_all(store, [late], {"tenant": tenant, "appliance": "a1"})
    store.maintain(now_ns=sealing_ns)
    store.close()
    return world


def answered(world: World) -> Rows:
    """Return the answer of the portal's API."""
    start, end = (from_ns(time_ns).isoformat() for time_ns in world.span)
    query = {
        "measurement": "gpu", "fields": "power_watts", "aggregate": "avg", "step": "1d",
        "group_by": "appliance", "since": start, "until": end,
    }  # fmt: skip
    with serving(world.deployment, environ={"TIMESERIES_URL": world.url}):
        headers = {"Authorization": f"Bearer {api_token(world.deployment, ALICE)}"}
        url = f"{world.deployment.url}/api/v1/query"
        reply = requests.get(url, params=query, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return {
        (item["tags"]["appliance"], time[:10]): watts
        for item in reply.json()["items"]
        for time, watts in zip(item["times"], item["values"]["power_watts"], strict=True)
    }


def asked(world: World, engine: str, *, script: str, text: str, python: Path) -> Rows:
    """Return the answer of a program in a process of its own."""
    time_column = '"time"' if engine == "duckdb" else "time"
    start, end = world.span
    question = QUESTION.format(text=text, time=time_column, start=start, end=end)
    rows = run(script, [world.statements(engine), question], python=python)
    return {(appliance, day): watts for appliance, day, watts in rows}


def run(script: str, message: object, *, python: Path) -> list[Any]:
    completed = subprocess.run(
        [str(python), "-c", script],
        input=json.dumps(message),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert completed.returncode == 0, completed.stderr
    rows: list[Any] = json.loads(completed.stdout)
    return rows


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("open")
    return make_world(folder / "data", folder / "files")


@pytest.fixture(scope="module")
def in_bucket(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in credentials(s3_endpoint).items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("bucket")
        yield make_world(folder / "data", new_bucket(s3_endpoint))


def require_engines() -> Path:
    if not ENGINES.exists():
        pytest.skip("Spark and ClickHouse are missing: run `make engines`")
    return ENGINES


def test_duckdb_answers_as_the_api_does(in_folder: World) -> None:
    rows = asked(in_folder, "duckdb", script=DUCKDB, text="VARCHAR", python=Path(sys.executable))

    assert rows == pytest.approx(answered(in_folder), rel=1e-12)
    assert len(rows) == 7 * len(APPLIANCES)


def test_roll_ups_answer_as_the_api_does(in_folder: World) -> None:
    start, end = in_folder.span
    question = (
        "SELECT tag_appliance, CAST(day AS VARCHAR), "  # noqa: S608 - ours
        "sum(sum_power_watts) / sum(count_power_watts) "
        f'FROM vedette_gpu_1h WHERE "time" >= {start} AND "time" < {end} GROUP BY 1, 2'
    )
    statements = in_folder.statements("duckdb", "--resolution", "1h")

    rows = run(DUCKDB, [statements, question], python=Path(sys.executable))

    expected = pytest.approx(answered(in_folder), rel=1e-12)
    assert {(appliance, day): watts for appliance, day, watts in rows} == expected


@pytest.mark.nightly
def test_polars_answers_from_the_bucket_as_the_api_does(in_bucket: World) -> None:
    assert isinstance(in_bucket.place, Bucket)
    entries = [json.loads(line) for line in in_bucket.statements("json").splitlines()]
    assert {entry["path"] for entry in entries} <= in_bucket.place.paths()
    files = [f"{in_bucket.place.address}/{entry['path']}" for entry in entries]
    options = {name.lower(): value for name, value in credentials(in_bucket.place.endpoint).items()}
    options["aws_allow_http"] = "true"

    frame = (
        pl.scan_parquet(files, storage_options=options, missing_columns="insert")
        .filter(pl.col("time").is_between(*in_bucket.span, closed="left"))
        .group_by("tag_appliance", pl.from_epoch("time", time_unit="ns").dt.date().alias("day"))
        .agg(pl.mean("field_power_watts"))
        .collect()
    )

    rows = {(appliance, str(day)): watts for appliance, day, watts in frame.rows()}
    assert rows == pytest.approx(answered(in_bucket), rel=1e-12)


@pytest.mark.nightly
def test_clickhouse_answers_from_the_bucket_as_the_api_does(in_bucket: World) -> None:
    python = require_engines()
    rows = asked(in_bucket, "clickhouse", script=CLICKHOUSE, text="String", python=python)

    assert rows == pytest.approx(answered(in_bucket), rel=1e-12)


@pytest.mark.nightly
def test_spark_answers_as_the_api_does(in_folder: World) -> None:
    """Its client of S3 is no part of the package, so the files are in a folder."""
    rows = asked(in_folder, "spark", script=SPARK, text="STRING", python=require_engines())

    assert rows == pytest.approx(answered(in_folder), rel=1e-12)


@pytest.mark.nightly
def test_trino_can_parse_its_statements(in_bucket: World) -> None:
    statements = in_bucket.statements("trino")

    trees = run(TRINO, [statements, ""], python=require_engines())

    assert [kind for kind, _ in trees] == ["Use", "Create", "Create", "Command", "Create"]
    assert '"field_power_watts" DOUBLE' in str(trees[2][1])


def test_without_files_the_command_says_when_there_will_be_some(in_folder: World) -> None:
    result = in_folder.deployment.process(
        "store", "files", "--tenant", "globex", "--measurement", "gpu",
        environ={"TIMESERIES_URL": in_folder.url},
    )  # fmt: skip

    assert result.returncode == 1
    assert "no list of files of measurement 'gpu' of tenant 'globex'" in result.stderr
    assert "half an hour after midnight" in result.stderr


def test_a_reader_of_a_tenants_prefix_needs_nothing_else(in_bucket: World) -> None:
    """All that the statements name is below the tenant's prefix."""
    assert isinstance(in_bucket.place, Bucket)
    prefix = f"{in_bucket.place.address}/tenant="
    addresses = re.findall(r"'(s3://[^']*)'", in_bucket.statements("trino"))
    assert addresses
    assert all(
        address.startswith(prefix) or address == f"{in_bucket.place.address}/"
        for address in addresses
    )
