"""What a token of few scopes may do: no route lets it do more."""

import pytest
from flask import Flask
from werkzeug.routing import Rule as Route

from core.db import SessionFactory
from portal.api.needs import Need, Own
from portal.api.registry import RESOURCES
from portal.door.auth import PUBLIC_ENDPOINTS
from tenants.models import User
from tenants.people.tokens import TokenLimits, create_api_token, scopes_for
from tenants.permissions import PERMISSIONS, TOKEN_SCOPES, Permission
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.routes import address, visits
from tests.unit.portal.world import World, make_world

NEEDS: dict[str, Need] = {name: need for one in RESOURCES for name, need in one.needs.items()}
# Operations that change nothing though they are no GET.
READING = {"Rules.preview"}
# What anybody may do, by whatever token: see themselves.
ANYBODYS = {"Me.show_me"}
# Reads whose service asks for more than to look, of some who ask.
ASKING_MORE = {"Users.show"}

Headers = dict[tuple[str, str], dict[str, str]]


@pytest.fixture
def world(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> World:
    with sessions.begin() as session:
        return make_world(session, cast, now=clock.now)


@pytest.fixture
def headers(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Headers:
    """Headers of a token of each scope, of alice and of olivia."""
    made = {}
    with sessions.begin() as session:
        for user in (cast.alice, cast.olivia):
            for name in scopes_for(scope_of(user).role):
                _, secret = create_api_token(
                    session, scope_of(user), name=name, limits=TokenLimits((name,)), now=clock.now
                )
                made[user.name, name] = {"Authorization": f"Bearer {secret}"}
    return made


def test_every_operation_says_what_it_asks(app: Flask) -> None:
    operations = {
        str(route.endpoint) for route, _ in visits(app) if str(route).startswith("/api/v1/")
    }
    assert operations - {"api-docs.openapi_json", "reference.docs"} == set(NEEDS)
    assert {name for name, need in NEEDS.items() if need is Own.ANY} == ANYBODYS


def test_no_change_asks_for_no_more_than_to_look(app: Flask) -> None:
    loose = {
        str(route.endpoint)
        for route, method in visits(app)
        if method != "GET" and NEEDS.get(str(route.endpoint)) is Permission.VIEW
    }
    assert loose == READING


def test_a_token_does_nothing_beyond_its_scopes(app: Flask, world: World, headers: Headers) -> None:
    client = app.test_client()
    tried = 0
    for (who, scope), header in headers.items():
        for route, method in visits(app):
            if _is_open_to(route, scope):
                continue
            answer = client.open(address(app, route, world.ids), method=method, headers=header)
            assert answer.status_code == 403, (who, scope, method, str(route))
            tried += 1
    assert tried > len(headers) * len(NEEDS) / 2


def test_a_token_is_let_through_to_what_its_scope_names(
    app: Flask, world: World, cast: Cast, headers: Headers
) -> None:
    client = app.test_client()
    reads = [
        (str(route.endpoint), address(app, route, world.ids))
        for route, method in visits(app)
        if method == "GET" and route.endpoint in NEEDS.keys() - ASKING_MORE
    ]
    for (who, scope), header in headers.items():
        user: User = cast.alice if who == cast.alice.name else cast.olivia
        allowed = TOKEN_SCOPES[scope] & PERMISSIONS[scope_of(user).role]
        for endpoint, path in reads:
            if NEEDS[endpoint] in allowed:
                answer = client.get(path, headers=header)
                assert answer.status_code != 403, (who, scope, path)


def _is_open_to(route: Route, scope: str) -> bool:
    """Whether an endpoint is public, or asks for nothing that the scope does not name."""
    endpoint = str(route.endpoint)
    if endpoint in PUBLIC_ENDPOINTS | {"reference.docs"}:
        return True
    need = NEEDS.get(endpoint)
    return need is Own.ANY or need in TOKEN_SCOPES[scope]
