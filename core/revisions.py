"""The revision of the database's schema, without Alembic: imported, it takes 12 MiB of memory."""

from pathlib import Path

from sqlalchemy import Engine, inspect, text

from core.errors import ConfigurationError

VERSIONS = Path(__file__).parent / "migrations" / "versions"


def current_revision(engine: Engine) -> str | None:
    """Return the database's revision; None for an empty database.

    Raises:
        ConfigurationError: this version of Vedette has no migration with that revision.
    """
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        current: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if current is not None and current not in revisions():
        problem = (
            f"the database is at revision {current!r}, which this version of Vedette does not "
            "know. Install the version that created the database, or set DATABASE_URL to an "
            "empty database."
        )
        raise ConfigurationError([problem], source="Database")
    return current


def head_revision() -> str:
    """Return the newest revision of this version of Vedette."""
    return revisions()[-1]


def revisions() -> list[str]:
    """Return all revisions, oldest first: they are numbered, and each is the name of its file."""
    return sorted(path.stem for path in VERSIONS.glob("[0-9]*.py"))
