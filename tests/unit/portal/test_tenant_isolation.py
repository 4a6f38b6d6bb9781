"""Another tenant's user, anonymous requests and revoked tokens are refused on every route.

The routes are taken from the app, so that a new one is visited without being named here. A path
parameter that these tests do not know makes them fail: say below what acme's own value of it is.
"""

import re
from collections import defaultdict
from datetime import timedelta

import pytest
from flask import Flask
from werkzeug.routing import Rule as Route

from core.db import SessionFactory
from core.ids import new_id
from portal.auth.guard import PUBLIC_ENDPOINTS
from tenants.users.tokens import (
    TokenLimits,
    create_api_token,
    list_api_tokens,
    revoke_api_token,
)
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.conftest import Browser, MakeToken
from tests.unit.portal.routes import BODIES, SAMPLED, address, visits
from tests.unit.portal.world import World

# Not for tenants' users at all: the role is refused before the object is looked for.
ROLE_FIRST = {
    "Tenants.suspend",
    "Tenants.activate",
    "Tenants.close",
    "Tenants.set_quotas",
    "Tenants.change_quotas",
    "tenants.switch",
    "tenants.quotas",
    "tenants.removal",
    "users.start_support",
    "Access points.show",
    "Access points.change",
    "Access points.renew_token",
    "Access points.delete",
    "access_points.edit",
    "access_points.renew_token",
    "access_points.remove",
    "Market appeals.accept",
    "Market appeals.reject",
    "Market standings.events",
    "Market standings.reinstate_provider",
    "Market standings.show",
    "Market standings.suspend_provider",
    "market_standings.change",
    "market_standings.decide",
    "market_standings.show",
    "Platform rules.show",
    "Platform rules.replace",
    "Platform rules.change",
    "Platform rules.delete",
    "platform_rules.edit",
    "platform_rules.remove",
    "Platform receivers.show",
    "Platform receivers.change",
    "Platform receivers.test",
    "Platform receivers.delete",
    "platform_receivers.edit",
    "platform_receivers.test",
    "platform_receivers.remove",
    "market_console.account",
    "market_console.decide",
    "market_console.show_reputation",
    "console.export",
    "console.discard",
    "console.retry_notification",
    "console.discard_notification",
    "Contracts.terminate",
    "Market accounts.show",
    "Market accounts.change_charges",
    "Market accounts.set_admission",
    "Removals.show",
    "Removals.export",
    "Removals.discard",
    "Maintenance.notification",
    "Maintenance.retry_notification",
    "Maintenance.discard_notification",
}
# Signed with the second in which it is made: two equal answers need not hold the same one.
CSRF_TOKEN = re.compile(r'csrf[-_]token" (?:content|value)="[^"]+"')


def test_anonymous_requests_get_the_login_page_or_401(
    app: Flask, nobody: Browser, world: World
) -> None:
    token = nobody.csrf_token()
    for route, method in visits(app):
        if route.endpoint in PUBLIC_ENDPOINTS:
            continue
        path = address(app, route, world.ids)
        answer = nobody.client.open(path, method=method, headers={"X-CSRFToken": token})
        if path.startswith(("/api/", "/dashboards/_")):
            assert answer.status_code == 401, (method, path)
        else:
            assert answer.status_code == 302, (method, path)
            assert answer.headers["Location"].startswith("/login"), (method, path)


def test_only_these_endpoints_are_public() -> None:
    assert {
        "static",
        "session.login",
        "session.forgot",
        "session.reset",
        "invitations.accept",
        "invitations.join",
        "session.code",
        "oidc.start",
        "oidc.callback",
        "home.health",
        "install.script",
        "install.requirements",
        "install.wheels",
        "install.wheel",
        "openapi_document",
        "market.index",
        "market.show",
        "market.terms",
        "market.status",
        "market.api_reference",
        "sign_up.index",
        "sign_up.confirm",
        "public_openapi_document",
        "Public catalogue.list_offers",
        "Public catalogue.show_offer",
        "Public catalogue.show_capacity",
        "Public catalogue.list_models",
        "Public catalogue.list_regions",
        "Public status.show_status",
        "job_schema",
        "dashboard_schema",
    } == PUBLIC_ENDPOINTS


