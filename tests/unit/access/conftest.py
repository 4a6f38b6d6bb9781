"""The agent API as it runs: uvicorn on a free port, a SQLite file and a DuckDB file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from access.app import create_access_app
from core.db import SessionFactory
from core.settings import ServerSettings
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.conftest import LazyStore
from tests.fixtures.serving import Serving
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import Store

MAX_BODY_BYTES = 200_000
SECRET = "vda_acme_dgx-01"
OTHER_SECRET = "vda_globex_stranger"


@dataclass(frozen=True, slots=True)
class AgentAPI:
    """A running api, and an HTTP session that speaks as one agent."""

    url: str
    http: requests.Session
    app: Any

    @classmethod
    @contextmanager
    def open(cls, url: str, app: Any, *, secret: str) -> "Iterator[AgentAPI]":  # noqa: ANN401
        """Stand before the api with an agent's secret."""
        with requests.Session() as http:
            http.headers["Authorization"] = f"Bearer {secret}"
            yield cls(url, http, app)

    def request(self, method: str, path: str, **details: Any) -> requests.Response:  # noqa: ANN401
        """Send a request with a bound on how long it may take."""
        return self.http.request(method, f"{self.url}{path}", timeout=60, **details)

    def write(self, lines: bytes | str, **details: Any) -> requests.Response:  # noqa: ANN401
        """Push line protocol."""
        return self.request("POST", "/api/v2/write", data=lines, **details)


def eventually(condition: Callable[[], bool], *, within_seconds: float = 60.0) -> bool:
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def store(
    request: pytest.FixtureRequest, tmp_path: Path, empty_store: DuckDBStore
) -> Iterator[Store]:
    """A DuckDB file; a test may name another class as the parameter."""
    kind: type[DuckDBStore] = getattr(request, "param", DuckDBStore)
    empty = empty_store if kind is DuckDBStore else None
    with LazyStore.lasting(lambda: kind(tmp_path / "samples.duckdb"), empty) as store:
        yield store


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast) -> Appliance:
    """Acme's appliance; its agent's secret is `SECRET`."""
    with sessions.begin() as session:
        return make_appliance(session, cast.acme, "dgx-01")


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServerSettings:
    """The api's settings; a test may name some as the parameter."""
    named: dict[str, Any] = getattr(request, "param", {})
    return ServerSettings(data_dir=tmp_path, max_body_bytes=MAX_BODY_BYTES, **named)


@pytest.fixture
def api(
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    dgx: Appliance,
    settings: ServerSettings,
) -> Iterator[AgentAPI]:
    """A api with `dgx`'s agent before it."""
    app = create_access_app(settings=settings, sessions=sessions, store=store, clock=clock)
    with Serving(app) as url, AgentAPI.open(url, app, secret=f"vda_acme_{dgx.name}") as api:
        yield api
