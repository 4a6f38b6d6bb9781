"""Opening the server's database.

Imports neither portal nor access: their frameworks are slow to load.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import Session

import alerting.models
import core.leases
import dash_app.custom.models
import dash_app.reports.models
import jobqueue.container_storage.models
import jobqueue.images.models
import jobqueue.models
import jobqueue.usage.models
import tenants.models
from core.clock import utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory, transaction
from core.errors import ConfigurationError
from core.private_files import make_private
from core.revisions import current_revision, head_revision
from core.settings import ServerSettings, load_server_settings
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.models import Role
from tenants.scope import Scope

# All modules that declare tables: importing them completes the metadata for migrations.
TABLE_MODULES = (
    core.leases,
    tenants.models,
    jobqueue.models,
    jobqueue.usage.models,
    jobqueue.images.models,
    alerting.models,
    dash_app.reports.models,
    dash_app.custom.models,
)
COMMAND_LINE = Actor(name="command line", via="command line")
# Whoever can open the database has the permissions of an operator.
OPERATOR = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)


@contextmanager
def open_database(settings: ServerSettings) -> Iterator[tuple[Engine, SessionFactory]]:
    """Open the database, migrated to the newest revision; audit changes as the command line."""
    prepare_data_dir(settings.data_dir)
    engine = create_database_engine(settings.resolved_database_url)
    try:
        if current_revision(engine) != head_revision():
            from core.migrations import upgrade_database  # noqa: PLC0415 - Alembic is heavy

            upgrade_database(engine)
        yield engine, acting(create_session_factory(engine), COMMAND_LINE, clock=utc_now)
    finally:
        engine.dispose()


@contextmanager
def open_session(settings: ServerSettings | None = None) -> Iterator[Session]:
    """Open a transaction on the database."""
    with (
        open_database(settings or load_server_settings()) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        yield session


def prepare_data_dir(path: Path) -> None:
    """Create the data directory, or take an existing one from other users.

    Raises:
        ConfigurationError: it can't be written, or other programs use it.
    """
    try:
        make_private(path)
        reason = "" if os.access(path, os.W_OK | os.X_OK) else "it is read-only for this user"
    except OSError as error:
        reason = error.strerror or "error"
    if reason:
        fault = f"data_dir {path} can't be written ({reason}). Change it with VEDETTE_DATA_DIR"
        raise ConfigurationError([fault], source="The configuration")
