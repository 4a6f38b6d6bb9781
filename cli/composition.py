"""The composition root of the cloud side: settings become a database, a store and an ASGI app."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from a2wsgi import WSGIMiddleware
from a2wsgi.wsgi_typing import WSGIApp
from sqlalchemy import Engine
from starlette.types import ASGIApp, Receive, Scope, Send

import alerting.models
import core.leases
import jobqueue.models
import tenants.models
from access.app import create_access_app, is_for_agents
from core.clock import Clock, utc_now
from core.db import SessionFactory, create_database_engine, create_session_factory
from core.errors import ConfigurationError
from core.migrations import current_revision, head_revision, upgrade_database
from core.settings import ServerSettings
from portal.app import create_portal
from timeseries.open_store import open_store
from timeseries.store import Store

# Every module that declares tables, so that the metadata is whole for migrations.
TABLE_MODULES = (core.leases, tenants.models, jobqueue.models, alerting.models)


@dataclass(frozen=True, slots=True)
class Cloud:
    """The parts that every cloud process shares."""

    settings: ServerSettings
    engine: Engine
    sessions: SessionFactory
    store: Store


@contextmanager
def open_cloud(settings: ServerSettings) -> Iterator[Cloud]:
    """Open the database (migrated to the newest revision) and the store; close both at the end."""
    with open_database(settings) as (engine, sessions):
        store = open_store(settings.resolved_timeseries_url)
        try:
            yield Cloud(settings=settings, engine=engine, sessions=sessions, store=store)
        finally:
            store.close()


@contextmanager
def open_database(settings: ServerSettings) -> Iterator[tuple[Engine, SessionFactory]]:
    """Open the database alone, migrated to the newest revision."""
    prepare_data_dir(settings.data_dir)
    engine = create_database_engine(settings.resolved_database_url)
    try:
        if current_revision(engine) != head_revision():
            upgrade_database(engine)
        yield engine, create_session_factory(engine)
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


def create_asgi_app(cloud: Cloud, *, clock: Clock = utc_now) -> ASGIApp:
    """Return both doors behind one address: access for agents, the portal for people."""
    access = create_access_app(
        settings=cloud.settings, sessions=cloud.sessions, store=cloud.store, clock=clock
    )
    flask = create_portal(cloud.settings, sessions=cloud.sessions, store=cloud.store, clock=clock)
    # a2wsgi names the same WSGI and ASGI shapes by types of its own.
    wsgi = cast("WSGIApp", flask)
    people = cast("ASGIApp", WSGIMiddleware(wsgi, workers=cloud.settings.portal_threads))

    async def doors(scope: Scope, receive: Receive, send: Send) -> None:
        is_agent = scope["type"] != "http" or is_for_agents(scope["path"])
        await (access if is_agent else people)(scope, receive, send)

    return doors