@SAMPLED
def test_a_revoked_or_expired_token_is_401_everywhere(
    *,
    app: Flask,
    cast: Cast,
    world: World,
    sessions: SessionFactory,
    clock: FrozenClock,
    make_token: MakeToken,
    nth: int,
) -> None:
    """A route is asked for with one of them and one method: all have the same guard."""
    revoked = make_token(cast.alice)
    with sessions.begin() as session:
        scope, now = scope_of(cast.alice), clock.now
        for token in list_api_tokens(session, scope).items:
            revoke_api_token(session, scope, token.id, now=now)
        limits = TokenLimits(lifetime=timedelta(seconds=1))
        expired = create_api_token(session, scope, name="short", limits=limits, now=now)[1]
    clock.advance(2)
    client = app.test_client()
    last_methods = {str(route): (route, method) for route, method in visits(app)}
    for number, (route, method) in enumerate(list(last_methods.values())[::nth]):
        if route.endpoint in PUBLIC_ENDPOINTS:
            continue
        path = address(app, route, world.ids)
        headers = {"Authorization": f"Bearer {(revoked, expired)[number % 2]}"}
        answer = client.open(path, method=method, headers=headers)
        assert answer.status_code == 401, (method, path)


@pytest.mark.usefixtures("cast")
def test_another_tenants_user_gets_404_for_every_object_of_acme(
    app: Flask, world: World, charlie: Browser, alice: Browser
) -> None:
    """Whatever is asked for, the answer is that for an object of its kind that does not exist."""
    headers = {"X-CSRFToken": charlie.token()}

    def ask(route: Route, method: str, ids: dict[str, str]) -> tuple[int, str]:
        path, body = address(app, route, ids), BODIES.get(str(route.endpoint))
        answer = charlie.client.open(path, method=method, headers=headers, json=body)
        text = answer.text
        for ident in ids.values():
            text = text.replace(ident, "ID")
        return answer.status_code, CSRF_TOKEN.sub("TOKEN", text)

    tried = 0
    of_missing: dict[frozenset[str], set[tuple[int, str]]] = defaultdict(set)
    for route, method in visits(app):
        foreign = {name: world.ids[name] for name in route.arguments & world.ids.keys()}
        if not foreign:
            address(app, route, world.ids)
            continue
        answer = ask(route, method, foreign)
        expected = 403 if route.endpoint in ROLE_FIRST else 404
        assert answer[0] == expected, (method, str(route), answer)
        kind = frozenset(foreign)
        if answer not in of_missing[kind]:
            of_missing[kind].add(ask(route, method, {name: new_id() for name in foreign}))
        assert answer in of_missing[kind], (method, str(route))
        tried += 1
    assert tried >= 30
    for path in ("jobs/{job_id}", "rules/{rule_id}", "appliances/{appliance_id}"):
        assert alice.get(f"/api/v1/{path}".format(**world.ids)).status_code == 200
    assert alice.get(f"/api/v1/jobs/{world.ids['job_id']}").json["state"] == "running"  # type: ignore[index] # JSON


@pytest.mark.usefixtures("world")
def test_lists_of_another_tenant_are_empty(charlie: Browser) -> None:
    for name in (
        "appliances",
        "jobs",
        "rules",
        "alerts",
        "silences",
        "receivers",
        "notifications",
        "tokens",
    ):
        answer = charlie.get(f"/api/v1/{name}").json
        assert answer is not None
        assert answer["items"] == [], name
        assert answer["total"] == 0, name


@pytest.mark.own_app
def test_a_route_with_an_unknown_path_parameter_fails_these_tests(app: Flask, world: World) -> None:
    app.add_url_rule("/secrets/<secret_id>", "secrets.show", lambda secret_id: secret_id)
    route = next(rule for rule in app.url_map.iter_rules() if rule.endpoint == "secrets.show")
    with pytest.raises(AssertionError, match="secret_id"):
        address(app, route, world.ids)
