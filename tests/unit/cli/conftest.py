"""A portal on a free port, for commands that call its REST API."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask
from starlette.types import ASGIApp

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core import migrations
from core.db import SessionFactory
from core.settings import ServerSettings
from tenants.models import User
from tenants.users.sightings import Sightings
from tenants.users.tokens import create_api_token
from tests.cast import FrozenClock, scope_of
from tests.fixtures.migrated import upgrade
from tests.fixtures.serving import Serving
from tests.fixtures.shared_portal import Serve, serve, servers_share_portal, shared_portals
from timeseries.store import Store

__all__ = ["serve", "servers_share_portal", "shared_portals"]

EnvironOf = Callable[[User], dict[str, str]]


@pytest.fixture
def real_migrations() -> None:
    """New databases of the test get their tables by the migrations."""


@pytest.fixture(autouse=True)
def _copied_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New databases get their tables from a copy: the migrations take a second."""
    if "real_migrations" not in request.fixturenames:
        monkeypatch.setattr(migrations, "upgrade_database", upgrade)


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    """Settings without rate limits, which all tests of a shared portal would share."""
    return ServerSettings(
        data_dir=tmp_path / "data",
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
    )


@pytest.fixture
def shared_portal(settings: ServerSettings, serve: Serve, servers_share_portal: None) -> Flask:
    """The portal of all servers that are made from now on, on this test's database."""
    assert servers_share_portal is None
    return serve(settings)


@pytest.fixture
def server_app(
    *,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    shared_portal: Flask,
) -> ASGIApp:
    """The server's app on this test's database; its portal is shared."""
    assert shared_portal
    return create_asgi_app(Backend(settings, sessions, store, Sightings(sessions)), clock=clock)


@pytest.fixture
def url(server_app: ASGIApp) -> Iterator[str]:
    with Serving(server_app) as url:
        yield url


@pytest.fixture
def environ_of(url: str, sessions: SessionFactory, clock: FrozenClock) -> EnvironOf:
    """Return the environment of a user's commands, with a new token."""

    def environ_of(user: User) -> dict[str, str]:
        with sessions.begin() as session:
            secret = create_api_token(session, scope_of(user), name="test", now=clock.now)[1]
        return {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret}

    return environ_of
