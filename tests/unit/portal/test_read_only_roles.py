"""Every change of the portal as asked for by those of acme who may only look.

A viewer, and an API token of the admin that is limited to reading, are refused by every route that
changes something; afterwards the database holds what it held before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Table, select

from core.db import Base, SessionFactory
from core.ids import hash_secret
from portal.auth.guard import PUBLIC_ENDPOINTS
from tenants.models import APIToken, Membership, Role, User
from tests.cast import Cast
from tests.unit.portal.conftest import Browser, SignIn
from tests.unit.portal.routes import BODIES, FORMS, READING, SAMPLED, address, changes, visits
from tests.unit.portal.world import World

# Actions of all users on their own browsers, password, second factor and tokens.
OWN = PUBLIC_ENDPOINTS | {
    "session.logout",
    "session.switch",
    "users.end_support",
    "Sessions.end",
    "Sessions.end_all",
    "SecondFactor.begin",
    "SecondFactor.confirm",
    "SecondFactor.off",
    "SecondFactor.renew",
    "Tokens.create_token",
    "Tokens.revoke_token",
    "second_factor.begin",
    "second_factor.confirm",
    "second_factor.download",
    "second_factor.off",
    "second_factor.renew",
    "settings.add_token",
    "settings.change",
    "settings.change_time_zone",
    "settings.end_browser",
    "settings.end_browsers",
    "settings.revoke_token",
    "Me.change_own_password",
    "Me.change_settings",
    "Saved views.create",
    "Saved views.replace",
    "Saved views.delete",
}
# Ends what a browser holds: nothing where there is none.
OF_BROWSERS = frozenset({"session.logout", "users.end_support"})
# Who asked, when and how often is noted whatever the answer.
NOTED = {"audit_entries", "audit_heads", "login_sessions", "api_tokens", "throttles"}


@pytest.fixture
def viewer(sessions: SessionFactory, cast: Cast, sign_in: SignIn) -> Browser:
    """Bob's browser, who may only look from now on."""
    with sessions.begin() as session:
        for membership in session.scalars(select(Membership)):
            if membership.user_id == cast.bob.id:
                membership.role = Role.VIEWER
    return sign_in(cast.bob)


@contextmanager
def unchanged(sessions: SessionFactory) -> Iterator[None]:
    """Fail when the block leaves another database behind than it found."""
    before = contents(sessions)
    yield
    assert contents(sessions) == before


def contents(sessions: SessionFactory) -> dict[str, list[tuple[object, ...]]]:
    with sessions() as session:
        return {
            table.name: sorted(map(tuple, session.execute(select(table))), key=repr)
            for table in Base.metadata.sorted_tables
            if isinstance(table, Table) and table.name not in NOTED
        }


def token(sessions: SessionFactory, user: User, **fields: object) -> dict[str, str]:
    """Return the header of a new API token of a user."""
    secret = "vdt_of_a_stranger"
    with sessions.begin() as session:
        session.add(
            APIToken(
                user_id=user.id,
                tenant_id=user.memberships[0].tenant_id,
                name="lesser",
                secret_hash=hash_secret(secret),
                created_at=user.created_at,
                **fields,
            )
        )
    return {"Authorization": f"Bearer {secret}"}


def body_of(endpoint: str, path: str) -> dict[str, Any]:
    """Return what the test client sends: JSON to the API, a form to a page."""
    is_api = path.startswith("/api/")
    return {"json": BODIES.get(endpoint)} if is_api else {"data": FORMS.get(endpoint, {})}


def test_a_viewer_is_refused_every_change(
    app: Flask, world: World, viewer: Browser, sessions: SessionFactory
) -> None:
    headers = {"X-CSRFToken": viewer.token()}
    tried = 0
    with unchanged(sessions):
        for route, method in changes(app, but=OWN | READING):
            path = address(app, route, world.ids)
            body = body_of(str(route.endpoint), path)
            answer = viewer.client.open(path, method=method, headers=headers, **body)
            assert answer.status_code == 403, (route.endpoint, method, path, answer.text[-500:])
            tried += 1
    assert tried >= 50


# In the gate, `test_api_token_scopes.py` asserts the statuses.
@pytest.mark.nightly
def test_a_read_only_token_is_refused_every_change(
    app: Flask, world: World, cast: Cast, sessions: SessionFactory
) -> None:
    headers = token(sessions, cast.alice, scopes=["read"])
    client = app.test_client()
    with unchanged(sessions):
        for route, method in changes(app, but=PUBLIC_ENDPOINTS | OF_BROWSERS | READING):
            path, endpoint = address(app, route, world.ids), str(route.endpoint)
            answer = client.open(path, method=method, headers=headers, **body_of(endpoint, path))
            # Of what is the user's own the form may be looked at first.
            expected = {403, 422} if endpoint in OWN else {403}
            assert answer.status_code in expected, (endpoint, method, path, answer.text[-500:])


@SAMPLED
def test_a_viewer_never_gets_a_server_error(
    app: Flask, world: World, viewer: Browser, nth: int
) -> None:
    """What a page shows depends on the role; the API's answers are in `test_api_fuzz.py`."""
    others = ("/dashboards/_dash-component", "/api/")
    pages = [route for route, method in visits(app) if method == "GET"]
    for route in [page for page in pages if not str(page).startswith(others)][::nth]:
        with viewer.get(address(app, route, world.ids)) as answer:
            assert answer.status_code < 500, str(route)
