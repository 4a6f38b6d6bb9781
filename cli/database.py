"""Opening the server's database.

Imports neither portal nor access: their frameworks are slow to load.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

import alerting.notification.models
import core.leases
import dash_app.custom.models
import dash_app.reports.models
import datasets.models
import jobqueue.advice.models
import jobqueue.fairshare.models
import jobqueue.gangs.models
import jobqueue.holds.models
import jobqueue.images.models
import jobqueue.models
import jobqueue.partitions.models
import jobqueue.projects.models
import jobqueue.reservations.models
import jobqueue.results.models
import jobqueue.simulation.models
import jobqueue.storage.models
import jobqueue.usage.models
import logs.models
import marketplace.budgets.models
import marketplace.charges.models
import marketplace.consequences.models
import marketplace.invoices.models
import marketplace.models
import marketplace.prices.models
import marketplace.reputation.models
import marketplace.service_levels.models
import marketplace.sign_ups.models
import marketplace.support.models
import tenants.models
from cli.keys import check_keys
from cli.privileges import acting_as_owner
from core.broker import open_broker, send_changes
from core.changes import Topic
from core.clock import utc_now
from core.database_checks import database_problems
from core.db import (
    SessionFactory,
    changes_of,
    create_database_engine,
    create_session_factory,
    transaction,
)
from core.errors import ConfigurationError, ConflictError, NotFoundError
from core.private_files import make_private
from core.revisions import current_revision, head_revision
from core.settings import ServerSettings, load_server_settings
from core.settings_file import SYSTEM_FILE
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.models import Role
from tenants.scope import Scope

# All modules that declare tables: importing them completes the metadata for migrations.
TABLE_MODULES = (
    core.leases,
    tenants.models,
    datasets.models,
    jobqueue.models,
    jobqueue.gangs.models,
    jobqueue.holds.models,
    jobqueue.results.models,
    jobqueue.partitions.models,
    jobqueue.projects.models,
    jobqueue.reservations.models,
    jobqueue.simulation.models,
    jobqueue.advice.models,
    jobqueue.fairshare.models,
    jobqueue.usage.models,
    jobqueue.images.models,
    alerting.notification.models,
    dash_app.reports.models,
    dash_app.custom.models,
    logs.models,
    marketplace.budgets.models,
    marketplace.charges.models,
    marketplace.invoices.models,
    marketplace.models,
    marketplace.prices.models,
    marketplace.reputation.models,
    marketplace.service_levels.models,
    marketplace.sign_ups.models,
    marketplace.support.models,
    marketplace.consequences.models,
)
# In the data folder while a restore replaces what is there.
RESTORE_MARK = "restore-unfinished"
COMMAND_LINE = Actor(name="command line", via="command line")
# Whoever can open the database has the permissions of an operator.
OPERATOR = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)


@contextmanager
def open_database(
    settings: ServerSettings, *, may_create: bool = False
) -> Iterator[tuple[Engine, SessionFactory]]:
    """Open the database, migrated to the newest revision; audit changes as the command line.

    Raises:
        NotFoundError: there is none; with `may_create`, it is created.
        ConfigurationError: its server can't be used, or the keys of its secrets are missing.
        ConflictError: a restore was interrupted.
    """
    if (settings.data_dir / RESTORE_MARK).exists():
        raise ConflictError(
            f"A restore into {settings.data_dir} was interrupted: some files are of the backup, "
            "others of before. Repeat it: vedette restore --replace. What was there before is in "
            "folders before-restore-* there."
        )
    if may_create:
        yield from _opened(settings)
        return
    with acting_as_owner(settings.data_dir):
        require_database(settings)
        yield from _opened(settings)


def _opened(settings: ServerSettings) -> Iterator[tuple[Engine, SessionFactory]]:
    prepare_data_dir(settings.data_dir)
    engine = create_database_engine(settings.resolved_database_url)
    try:
        sessions = create_session_factory(engine)
        _require_usable(engine)
        if current_revision(engine) != head_revision():
            from core.migrations import upgrade_database  # noqa: PLC0415 - Alembic is heavy

            upgrade_database(engine)
        check_keys(sessions, settings)
        yield engine, acting(sessions, COMMAND_LINE, clock=utc_now)
    finally:
        engine.dispose()


@contextmanager
def open_session(settings: ServerSettings | None = None) -> Iterator[Session]:
    """Open a transaction on the database; running servers are told of what it changes."""
    settings = settings or load_server_settings()
    with open_database(settings) as (_engine, sessions):
        told: list[tuple[Topic, Collection[str]]] = []
        changes_of(sessions).pass_on = lambda topic, idents: told.append((topic, idents))
        with transaction(sessions) as session:
            yield session
        if told and settings.redis_url:
            with open_broker(settings) as broker:
                for topic, idents in told:
                    send_changes(broker, topic, idents)


def _require_usable(engine: Engine) -> None:
    """Refuse a database with which migrations fail, or which can't store all text."""
    problems = [
        problem.text for problem in database_problems(engine, now=utc_now()) if problem.is_fatal
    ]
    if problems:
        raise ConfigurationError(problems, source="The database")


def require_database(settings: ServerSettings) -> None:
    """Check that the server's database exists: in another folder, a command would make a new one.

    Raises:
        NotFoundError: it does not; says where it was looked for.
    """
    url = make_url(settings.resolved_database_url)
    is_file = url.get_backend_name() == "sqlite" and url.database
    if is_file and not Path(str(url.database)).exists():
        raise _no_database(str(Path(str(url.database)).absolute()))
    engine = create_database_engine(settings.resolved_database_url)
    try:
        if current_revision(engine) is None:
            raise _no_database(url.render_as_string(hide_password=True))
    finally:
        engine.dispose()


def _no_database(place: str) -> NotFoundError:
    is_hidden = SYSTEM_FILE.exists() and not os.access(SYSTEM_FILE, os.R_OK)
    hint = (
        f" {SYSTEM_FILE} is readable by root only: run this command as root." if is_hidden else ""
    )
    return NotFoundError(
        f"There is no database of Vedette at {place}. Run this command in the server's folder and "
        "with its settings: VEDETTE_CONFIG, VEDETTE_DATA_DIR or DATABASE_URL. To create a new "
        f"database there, run: vedette server init.{hint}"
    )


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
