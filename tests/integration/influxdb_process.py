"""An InfluxDB that tests start and end, and stores on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from tests.servers import free_port
from timeseries.influxdb.store import InfluxDBStore
from timeseries.points import FieldValue, Point
from timeseries.store import Aggregate, RangeQuery

ACME = {"tenant": "acme", "appliance": "a1"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
PASSWORD = "a secret"


class Server:
    """An InfluxDB's port and folder, which outlive its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def ask(self, statement: str, **credentials: str) -> requests.Response:
        """Run InfluxQL as an administrator would."""
        return requests.post(
            f"http://127.0.0.1:{self.port}/query",
            params={"db": "vedette", **credentials},
            data={"q": statement},
            timeout=60,
        )

    def url(self, *, user: str = "", database: str = "vedette") -> str:
        """Return the URL of a database here."""
        return f"influxdb://{user}127.0.0.1:{self.port}/{database}"


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server that does not run yet."""
    return Server(tmp_path)


@pytest.fixture
def open_store() -> Iterator[Callable[[str], InfluxDBStore]]:
    """Opens stores, and closes them at the end."""
    opened: list[InfluxDBStore] = []

    def open_one(url: str) -> InfluxDBStore:
        opened.append(InfluxDBStore.from_url(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


Opener = Callable[[str], InfluxDBStore]


def gpu(second: float, **fields: FieldValue) -> Point:
    return Point("gpu", {"gpu": "0"}, fields, START_NS + int(second * SECOND_NS))


def count(store: InfluxDBStore) -> float:
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=0,
        end_ns=2**62,
        aggregate=Aggregate.COUNT,
        tenants=None,
    )
    return sum(value for series in store.query_range(query) for value in series.values)


def prepare_users(server: Server) -> None:
    first = server.ask(f"CREATE USER root WITH PASSWORD '{PASSWORD}' WITH ALL PRIVILEGES")
    first.raise_for_status()
    for statement in (
        "CREATE DATABASE vedette",
        f"CREATE USER stranger WITH PASSWORD '{PASSWORD}'",
    ):
        server.ask(statement, u="root", p=PASSWORD).raise_for_status()


def databases(server: Server, **credentials: str) -> list[str]:
    series = server.ask("SHOW DATABASES", **credentials).json()["results"][0]["series"][0]
    return [row[0] for row in series["values"] if row[0] != "_internal"]
