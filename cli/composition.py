"""The composition root of the cloud side: settings become a database, a store and an ASGI app."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from a2wsgi import WSGIMiddleware
from a2wsgi.wsgi_typing import WSGIApp
from sqlalchemy import Engine
from starlette.types import ASGIApp, Receive, Scope, Send

from access.app import create_access_app, is_for_agents
from alerting.sealing import seal_plain_secrets
from cli.database import open_database
from cli.proxies import believe_proxies
from core.clock import Clock, utc_now
from core.db import SessionFactory, transaction
from core.secretbox import SecretBox
from core.settings import ServerSettings
from portal.app import create_portal
from timeseries.open_store import open_store
from timeseries.store import Store


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
        with transaction(sessions) as session:
            seal_plain_secrets(session, SecretBox.of(settings))
        store = open_store(settings.resolved_timeseries_url)
        try:
            yield Cloud(settings=settings, engine=engine, sessions=sessions, store=store)
        finally:
            store.close()


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

    return believe_proxies(doors, cloud.settings.proxy_networks)
