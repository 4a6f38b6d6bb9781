"""The revision of the database's schema, without Alembic: imported, it takes 12 MiB of memory."""

from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from core.errors import ConfigurationError, DatabaseUnavailableError

VERSIONS = Path(__file__).parent / "migrations" / "versions"


def current_revision(engine: Engine) -> str | None:
    """Return the database's revision; None for an empty database.

    Raises:
        ConfigurationError: this version of Vedette has no migration with that revision.
        DatabaseUnavailableError: the database does not answer.
    """
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            current: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    except DBAPIError as error:
        raise unreachable_error(engine, error) from error
    if current is not None and current not in revisions():
        problem = (
            f"the database is at revision {current!r}, which this version of Vedette does not "
            "know: a newer version has upgraded it. Install that version, restore the backup that "
            "was made before the upgrade, or set DATABASE_URL to an empty database."
        )
        raise ConfigurationError([problem], source="Database")
    return current


def unreachable_error(engine: Engine, error: DBAPIError) -> DatabaseUnavailableError:
    """Return the error of a command or server that can't start without the database."""
    place = engine.url.render_as_string(hide_password=True)
    return DatabaseUnavailableError(
        f"The database {place} does not answer: {error.orig}. Check that it is running, and "
        "DATABASE_URL."
    )


def head_revision() -> str:
    """Return the newest revision of this version of Vedette."""
    return revisions()[-1]


def revisions() -> list[str]:
    """Return all revisions, oldest first: they are numbered, and each is the name of its file."""
    return sorted(path.stem for path in VERSIONS.glob("[0-9]*.py"))
