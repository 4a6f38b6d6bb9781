"""Database migrations (Alembic): the schema's history, and the calls that move a database along it.

The caller imports the packages that declare tables first; this package only knows `core.db.Base`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from core.db import Base

HERE = Path(__file__).parent


def upgrade_database(engine: Engine, revision: str = "head") -> None:
    """Bring the database to `revision`; does nothing when it is already there."""
    with _without_foreign_keys(engine) as connection:
        command.upgrade(_config(connection), revision)


def downgrade_database(engine: Engine, revision: str) -> None:
    """Take the database back to `revision`; `base` removes every table."""
    with _without_foreign_keys(engine) as connection:
        command.downgrade(_config(connection), revision)


def create_revision(engine: Engine, message: str) -> None:
    """Write a new migration script with what the models have and the database lacks."""
    with engine.begin() as connection:
        command.revision(_config(connection), message=message, autogenerate=True)


def current_revision(engine: Engine) -> str | None:
    """Return the revision that the database is at; None for an empty one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str | None:
    """Return the newest revision that this code knows."""
    return ScriptDirectory(str(HERE)).get_current_head()


def schema_differences(engine: Engine) -> list[str]:
    """Return what the models and the database disagree on; empty when they agree."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


@contextmanager
def _without_foreign_keys(engine: Engine) -> Iterator[Connection]:
    """Open a transaction in which SQLite looks at no foreign keys.

    To change a column there a table is copied and dropped, which would take along all rows that
    refer to it.
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
