"""Migrations that are killed at any statement continue, and processes that start together wait."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, event, inspect, select, text

from core.db import create_database_engine
from core.errors import ConfigurationError
from core.migrations import schema_differences, upgrade_database
from core.migrations.progress import PROGRESS_TABLE
from core.revisions import current_revision, head_revision
from core.schema_check import schema_problems
from tests.deployment import Deployment, make_deployment
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.polling import eventually
from tests.fixtures.rows import insert_row
from tests.servers import free_port

needs_mariadb = pytest.mark.needs_mariadb
_CHANGES = ("CREATE", "ALTER", "DROP", "RENAME", "INSERT", "UPDATE", "DELETE")
# The first schema with rows that later migrations change.
ROWS: tuple[tuple[str, dict[str, object]], ...] = (
    ("tenants", {"id": "t", "slug": "acme", "name": "Acme"}),
    ("appliances", {"id": "a", "tenant_id": "t", "name": "dgx-01", "state": "online"}),
    ("jobs", {"id": "j", "tenant_id": "t", "name": "train", "state": "queued"}),
    ("attempts", {"id": "x", "job_id": "j", "tenant_id": "t", "appliance_id": "a"}),
    ("rules", {"id": "r", "tenant_id": "t", "name": "hot"}),
    ("alerts", {"id": "al", "rule_id": "r", "tenant_id": "t", "state": "firing"}),
    ("receivers", {"id": "rc", "tenant_id": "t", "name": "Pager"}),
    (
        "notifications",
        {
            "id": "n",
            "tenant_id": "t",
            "alert_id": "al",
            "receiver_id": "rc",
            "state": "sent",
            "payload": json.dumps({"state": "firing", "severity": "critical"}),
        },
    ),
)


class KilledError(BaseException):
    """The process ends here: no handler of the code runs."""


@pytest.fixture
def engines(mariadb: MariaDB) -> Iterator[Callable[[], Engine]]:
    made: list[Engine] = []

    def new() -> Engine:
        made.append(create_database_engine(mariadb.new_database()))
        return made[-1]

    yield new
    for engine in made:
        engine.dispose()


@pytest.mark.nightly
@needs_mariadb
@pytest.mark.timeout(180)
@pytest.mark.parametrize("every", [23, 1])
def test_a_migration_killed_at_many_statements_gives_the_same_database(
    every: int, engines: Callable[[], Engine]
) -> None:
    whole, killed = engines(), engines()
    for engine in (whole, killed):
        upgrade_database(engine, "0001_initial")
        with engine.begin() as connection:
            for table, row in ROWS:
                insert_row(connection, table, row)
    upgrade_database(whole)

    statements: set[str] = set()
    while current_revision(killed) != head_revision():
        with suppress(KilledError), _killed_after_new(statements, every=every):
            upgrade_database(killed)

    assert len(statements) > 100
    assert schema_differences(killed) == schema_problems(killed) == []
    assert _rows(killed) == _rows(whole)


def _rows(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables, without what is made anew in each database."""
    metadata = MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [
                {**row, "id": ""} if table.name == "delivered_alerts" else dict(row)
                for row in connection.execute(select(table)).mappings()
            ]
            for table in metadata.sorted_tables
        }


@pytest.mark.nightly
@needs_mariadb
def test_a_process_killed_in_a_migration_leaves_one_that_continues(
    engines: Callable[[], Engine], tmp_path: Path
) -> None:
    engine = engines()
    with _upgrading(engine, tmp_path) as process:
        eventually(lambda: len(_tables(engine)) > 20, what="a part of the tables")
        process.kill()

    upgrade_database(engine)

    assert PROGRESS_TABLE not in _tables(engine)
    assert schema_differences(engine) == []


def test_a_migration_of_sqlite_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'vedette.db'}")
    with pytest.raises(KilledError), _killed_after_new(set(), every=100):
        upgrade_database(engine)
    assert _tables(engine) == []

    upgrade_database(engine)

    assert schema_differences(engine) == []
    engine.dispose()


@pytest.mark.nightly
def test_processes_that_start_together_migrate_once(database_url: str, tmp_path: Path) -> None:
    engine = create_database_engine(database_url)
    with ExitStack() as stack:
        processes = [stack.enter_context(_upgrading(engine, tmp_path)) for _ in range(3)]
        outputs = [process.communicate(timeout=60)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert current_revision(engine) == head_revision()
    assert schema_differences(engine) == []
    engine.dispose()


def test_a_server_refuses_a_database_that_lacks_what_its_code_needs(tmp_path: Path) -> None:
    deployment = make_deployment(tmp_path)
    engine = create_database_engine(deployment.settings.resolved_database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE INDEX ix_of_an_operator ON jobs (name)"))
        connection.execute(text("ALTER TABLE jobs ADD COLUMN note VARCHAR(10)"))
    assert schema_problems(engine) == []
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs DROP COLUMN working_dir"))
        connection.execute(text("DROP INDEX ix_jobs_queue"))
        connection.execute(text("DROP TABLE dashboards"))
        connection.execute(text("ALTER TABLE users ADD COLUMN shoe INTEGER NOT NULL DEFAULT 1"))

    result = deployment.vedette("server")

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for words in ("jobs.working_dir", "ix_jobs_queue", "table dashboards", "from a backup"):
        assert words in result.stderr
    assert "shoe" not in result.stderr
    engine.dispose()


@needs_mariadb
def test_an_interrupted_migration_without_notes_is_named(engines: Callable[[], Engine]) -> None:
    engine = engines()
    upgrade_database(engine, "0001_initial")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE tenant_quotas ADD COLUMN max_measurements INTEGER"))

    for _ in range(2):  # the second is not taken for one that continues
        with pytest.raises(ConfigurationError, match=r"max_measurements.*from a backup"):
            upgrade_database(engine)


def test_a_database_that_is_away_is_named_at_the_start(tmp_path: Path) -> None:
    url = f"mysql+pymysql://root:secret@127.0.0.1:{free_port()}/vedette"

    result = Deployment(tmp_path, free_port(), url).vedette("server")

    assert result.returncode == 1
    assert "Can't connect" in result.stderr
    assert "DATABASE_URL" in result.stderr
    assert "secret" not in result.stderr
    assert "Traceback" not in result.stderr


def _upgrading(engine: Engine, data_dir: Path) -> subprocess.Popen[str]:
    url = engine.url.render_as_string(hide_password=False)
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", "db", "upgrade"],
        env={**os.environ, "DATABASE_URL": url, "VEDETTE_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _tables(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return inspect(connection).get_table_names()


@contextmanager
def _killed_after_new(statements: set[str], *, every: int) -> Iterator[None]:
    """Kill the migration at some of the changes that aren't in `statements` yet."""

    def after(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:  # noqa: ANN401
        is_own = PROGRESS_TABLE in statement or "alembic_version" in statement
        if not statement.lstrip().startswith(_CHANGES) or is_own or statement in statements:
            return
        statements.add(statement)
        if len(statements) % every == 0:
            raise KilledError

    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield
    finally:
        event.remove(Engine, "after_cursor_execute", after)
