"""A portal on a real database and store, and browsers that are signed in to it."""

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import cast as cast_type

import pytest
from flask import Flask
from flask.testing import FlaskClient
from itsdangerous import URLSafeTimedSerializer
from sqlalchemy.orm import Session
from werkzeug.test import TestResponse

from core.db import SessionFactory
from core.settings import ServerSettings
from portal.app import create_portal
from portal.auth.sign_in import SESSION_KEY
from portal.context import EXTENSION, Portal
from tenants.models import User
from tenants.users.sessions import start_session
from tenants.users.tokens import create_api_token
from tests.cast import NOON, PASSWORD, Cast, FrozenClock, scope_of
from tests.conftest import Template
from tests.e2e.inboxes import MailServer
from tests.fixtures.shared_portal import Serve, serve, shared_portals
from tests.unit.portal.market import Market, make_market
from tests.unit.portal.world import World, make_world
from timeseries.store import Store

__all__ = ["serve", "shared_portals"]

_CSRF = re.compile(r'<meta name="csrf-token" content="([^"]+)"')

SignIn = Callable[[User], "Browser"]
MakeToken = Callable[[User], str]


class Browser:
    """A browser: keeps its cookies, and sends the CSRF token of the last page with its forms."""

    def __init__(self, client: FlaskClient) -> None:
        self.client = client

    def get(self, path: str, headers: dict[str, str] | None = None) -> TestResponse:
        return self.client.get(path, headers=headers)

    def csrf_token(self, path: str = "/login") -> str:
        match = _CSRF.search(self.client.get(path, follow_redirects=True).text)
        assert match is not None
        return match[1]

    def token(self) -> str:
        """Return the CSRF token that the pages of this session have, without rendering one."""
        with self.client.session_transaction() as session:
            raw = session.setdefault("csrf_token", token_hex())
        secret = self.client.application.secret_key
        assert secret is not None
        return str(URLSafeTimedSerializer(secret, salt="wtf-csrf-token").dumps(raw))

    def post(self, path: str, data: Mapping[str, object] | None = None) -> TestResponse:
        """Send a form as its page would."""
        form = {"csrf_token": self.token(), **(data or {})}
        return self.client.post(path, data=form)

    def call(self, method: str, path: str, json: object = None) -> TestResponse:
        """Call the API as our pages' scripts do."""
        headers = {"X-CSRFToken": self.token()}
        return self.client.open(path, method=method, json=json, headers=headers)

    def sign_in(self, email: str, password: str = PASSWORD, query: str = "") -> TestResponse:
        form = {"csrf_token": self.token(), "email": email, "password": password}
        return self.client.post(f"/login{query}", data=form)


def portal_in(app: Flask) -> Portal:
    """Return the services of a portal."""
    return cast_type("Portal", app.extensions[EXTENSION])


def usual_settings(data_dir: Path) -> ServerSettings:
    """Return settings without rate limits, so that a test may send any number of requests."""
    return ServerSettings(
        data_dir=data_dir,
        public_url="http://portal.example",
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
        public_requests_per_second_per_address=0.0,
        marketplace=True,
        marketplace_sign_up=True,
        marketplace_requires_verification=False,
    )


@pytest.fixture(scope="session")
def world_database(cast_database: Template) -> tuple[Template, World]:
    """A SQLite file with one of everything in acme, and what is there."""
    worlds = []

    def fill(session: Session) -> Cast:
        cast = cast_database.load_cast()
        worlds.append(make_world(session, cast, now=NOON))
        return cast

    path = cast_database.path.with_name("world.db")
    return cast_database.extended(path, fill), worlds[0]


@pytest.fixture(scope="session")
def market_database(cast_database: Template) -> tuple[Template, bytes]:
    """A SQLite file with a market, and the pickled market that is in it."""
    markets = []

    def fill(session: Session) -> Cast:
        cast = cast_database.load_cast()
        markets.append(make_market(session, cast, now=NOON))
        return cast

    template = cast_database.extended(cast_database.path.with_name("market.db"), fill)
    return template, pickle.dumps(markets[0])


@pytest.fixture
def prepared_database(request: pytest.FixtureRequest, prepared_database: Template) -> Template:
    """The database that this test's database is a copy of."""
    for name in ("world", "market"):
        if name in request.fixturenames and prepared_database.cast is not None:
            template: Template = request.getfixturevalue(f"{name}_database")[0]
            return template
    return prepared_database


@pytest.fixture
def market(
    prepared_database: Template,
    market_database: tuple[Template, bytes],
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
) -> Market:
    """A market of acme, who offers, and globex, who rents."""
    template, market = market_database
    if prepared_database is template:
        return cast_type("Market", pickle.loads(market))  # noqa: S301 - dumped above
    with sessions.begin() as session:
        return make_market(session, cast, now=clock.now)


@pytest.fixture
def world(cast: Cast, world_database: tuple[Template, World]) -> World:
    """One of everything in acme, such as `dgx-01`, on which a job runs."""
    assert cast
    return World(dict(world_database[1].ids))


@pytest.fixture
def mail() -> Iterator[MailServer]:
    """The server that the portal's emails go to, of tests that ask for it."""
    with MailServer() as server:
        yield server


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServerSettings:
    """The portal's settings."""
    smtp_url = request.getfixturevalue("mail").url if "mail" in request.fixturenames else ""
    return replace(usual_settings(tmp_path), smtp_url=smtp_url)


@pytest.fixture
def app(
    *,
    request: pytest.FixtureRequest,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    serve: Serve,
) -> Flask:
    """The portal on this test's database; marked `own_app`, one that the test may add routes to."""
    if "own_app" in request.keywords:
        return create_portal(settings, sessions=sessions, store=store, clock=clock)
    return serve(settings)


@pytest.fixture
def nobody(app: Flask) -> Browser:
    """A browser that is not signed in."""
    return Browser(app.test_client())


@pytest.fixture
def sign_in(
    app: Flask, settings: ServerSettings, sessions: SessionFactory, clock: FrozenClock
) -> SignIn:
    """Return a new browser of a user, with the session and cookie that signing in leaves."""

    def enter(user: User) -> Browser:
        browser = Browser(app.test_client())
        lifetime = timedelta(seconds=settings.session_lifetime_seconds)
        with sessions.begin() as session:
            secret = start_session(
                session, user, now=clock.now, lifetime=lifetime, address="127.0.0.1"
            )
        with browser.client.session_transaction() as cookie:
            cookie[SESSION_KEY] = secret
            cookie.permanent = True
        return browser

    return enter


@pytest.fixture
def alice(sign_in: SignIn, cast: Cast) -> Browser:
    return sign_in(cast.alice)


@pytest.fixture
def bob(sign_in: SignIn, cast: Cast) -> Browser:
    return sign_in(cast.bob)


@pytest.fixture
def charlie(sign_in: SignIn, cast: Cast) -> Browser:
    return sign_in(cast.charlie)


@pytest.fixture
def olivia(sign_in: SignIn, cast: Cast) -> Browser:
    return sign_in(cast.olivia)


@pytest.fixture
def make_token(sessions: SessionFactory, clock: FrozenClock) -> MakeToken:
    """Return the secret of a new API token of a user."""

    def make(user: User) -> str:
        with sessions.begin() as session:
            return create_api_token(session, scope_of(user), name="test", now=clock.now)[1]

    return make
