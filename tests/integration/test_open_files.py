"""Other programs answer from files in the open layout what the portal's API answers.

"GPU power by appliance, last week" is asked of DuckDB in a process of its own, of polars from a
bucket, and of Spark and ClickHouse (chdb), for which `make nightly-engines` makes an environment.
There is no Trino in a package: its statements are checked by a parser of its dialect, and their
types by those of the files.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
import polars as pl
import pytest
import requests

from core.clock import to_ns, utc_now
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.s3 import Bucket, credentials, new_bucket, s3_server
from tests.unit.timeseries.rollup_samples import gpu, seeded, write_all
from timeseries.open_store import open_store
from timeseries.store import DAY_NS, Store

ENGINES = Path(__file__).parents[2] / "var" / "engines" / "bin" / "python"
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
    print(f"[{','.join(str(database.query(question, 'JSONCompactEachRow')).split())}]")
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
    with serving(deployment, environ={"TIMESERIES_URL": url}):
        token = api_token(deployment, ALICE)
        me = requests.get(
            f"{deployment.url}/api/v1/me", headers={"Authorization": f"Bearer {token}"}, timeout=60
        ).json()
    tenant = me["tenant"]["id"]
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
    store.maintain(now_ns=now_ns)
    late = gpu(world.midnight_ns - 2 * DAY_NS + 7, power_watts=1e4)
    write_all(store, [late], {"tenant": tenant, "appliance": "a1"})
    store.maintain(now_ns=now_ns)
    store.close()
    return world


def answered(world: World) -> Rows:
    """Return the answer of the portal's API."""
    start, end = (_instant(time_ns) for time_ns in world.span)
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
        (series["tags"]["appliance"], point["time"][:10]): point["value"]
        for series in reply.json()["series"]
        for point in series["points"]
    }


def asked(world: World, engine: str, *, script: str, text: str, python: Path) -> Rows:
    """Return the answer of a program in a process of its own."""
    time_column = '"time"' if engine == "duckdb" else "time"
    start, end = world.span
    question = QUESTION.format(text=text, time=time_column, start=start, end=end)
    rows = run(script, [world.statements(engine), question], python=python)
    return {(appliance, day[:10]): watts for appliance, day, watts in rows}


def run(script: str, message: object, *, python: Path) -> list[list[str | float]]:
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
    return json.loads(completed.stdout)


def _instant(time_ns: int) -> str:
    raise NotImplementedError
