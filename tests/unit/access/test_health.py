"""GET /health: 200 only while database and store both answer."""

import time
from pathlib import Path

import pytest
import requests
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.rest import ApiException

from access.app import HEALTH_SECONDS, create_access_app
from core.db import SessionFactory, create_database_engine, create_session_factory
from core.settings import ServerSettings
from tests.cast import NOON
from tests.fixtures.serving import Serving
from tests.unit.access.conftest import SECRET, AgentAPI
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Store, StoreUnavailableError


class _ClosedStore(DuckDBStore):
    """A store that can't be read any more."""

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        raise StoreUnavailableError(f"No answer about {measurement!r} of {tenants!r}.")


def health(sessions: SessionFactory, store: Store, folder: Path) -> requests.Response:
    app = create_access_app(
        settings=ServerSettings(data_dir=folder), sessions=sessions, store=store
    )
    with Serving(app) as url:
        return requests.get(f"{url}/health", timeout=60)


def test_health_asks_for_no_secret(api: AgentAPI) -> None:
    response = api.request("GET", "/health", headers={"Authorization": None})
    assert response.status_code == 200
    assert response.json() == {"name": "vedette", "message": "ready", "status": "pass"}


class _CountingStore(DuckDBStore):
    """A store that counts how often it is asked for its fields."""

    asked = 0

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        self.asked += 1
        return super().fields(measurement, tenants=tenants)


def test_endless_requests_cause_few_checks(sessions: SessionFactory, tmp_path: Path) -> None:
    store = _CountingStore(tmp_path / "samples.duckdb")
    app = create_access_app(
        settings=ServerSettings(data_dir=tmp_path), sessions=sessions, store=store
    )
    started = time.monotonic()
    with Serving(app) as url, requests.Session() as client:
        answers = [client.get(f"{url}/health", timeout=60).status_code for _ in range(100)]
    store.close()
    assert set(answers) == {200}
    assert store.asked <= 1 + (time.monotonic() - started) / HEALTH_SECONDS


def test_a_database_that_is_away_is_503(store: Store, tmp_path: Path) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'missing' / 'vedette.db'}")
    response = health(create_session_factory(engine), store, tmp_path)
    engine.dispose()
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
    assert response.headers["Retry-After"] == "2"


@pytest.mark.parametrize("store", [_ClosedStore], indirect=True)
def test_a_store_that_is_away_is_503(
    sessions: SessionFactory, store: Store, tmp_path: Path
) -> None:
    response = health(sessions, store, tmp_path)
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")


def test_influxdbs_client_finds_the_server_healthy_and_ready(api: AgentAPI) -> None:
    with InfluxDBClient(url=api.url, token=SECRET, org="any") as client:
        with pytest.warns(DeprecationWarning, match="ping"):
            health = client.health()
        ready = client.ready()
    assert (health.name, health.status) == ("vedette", "pass")
    assert (ready.status, ready.started, ready.up) == ("ready", NOON, "0s")


@pytest.mark.parametrize("store", [_ClosedStore], indirect=True)
def test_influxdbs_client_finds_a_server_without_its_store_failed(
    sessions: SessionFactory, store: Store, tmp_path: Path
) -> None:
    app = create_access_app(
        settings=ServerSettings(data_dir=tmp_path), sessions=sessions, store=store
    )
    with Serving(app) as url, InfluxDBClient(url=url, token="any", org="any") as client:
        with pytest.warns(DeprecationWarning, match="ping"):
            health = client.health()
        with pytest.raises(ApiException) as refused:
            client.ready()
    assert health.status == "fail"
    assert refused.value.status == 503


def test_a_damaged_store_is_named_and_does_not_stop_the_server(
    sessions: SessionFactory, tmp_path: Path
) -> None:
    store = DuckDBStore(tmp_path / "samples.duckdb")
    store.notice = "Samples are lost."
    response = health(sessions, store, tmp_path)
    store.close()
    assert response.status_code == 200
    assert "vedette store repair" in response.json()["message"]
