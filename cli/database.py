"""The cloud side's database and data folder, for commands that need no door.

It imports neither portal nor access, whose frameworks are slow to load.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

import alerting.models
import core.leases
import jobqueue.models
import tenants.models
from core.clock import utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory
from core.errors import ConfigurationError
from core.migrations import current_revision, head_revision, upgrade_database
from core.settings import ServerSettings
from tenants.audit import Actor, acting

# Every module that declares tables, so that the metadata is whole for migrations.
TABLE_MODULES = (core.leases, tenants.models, jobqueue.models, alerting.models)


# Who the audit log names for what commands change; doors and loops name others.
COMMAND_LINE = Actor(name="command line", via="command line")


@contextmanager
def open_database(settings: ServerSettings) -> Iterator[tuple[Engine, SessionFactory]]:
    """Open the database alone, migrated to the newest revision."""
    prepare_data_dir(settings.data_dir)
    engine = create_database_engine(settings.resolved_database_url)
    try:
        if current_revision(engine) != head_revision():
            upgrade_database(engine)
        yield engine, acting(create_session_factory(engine), COMMAND_LINE, clock=utc_now)
    finally:
        engine.dispose()


def prepare_data_dir(path: Path) -> None:
    """Create the data folder; say clearly when it can't be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, error.strerror or "error") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _not_writable(path, "it is read-only for this user")


def _not_writable(path: Path, why: str) -> ConfigurationError:
    fault = f"data_dir {path} can't be written ({why}); choose another with VEDETTE_DATA_DIR"
    return ConfigurationError([fault], source="The configuration")
