"""Statements evaluated by us and by Debian's InfluxDB over the same samples."""

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.fixtures.databases import influxdb
from tests.fixtures.memory_stores import memory_store
from tests.integration.influxql_statements import FIELDS, Statements, points
from timeseries.influxql.queries import answers
from timeseries.lineprotocol.encode import encode
from timeseries.promql.selection import Source
from timeseries.store import Store, write

CASES = 150
START_SECONDS, SECONDS = 1_700_000_100, 3_600
NOW_NS = (START_SECONDS + 2 * SECONDS) * 1_000_000_000
TOLERANCE = 1e-9
DATABASE = "beside"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with influxdb(tmp_path_factory.mktemp("influxdb")) as address:
        created = requests.post(
            f"{address}/query", data={"q": f"CREATE DATABASE {DATABASE}"}, timeout=30
        )
        created.raise_for_status()
        written = requests.post(
            f"{address}/write",
            params={"db": DATABASE},
            data=encode(points(START_SECONDS, SECONDS)),
            timeout=30,
        )
        written.raise_for_status()
        yield address


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = memory_store()
    assert write(opened, points(START_SECONDS, SECONDS), identity={"tenant": "acme"}) == []
    yield opened
    opened.close()


@pytest.mark.nightly
def test_random_statements_have_the_answers_that_influxdb_gives(url: str, store: Store) -> None:
    chance = random.Random(20_261_126)  # noqa: S311 - not for secrets
    statements = Statements(chance, START_SECONDS, SECONDS)
    errors, with_values = [], 0
    for _ in range(CASES):
        text = statements.statement()
        theirs = requests.get(
            f"{url}/query", params={"db": DATABASE, "q": text, "epoch": "ms"}, timeout=30
        ).json()["results"]
        source = Source(store, ("acme",))
        ours = json.loads(json.dumps(list(answers(source, text, now_ns=NOW_NS, epoch="ms"))))
        with_values += "series" in theirs[0]
        if not is_equal(without_appliance(ours), theirs):
            errors.append(f"{text}\n    {json.dumps(ours)[:600]}\n    {json.dumps(theirs)[:600]}")
    assert not errors, f"{len(errors)} of {CASES} differ:\n" + "\n".join(errors[:8])
    assert with_values > CASES * 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("interval", ["30s", "1m, 7s", "10m"])
@pytest.mark.parametrize("field", FIELDS)
def test_integrals_have_the_values_that_influxdb_gives(
    url: str, store: Store, field: str, interval: str
) -> None:
    for host, region in (("a1", "east"), ("a1", "west"), ("a2", "east")):
        text = (
            f"SELECT integral({field}, 1m) FROM cpu "
            f"WHERE host = '{host}' AND region = '{region}' AND time >= {START_SECONDS}s "
            f"AND time < {START_SECONDS + SECONDS}s GROUP BY time({interval}) fill(none)"
        )
        theirs = requests.get(
            f"{url}/query", params={"db": DATABASE, "q": text, "epoch": "ms"}, timeout=30
        ).json()["results"]
        ours = list(answers(Source(store, ("acme",)), text, now_ns=NOW_NS, epoch="ms"))
        assert is_equal(json.loads(json.dumps(ours)), theirs), f"{text}\n{ours}\n{theirs}"


def without_appliance(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return answers without the tag that every series of ours has, empty in this test."""
    for series in (series for result in results for series in result.get("series", [])):
        series.get("tags", {}).pop("appliance", None)
        if "appliance" in series["columns"]:
            at = series["columns"].index("appliance")
            del series["columns"][at]
            for row in series["values"]:
                del row[at]
        series["values"] = [row for row in series["values"] if row != ["appliance"]]
    return results


def is_equal(own: object, wanted: object) -> bool:
    """Return whether two answers are the same, their numbers to within the tolerance."""
    if isinstance(own, dict) and isinstance(wanted, dict):
        return own.keys() == wanted.keys() and all(is_equal(own[key], wanted[key]) for key in own)
    if isinstance(own, list) and isinstance(wanted, list):
        return len(own) == len(wanted) and all(map(is_equal, own, wanted))
    if isinstance(own, int | float) and isinstance(wanted, int | float):
        return math.isclose(own, wanted, rel_tol=TOLERANCE, abs_tol=1e-9)
    return own == wanted
