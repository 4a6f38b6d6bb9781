"""The backends under the store contract: how each is opened, and what it documents as its own.

A backend that keeps less than the embedded store says so here, and the suite asserts what it does
instead: no behavior goes untested for being different.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
import requests

from core.ids import new_id
from tests.fixtures.memory_stores import reused_store
from timeseries.influxdb.store import InfluxDBStore
from timeseries.points import Batch
from timeseries.store import RejectedPoint, Store
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.store import VictoriaMetricsStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The properties of points that a backend preserves; the defaults are the embedded store's.

    Attributes:
        stores_text: text fields are kept; else they are left out, and so is a point of text.
        keeps_types: integers and booleans come back as such; else all values are floats, and no
            value clashes with the type of an earlier one.
        keeps_negative_zero: -0.0 comes back as such; else as 0.0.
        nanosecond_time: times are kept to the nanosecond; else to the millisecond.
        keeps_before_1970: times before 1970-01-05 are kept; else refused.
        deletes_by_time: `delete_before` deletes; else retention is the server's own setting.
        declares_types: declared fields, those of docs/metrics.md, take numbers only.
        keeps_last_write: of a series and instant the last write counts, field by field; else any of
            the values of each field does, the same in all reads.
        refused_in_names: the characters that no name or tag value may hold.
        refused_in_fields: those that moreover no field's name may hold.
    """

    stores_text: bool = True
    keeps_types: bool = True
    keeps_negative_zero: bool = True
    nanosecond_time: bool = True
    keeps_before_1970: bool = True
    deletes_by_time: bool = True
    declares_types: bool = False
    keeps_last_write: bool = True
    refused_in_names: str = ""
    refused_in_fields: str = ""

    def keeps_name(self, name: str) -> bool:
        """Return whether a measurement, tag and field of this name can be stored."""
        return not set(name) & set(self.refused_in_names + self.refused_in_fields)


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of store: `open` gives an empty one, on a server shared by the tests of a worker."""

    open: Callable[[pytest.FixtureRequest], Store]
    capabilities: Capabilities = Capabilities()


class FlushedVictoriaMetricsStore(VictoriaMetricsStore):
    """Answers a write once the server finds it: about a second sooner than it does by itself."""

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> "Future[list[RejectedPoint]]":
        written = super().submit(batch, identity=identity)
        searchable: Future[list[RejectedPoint]] = Future()

        def flush(done: "Future[list[RejectedPoint]]") -> None:
            try:
                rejected = done.result()
                self._client.flush()
            except Exception as fault:  # noqa: BLE001 - the one who waits is told
                searchable.set_exception(fault)
            else:
                searchable.set_result(rejected)

        written.add_done_callback(flush)
        return searchable


def _duckdb(request: pytest.FixtureRequest) -> Store:
    folders: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return reused_store(folders.getbasetemp() / "contract.duckdb")


def _influxdb(request: pytest.FixtureRequest) -> Store:
    url: str = request.getfixturevalue("influxdb_url")
    database = f"contract_{new_id()}"

    def ask(statement: str) -> None:
        requests.post(f"{url}/query", data={"q": statement}, timeout=60).raise_for_status()

    ask(f'CREATE DATABASE "{database}"')
    request.addfinalizer(lambda: drop_databases(url, database))
    return InfluxDBStore.from_url(f"{url.replace('http', 'influxdb', 1)}/{database}")


def drop_databases(url: str, base: str) -> None:
    """Drop a database of an InfluxDB and those of its tenants."""
    listed = requests.post(f"{url}/query", data={"q": "SHOW DATABASES"}, timeout=60).json()
    names = [row[0] for row in listed["results"][0]["series"][0]["values"]]
    drops = [f'DROP DATABASE "{name}"' for name in names if name.startswith(base)]
    requests.post(f"{url}/query", data={"q": "; ".join(drops)}, timeout=60).raise_for_status()


def _victoria_metrics(request: pytest.FixtureRequest) -> Store:
    url: str = request.getfixturevalue("victoria_metrics_url")
    return FlushedVictoriaMetricsStore(VictoriaMetricsClient(url), database=new_id())


BACKENDS = {
    # In a file, as in production; the other tests keep it in memory.
    "duckdb": Backend(_duckdb, Capabilities(declares_types=True)),
    "influxdb": Backend(_influxdb, Capabilities(keeps_negative_zero=False)),
    "victoriametrics": Backend(
        _victoria_metrics,
        Capabilities(
            stores_text=False,
            keeps_types=False,
            keeps_negative_zero=False,
            nanosecond_time=False,
            keeps_last_write=False,
            keeps_before_1970=False,
            deletes_by_time=False,
            refused_in_names="\n",
            refused_in_fields='"',
        ),
    ),
}
