"""API tokens that are limited to scopes can do no more than their scopes allow."""

import pytest
from flask import Flask
from werkzeug.routing import Rule as Route

from core.db import SessionFactory
from portal.api.blueprint import Need, Own
from portal.api.registry import RESOURCES
from portal.auth.guard import PUBLIC_ENDPOINTS, REGISTRY_ENDPOINTS
from tenants.permissions import PERMISSIONS, TOKEN_SCOPES, Permission
from tenants.users.tokens import TokenLimits, create_api_token, scopes_for
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.routes import READING, address, visits
from tests.unit.portal.world import World

NEEDS: dict[str, Need] = {
    name: need for resource in RESOURCES for name, need in resource.needs.items()
}
# The paths of Prometheus' and InfluxDB's APIs, which are no resources of ours.
NEEDS |= {"influxdb.ping": Permission.VIEW, "influxdb.query": Permission.VIEW}
NEEDS |= {
    f"prometheus.{name}": Permission.VIEW
    for name in (
        *("build_info", "federate", "label_values", "labels", "metadata", "query"),
        *("query_exemplars", "query_over_range", "series"),
    )
}
# Operations that every token allows: those that show the user.
ANYBODYS = {"Me.show_me"}
# Reads whose service asks for more than to look, of some who ask.
ASKING_MORE = {
    *("Users.show", "Queue.jobs", "Queue.shares"),
    "Market records.show_earnings",
    *("Reputation.show", "Reputation.list_evidence", "Reputation.list_history"),
    "Reputation.list_ratings",
}

Headers = dict[str, dict[str, dict[str, str]]]


@pytest.fixture
def headers(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Headers:
    """Headers of a token of each scope, of alice and of olivia."""
    made: Headers = {}
    with sessions.begin() as session:
        for user in (cast.alice, cast.olivia):
            for name in scopes_for(scope_of(user).role):
                _, secret = create_api_token(
                    session, scope_of(user), name=name, limits=TokenLimits((name,)), now=clock.now
                )
                made.setdefault(user.name, {})[name] = {"Authorization": f"Bearer {secret}"}
    return made


def test_every_operation_declares_its_permission(app: Flask) -> None:
    operations = {
        str(route.endpoint) for route, _ in visits(app) if str(route).startswith("/api/v1/")
    }
    documents = {"openapi_document", "job_schema", "dashboard_schema", "home.api_reference"}
    documents.add("operator_openapi_document")
    assert operations - documents == set(NEEDS)
    assert {name for name, need in NEEDS.items() if need is Own.ANY} == ANYBODYS


def test_no_change_requires_only_the_view_permission(app: Flask) -> None:
    loose = {
        str(route.endpoint)
        for route, method in visits(app)
        if method != "GET" and NEEDS.get(str(route.endpoint)) is Permission.VIEW
    }
    assert loose == READING


def test_a_token_is_limited_to_its_scopes(
    app: Flask, world: World, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    """Each operation is tried with every scope at once but those that allow it.

    It is tried by alice or by olivia, in turn: who may do what is no question of the token.
    """
    client = app.test_client()
    tried = 0
    secrets: dict[tuple[str, tuple[str, ...]], str] = {}
    for number, (route, method) in enumerate(visits(app)):
        user = (cast.alice, cast.olivia)[number % 2]
        others = tuple(
            scope for scope in scopes_for(scope_of(user).role) if not _is_open_to(route, scope)
        )
        if not others:
            continue
        if (user.id, others) not in secrets:
            with sessions.begin() as session:
                limits = TokenLimits(others)
                _, secrets[user.id, others] = create_api_token(
                    session, scope_of(user), name="others", limits=limits, now=clock.now
                )
        headers = {"Authorization": f"Bearer {secrets[user.id, others]}"}
        answer = client.open(address(app, route, world.ids), method=method, headers=headers)
        assert answer.status_code == 403, (user.name, others, method, str(route))
        tried += 1
    assert tried > len(NEEDS)


def test_a_token_can_do_what_its_scopes_allow(
    app: Flask, world: World, cast: Cast, headers: Headers
) -> None:
    """Each read is tried with a scope that allows it: each scope in turn, for many allow many.

    Alice tries what she may, olivia the other reads and one of each of her scopes.
    """
    client = app.test_client()
    reads = [
        (str(route.endpoint), address(app, route, world.ids))
        for route, method in visits(app)
        if method == "GET" and route.endpoint in NEEDS.keys() - ASKING_MORE
    ]
    seen: set[str] = set()
    for user in (cast.alice, cast.olivia):
        role, tried = scope_of(user).role, set()
        for number, (endpoint, path) in enumerate(reads):
            if NEEDS[endpoint] not in PERMISSIONS[role]:
                continue
            scopes = [
                token_scope
                for token_scope in headers[user.name]
                if NEEDS[endpoint] in TOKEN_SCOPES[token_scope]
            ]
            scope = scopes[number % len(scopes)]
            if endpoint not in seen or scope not in tried:
                seen.add(endpoint)
                answer = client.get(path, headers=headers[user.name][scope])
                assert answer.status_code != 403, (user.name, scope, path)
                tried.add(scope)
        assert tried == headers[user.name].keys()


def _is_open_to(route: Route, scope: str) -> bool:
    """Return whether an endpoint is public or needs only permissions of the scope."""
    endpoint = str(route.endpoint)
    if endpoint in PUBLIC_ENDPOINTS | REGISTRY_ENDPOINTS | {"home.api_reference"}:
        return True
    need = NEEDS.get(endpoint)
    return need is Own.ANY or need in TOKEN_SCOPES[scope]
