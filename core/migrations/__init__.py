"""Database migrations with Alembic.

Import every package that declares tables first: this package knows only `core.db.Base`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine

from core.db import Base
from core.revisions import current_revision

HERE = Path(__file__).parent


def upgrade_database(engine: Engine, revision: str = "head") -> None:
    """Upgrade the database to `revision`; does nothing if it is already there."""
    current_revision(engine)
    with _without_foreign_keys(engine) as connection:
        command.upgrade(_config(connection), revision)


def downgrade_database(engine: Engine, revision: str) -> None:
    """Downgrade the database to `revision`; `base` drops every table."""
    with _without_foreign_keys(engine) as connection:
        command.downgrade(_config(connection), revision)


def create_revision(engine: Engine, message: str) -> None:
    """Write a migration script with the differences between the models and the database."""
    with engine.begin() as connection:
        command.revision(_config(connection), message=message, autogenerate=True)


def schema_differences(engine: Engine) -> list[str]:
    """Return the differences between the models and the database's schema."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


@contextmanager
def _without_foreign_keys(engine: Engine) -> Iterator[Connection]:
    """Open a transaction with SQLite's foreign keys off.

    To change a column, Alembic copies the table and drops the old one; with foreign keys on, that
    would delete all rows that refer to it.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if is_sqlite:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.commit()
        try:
            with connection.begin():
                yield connection
        finally:
            if is_sqlite:
                connection.exec_driver_sql("PRAGMA foreign_keys=ON")
                connection.commit()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
