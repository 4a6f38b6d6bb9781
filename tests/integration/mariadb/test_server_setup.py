"""MariaDB servers with other defaults than ours: used as they are, or refused with the remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.mariadb import MariaDB
from tests.servers import free_port


@dataclass
class Latin1:
    """A database with an old character set, on a server that reads double quotes as names."""

    server: Engine
    url: str
    folder: Path

    def run(self, *arguments: str) -> Result:
        environ = {
            "DATABASE_URL": self.url,
            "VEDETTE_DATA_DIR": str(self.folder),
            "VEDETTE_PORT": str(free_port()),
            "VEDETTE_CONFIG": "",
        }
        return run_vedette(*arguments, environ=environ)


@pytest.fixture
def latin1(mariadb: MariaDB, tmp_path: Path) -> Iterator[Latin1]:
    url = mariadb.new_database()
    server = create_engine(url)
    with server.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {server.url.database} CHARACTER SET latin1")
        before = connection.scalar(text("SELECT @@GLOBAL.sql_mode"))
        connection.exec_driver_sql("SET GLOBAL sql_mode = 'ANSI_QUOTES'")
    try:
        yield Latin1(server, url, tmp_path)
    finally:
        with server.begin() as connection:
            connection.execute(text("SET GLOBAL sql_mode = :mode"), {"mode": before})
        server.dispose()


@pytest.mark.needs_mariadb
def test_init_prepares_an_empty_database_for_all_text(latin1: Latin1) -> None:
    made = latin1.run("server", "init", "--operator", "olivia@vedette.example")
    assert made.returncode == 0, made
    assert "Set the character set of the empty database to utf8mb4." in made.stdout
    assert latin1.run("tenant", "add", "train-🔥", "--slug", "fire").returncode == 0
    assert "train-🔥" in latin1.run("tenant", "list").stdout


@pytest.mark.needs_mariadb
def test_a_server_refuses_a_database_that_cannot_store_all_text(latin1: Latin1) -> None:
    for command in ("server",), ("db", "upgrade"):
        refused = latin1.run(*command)
        assert refused.returncode == 1
        assert "ALTER DATABASE" in refused.stderr
    with latin1.server.connect() as connection:
        assert connection.exec_driver_sql("SHOW TABLES").all() == []


@pytest.mark.needs_mariadb
def test_check_names_the_tables_that_cannot_store_all_text(latin1: Latin1) -> None:
    with latin1.server.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE jobs (name VARCHAR(9))")
    checked = latin1.run("server", "check")
    assert checked.returncode == 1
    assert "can't store all text: jobs." in checked.stdout
    assert "docs/runbooks.md" in checked.stdout


@pytest.mark.needs_mariadb
def test_check_reports_rights_that_migrations_need(latin1: Latin1) -> None:
    name = latin1.server.url.database
    with latin1.server.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} CHARACTER SET utf8mb4")
        connection.exec_driver_sql("CREATE OR REPLACE USER 'reader'@'%%'")
        connection.exec_driver_sql(f"GRANT SELECT ON {name}.* TO 'reader'@'%%'")
    reader = Latin1(latin1.server, latin1.url.replace("root@", "reader@"), latin1.folder)
    checked = reader.run("server", "check")
    assert checked.returncode == 1
    assert f"GRANT ALL ON `{name}`.*" in checked.stdout
