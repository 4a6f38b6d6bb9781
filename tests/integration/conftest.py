"""Fixtures of the integration tests: MariaDB, a portal behind nginx, and SQLite files."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from core.db import Base, create_database_engine
from tests.fixtures.kubernetes_site import kubernetes_server
from tests.fixtures.mariadb import BOTH_DATABASES, MariaDB, mariadb_server
from tests.fixtures.nginx import Front, deployment_behind_nginx
from tests.fixtures.nvml import fake_nvml
from tests.fixtures.shared_portal import serve, servers_share_portal, shared_portals

__all__ = ["fake_nvml", "kubernetes_server", "serve", "servers_share_portal", "shared_portals"]


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A running MariaDB server, shared by all that ask it for a database."""
    with mariadb_server(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_tables(mariadb: MariaDB) -> Iterator[Engine]:
    """A database with every table: to make them takes longer than most tests."""
    engine = create_database_engine(mariadb.new_database())
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A portal with and without nginx before it; tests enroll appliances of their own names."""
    with deployment_behind_nginx(tmp_path_factory.mktemp("front")) as front:
        yield front


@pytest.fixture(scope="module", params=BOTH_DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty database for the tests of a file: on SQLite, and again on MariaDB."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('database') / 'vedette.db'}"
    server: MariaDB = request.getfixturevalue("mariadb")
    return server.new_database()
