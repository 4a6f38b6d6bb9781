"""`vedette store stats` says of which store the number of points is only a lower bound."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from cli.local_time import local_seconds
from cli.store import store as command
from tests.fixtures.databases import influxdb, victoria_metrics
from tests.fixtures.polling import eventually
from tests.unit.timeseries.migration_samples import START_NS
from timeseries.open_store import open_store
from timeseries.points import Point
from timeseries.store import write

EXTENT = [
    word
    for second in (0, 2)
    for word in local_seconds(datetime(2023, 11, 14, 22, 0, second, tzinfo=UTC)).split()
]
LINES = [["one", "1", "2", "3", *EXTENT], ["two", "2", "2", ">=", "3", *EXTENT]]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The addresses of an empty InfluxDB and an empty VictoriaMetrics."""
    with (
        influxdb(tmp_path_factory.mktemp("influxdb")) as influxdb_url,
        victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as victoria_metrics_url,
    ):
        statement = {"q": "CREATE DATABASE fleet"}
        requests.post(f"{influxdb_url}/query", data=statement, timeout=30).raise_for_status()
        yield {
            "influxdb": f"{influxdb_url.replace('http', 'influxdb', 1)}/fleet",
            "victoriametrics": victoria_metrics_url.replace("http", "victoriametrics", 1),
        }


@pytest.mark.parametrize("kind", ["influxdb", "victoriametrics"])
def test_points_that_cannot_be_counted_are_marked(
    urls: Mapping[str, str], kind: str, tmp_path: Path
) -> None:
    opened = open_store(urls[kind])
    times = [START_NS + second * 10**9 for second in range(3)]
    points = [Point("one", {}, {"x": 1.0}, time) for time in times]
    points += [Point("two", {}, {"x": 1.0, "y": 2.0}, time) for time in times]
    assert write(opened, points, identity={"tenant": "acme", "appliance": "a1"}) == []
    opened.close()

    def lines() -> list[str]:
        environ = {"VEDETTE_DATA_DIR": str(tmp_path)}
        answer = CliRunner().invoke(command, ["stats", "--url", urls[kind]], env=environ)
        assert answer.exit_code == 0, answer.output
        return answer.output.splitlines()

    # VictoriaMetrics finds what it was given about a second later.
    eventually(lambda: cells(lines()) == LINES, within_seconds=30, what="both measurements")
    assert any(line.startswith(">=: ") for line in lines())


def cells(lines: list[str]) -> list[list[str]]:
    """Return the words of the two measurements' lines."""
    return [line.split() for line in lines[1:3]]
