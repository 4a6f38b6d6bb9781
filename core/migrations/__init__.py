"""Database migrations with Alembic.

Import every package that declares tables first: this package knows only `core.db.Base`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from core.db import Base, create_database_engine
from core.errors import ConfigurationError
from core.migrations.lock import LOCK_SECONDS, migration_lock
from core.migrations.progress import PROGRESS_TABLE, noted_progress
from core.revisions import current_revision, unreachable_error

HERE = Path(__file__).parent


def upgrade_database(engine: Engine, revision: str = "head") -> None:
    """Upgrade the database to `revision`; does nothing if it is already there.

    One process at a time upgrades; others wait for it. An upgrade that was killed continues.

    Raises:
        ConfigurationError: the database is newer than this version, or a statement fails.
        DatabaseUnavailableError: the database does not answer, or stops to.
    """
    current_revision(engine)
    try:
        with _migrating(engine) as connection, _resumable(connection) as config:
            command.upgrade(config, revision)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise unreachable_error(engine, error) from error
        raise ConfigurationError([_failure(error)], source="Database") from error


def downgrade_database(engine: Engine, revision: str) -> None:
    """Downgrade the database to `revision`; `base` drops every table."""
    with _migrating(engine) as connection:
        command.downgrade(_config(connection), revision)


def create_revision(engine: Engine, message: str) -> None:
    """Write a migration script with the differences between the models and the database."""
    with engine.begin() as connection:
        command.revision(_config(connection), message=message, autogenerate=True)


def schema_differences(engine: Engine) -> list[str]:
    """Return the differences between the models and the database's schema."""
    with engine.connect() as connection:
        # The table of progress is left by a process that was killed at the end of an upgrade.
        options = {"compare_type": True, "include_name": lambda name, *_: name != PROGRESS_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """Open the transaction of a migration, while no other process migrates."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection, _sqlite_alone(connection), connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
        return
    # To change a large table takes longer than anything else.
    url = engine.url.render_as_string(hide_password=False)
    patient = create_database_engine(url, answer_seconds=None)
    try:
        with patient.connect() as connection, migration_lock(connection), connection.begin():
            yield connection
    finally:
        patient.dispose()


@contextmanager
def _sqlite_alone(connection: Connection) -> Iterator[None]:
    """Wait longer for other writers, and turn foreign keys off.

    All statements of a migration are one transaction, which others wait for. To change a column,
    Alembic copies the table and drops the old one; with foreign keys on, that would delete all
    rows that refer to it.
    """
    driver: Any = connection.connection.dbapi_connection
    (timeout_milliseconds,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000}")
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        if not connection.invalidated:
            driver.execute("PRAGMA foreign_keys=ON")
            driver.execute(f"PRAGMA busy_timeout={timeout_milliseconds}")


@contextmanager
def _resumable(connection: Connection) -> Iterator[Config]:
    """Return what Alembic needs; SQLite rolls a killed migration back, so nothing is resumed."""
    config = _config(connection)
    if connection.dialect.name == "sqlite":
        yield config
        return
    with noted_progress(connection) as progress:
        config.attributes["on_version_apply"] = progress.finish_revision
        yield config


def _failure(error: DBAPIError) -> str:
    return (
        f"a migration failed at {str(error.statement)[:300]!r}: {error.orig}. The database may "
        "have been changed by hand, or by a migration of an earlier version that was interrupted. "
        "Restore it from a backup, and start again"
    )


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
