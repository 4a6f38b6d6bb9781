"""An empty store of each backend in turn; the servers are shared by the tests of one worker."""

from collections.abc import Iterator

import pytest

from tests.contract.store.backends import BACKENDS, Backend, Capabilities
from tests.fixtures.databases import influxdb, victoria_metrics
from timeseries.store import Store


@pytest.fixture(scope="session")
def victoria_metrics_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A VictoriaMetrics; each store in it has a database of its own."""
    with victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url:
        yield url


@pytest.fixture(scope="session")
def influxdb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An InfluxDB; each store has a database of its own on it."""
    with influxdb(tmp_path_factory.mktemp("influxdb")) as url:
        yield url


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each kind of store."""
    name: str = request.param
    return BACKENDS[name]


@pytest.fixture
def capabilities(backend: Backend) -> Capabilities:
    """The documented capabilities of the backend under test."""
    return backend.capabilities


@pytest.fixture
def store(backend: Backend, request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of this kind."""
    opened = backend.open(request)
    yield opened
    opened.close()
