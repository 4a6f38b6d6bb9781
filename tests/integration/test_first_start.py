"""The first `vedette up`: a store that does not answer is named, and no login is lost."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from sqlalchemy import func, select

from cli.database import open_database
from core.settings import ServerSettings
from tenants.models import User
from tests.fixtures.databases import influxdb
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.polling import eventually
from tests.servers import free_port, running
from timeseries.duckdb.store import DuckDBStore

pytestmark = pytest.mark.timeout(300)

ADMIN = "admin@vedette.example"
_PASSWORD = re.compile(rf"{ADMIN}\s+(\S+)")


@dataclass(frozen=True)
class Host:
    """A folder and a port for `vedette up` on one store."""

    folder: Path
    port: int
    store_url: str

    def environ(self, **variables: str) -> Mapping[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "VEDETTE_DATA_DIR": str(self.folder),
            "VEDETTE_PORT": str(self.port),
            "TIMESERIES_URL": self.store_url,
            **variables,
        }

    def fail(self, *arguments: str, **variables: str) -> Result:
        """Run a command that fails; its error is one line."""
        done = run_vedette(*arguments, environ=self.environ(**variables))
        assert done.returncode == 1, done.stdout
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done

    def users(self) -> int:
        with open_database(ServerSettings(data_dir=self.folder)) as (_engine, sessions):
            return sessions().scalar(select(func.count()).select_from(User)) or 0


@pytest.fixture(scope="module")
def influxdb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with influxdb(tmp_path_factory.mktemp("influxdb")) as url:
        yield url


@pytest.mark.nightly
def test_a_missing_database_is_named_and_logins_are_shown_when_it_is_there(
    influxdb_url: str, tmp_path: Path
) -> None:
    store_url = f"{influxdb_url.replace('http', 'influxdb', 1)}/fleet"
    host = Host(tmp_path / "data", free_port(), store_url)

    for command in (["up"], ["store", "stats"]):
        done = host.fail(*command)
        assert "has no database 'fleet'" in done.stderr
        assert "CREATE DATABASE" in done.stderr
        assert "@" not in done.stdout
    assert host.users() == 0

    statement = {"q": "CREATE DATABASE fleet"}
    requests.post(f"{influxdb_url}/query", data=statement, timeout=30).raise_for_status()
    # The agent can't enroll there: the start fails, but only after the logins are shown.
    unreachable = f"http://127.0.0.1:{free_port()}"
    shown = _PASSWORD.search(host.fail("up", VEDETTE_PUBLIC_URL=unreachable).stdout)
    assert shown is not None

    log_path = tmp_path / "up.log"
    with running(
        [sys.executable, "-m", "cli.main", "up"], log_path=log_path, environ=host.environ()
    ):
        eventually(
            lambda: "Vedette is running at" in log_path.read_text(),
            within_seconds=90,
            what="vedette up",
        )
        made = requests.post(
            f"http://127.0.0.1:{host.port}/api/v1/tokens",
            json={"name": "test"},
            auth=(ADMIN, shown[1]),
            timeout=60,
        )
    assert made.status_code == 201
    assert not _PASSWORD.search(log_path.read_text())


@pytest.mark.nightly
def test_a_server_that_does_not_run_is_named(tmp_path: Path) -> None:
    port = free_port()
    host = Host(tmp_path, free_port(), f"victoriametrics://127.0.0.1:{port}")
    for command in (["up", "--no-agent"], ["store", "stats"]):
        done = host.fail(*command)
        assert f"http://127.0.0.1:{port} does not answer" in done.stderr
        assert "TIMESERIES_URL" in done.stderr
    assert host.users() == 0


def test_a_file_that_another_process_has_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "blocked" / "metrics.duckdb"
    host = Host(tmp_path / "data", free_port(), f"duckdb:///{path}")
    with closing(DuckDBStore(path)):
        done = host.fail("up", "--demo", "--no-agent")
    assert f"{path} is in use by process {os.getpid()}" in done.stderr
    assert host.users() == 0
