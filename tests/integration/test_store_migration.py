"""Samples move between the embedded store, InfluxDB and VictoriaMetrics, both ways."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from core.ids import new_id
from tests.fixtures.databases import influxdb, victoria_metrics
from tests.unit.timeseries.migration_samples import END_NS, START_NS, all_of, write_history
from timeseries.migration.compare import Selection, differences, omitted_fields
from timeseries.migration.migration import Migration, MigrationResult
from timeseries.migration.state import StateFile
from timeseries.open_store import open_store
from timeseries.points import Point
from timeseries.store import Store, write

HOURS = 6
ALL = Selection(start_ns=START_NS, end_ns=END_NS)
KINDS = ("duckdb", "influxdb", "victoriametrics")
SHARED = "influxdb of one database"
PAIRS = [
    *((origin, goal) for origin in KINDS for goal in KINDS if origin != goal),
    (SHARED, "influxdb"),
]


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of the stores; `flush` makes new samples of VictoriaMetrics searchable."""

    influxdb_url: str
    victoria_metrics_url: str

    def flush(self) -> None:
        address = f"{self.victoria_metrics_url}/internal/force_flush"
        requests.get(address, timeout=60).raise_for_status()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with (
        influxdb(tmp_path_factory.mktemp("influxdb")) as influxdb_url,
        victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as victoria_metrics_url,
    ):
        yield Servers(influxdb_url, victoria_metrics_url)


@pytest.fixture
def open_kind(servers: Servers, tmp_path: Path) -> Callable[[str], Store]:
    """Return an opener of an empty store of each kind, by its URL."""

    def open_one(kind: str) -> Store:
        name = new_id()
        if kind == "duckdb":
            return open_store(f"duckdb:///{tmp_path}/{name}.duckdb")
        if kind in ("influxdb", SHARED):
            statement = {"q": f'CREATE DATABASE "{name}"'}
            requests.post(f"{servers.influxdb_url}/query", data=statement, timeout=60)
            address = servers.influxdb_url.replace("http", "influxdb", 1)
            return open_store(f"{address}/{name}{'?databases=shared' if kind == SHARED else ''}")
        address = servers.victoria_metrics_url.replace("http", "victoriametrics", 1)
        return open_store(f"{address}?database={name}")

    return open_one


def rows_of(store: Store, measurement: str, *, is_plain: bool) -> list[tuple[object, ...]]:
    """Return the points as rows; plain ones have no text, and numbers alone."""
    rows = []
    for batch in store.scan(all_of(measurement)):
        for point in batch.points():
            fields = [
                (name, float(value) if is_plain and not isinstance(value, str) else value)
                for name, value in sorted(point.fields.items())
                if not (is_plain and isinstance(value, str))
            ]
            rows.append((point.time_ns, *sorted(point.tags.items()), *fields))
    return sorted(rows, key=repr)


@pytest.mark.parametrize(
    ("origin", "goal"),
    [PAIRS[0], *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in PAIRS[1:])],
)
def test_a_history_is_the_same_after_the_move_even_if_it_was_stopped_and_grew(
    *, origin: str, goal: str, servers: Servers, open_kind: Callable[[str], Store], tmp_path: Path
) -> None:
    is_plain = "victoriametrics" in (origin, goal)
    state = StateFile(tmp_path / "state.json", key="x")

    def move(*, steps: int) -> MigrationResult:
        servers.flush()
        answers = iter([False] * steps)
        moving = Migration(source, destination, ALL, state=state, pause=lambda _seconds: None)
        outcome = moving.run(
            should_stop=lambda: next(answers, True), on_progress=lambda _progress: None
        )
        servers.flush()
        return outcome

    with closing(open_kind(origin)) as source, closing(open_kind(goal)) as destination:
        total = write_history(source, hours=HOURS)
        assert not move(steps=5).is_complete
        late = Point("gpu", {"gpu": "late"}, {"power_watts": 9.0}, START_NS + 7_000_000)
        write(source, [late], identity={"tenant": "acme", "appliance": "a1"})
        total += 1
        outcome = move(steps=1000)

        assert (outcome.is_complete, outcome.points, outcome.rejected) == (True, total, 0)
        for name in ("gpu", "host"):
            expected = rows_of(source, name, is_plain=is_plain)
            assert rows_of(destination, name, is_plain=is_plain) == expected
        ignored: list[object] = []
        remaining = differences(
            source,
            destination,
            ALL,
            on_chunk=ignored.append,
            pause=lambda _seconds: servers.flush(),
        )
        assert list(remaining) == []
        expected_loss = ["host.kernel"] if goal == "victoriametrics" else []
        assert omitted_fields(source, destination, ALL) == expected_loss
