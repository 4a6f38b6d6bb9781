"""Authentication at the agent API, and the one shape of its errors."""

from itertools import cycle, product

import pytest

from core.db import SessionFactory
from tenants.models import Appliance, TenantState
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.access.conftest import SECRET, AgentAPI

SHA256 = "0" * 64
PLACES = {"some-id": "{attempt_id}", "some-version": "{version_id}", SHA256: "{sha256}"}
ADDRESSES = [
    ("POST", "/api/v2/write"),
    ("POST", "/agent/v1/certificate"),
    ("POST", "/agent/v1/heartbeat"),
    ("GET", "/agent/v1/desired"),
    ("POST", "/agent/v1/observed"),
    ("POST", "/agent/v1/lines"),
    ("POST", "/agent/v1/logs"),
    ("POST", "/agent/v1/storage"),
    ("POST", "/agent/v1/datasets"),
    ("GET", "/agent/v1/datasets/some-version/head"),
    ("POST", "/agent/v1/datasets/some-version/head"),
    ("GET", f"/agent/v1/datasets/some-version/pages/{SHA256}"),
    ("PUT", f"/agent/v1/datasets/some-version/pages/{SHA256}"),
    ("GET", f"/agent/v1/parts/{SHA256}"),
    ("PUT", f"/agent/v1/parts/{SHA256}"),
    ("POST", "/agent/v1/results"),
    ("GET", "/agent/v1/results/some-id"),
    ("GET", f"/agent/v1/results/some-id/parts/{SHA256}"),
    ("GET", "/agent/v1/transfer"),
    ("POST", "/agent/v1/transfer"),
    ("POST", "/write"),
    ("POST", "/collectd"),
    ("POST", "/api/v1/prom/write"),
    ("POST", "/v1/metrics"),
]
# Of relays: see test_relays.py.
RELAYS = {f"/relay/v1/{name}" for name in ("changes", "registry", "report", "samples")}
# Without credentials these tell nothing and change nothing.
OPEN = {"/health", "/ready", "/ping", "/query", "/agent/v1/enroll", "/agent/v1/authority"}
SHAPES = {
    "/api/v2/": {"code", "status", "message", "errors", "reason"},
    "/write": {"error"},
    "/": {"code", "status", "message", "errors"},
}


def shape_of(path: str) -> set[str]:
    return next(keys for prefix, keys in SHAPES.items() if path.startswith(prefix))


def test_every_address_but_a_few_requires_authentication(api: AgentAPI) -> None:
    asked = {"/".join(PLACES.get(name, name) for name in path.split("/")) for _, path in ADDRESSES}
    asked.add("/agent/v1/tunnel")  # a WebSocket: see test_web_ui.py
    assert {route.path for route in api.app.routes} == asked | OPEN | RELAYS


def test_unknown_credentials_are_401(api: AgentAPI) -> None:
    # The fiftieth would be told to wait.
    wrong = cycle(["Bearer vda_wrong", "Token", "Basic YTpi", SECRET])
    for (method, path), header in [
        *product(ADDRESSES, [None]),
        *zip(ADDRESSES, wrong, strict=False),
    ]:
        response = api.request(method, path, headers={"Authorization": header})
        assert response.status_code == 401, (method, path, header)
        assert set(response.json()) == shape_of(path), (method, path, header)
        assert "Bearer" in response.headers["WWW-Authenticate"]


def test_an_influx_client_gets_errors_in_its_format(api: AgentAPI) -> None:
    response = api.write(b"", headers={"Authorization": "Token vda_wrong"})
    body = response.json()
    assert (body["code"], body["reason"]) == ("unauthorized", "unauthenticated")
    assert response.headers["X-Platform-Error-Code"] == "unauthorized"


@pytest.mark.parametrize("scheme", ["Token", "Bearer", "bearer"])
def test_influx_and_bearer_schemes_are_both_known(api: AgentAPI, scheme: str) -> None:
    response = api.write(b"", headers={"Authorization": f"{scheme} {SECRET}"})
    assert response.status_code == 204


def test_an_appliance_whose_revocation_no_revision_tells_is_shut_out_within_a_minute(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    assert api.write(b"").status_code == 204
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).revoked_at = clock.now
    clock.advance(60)
    response = api.write(b"")
    assert response.status_code == 401
    assert "revoked" in response.json()["message"]


def test_credentials_are_cached_for_a_few_seconds(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    assert api.write(b"").status_code == 204
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).revoked_at = clock.now
    clock.advance(2.9)
    assert api.write(b"").status_code == 204


def test_an_agent_that_enrolled_a_moment_ago_comes_in(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    assert api.write(b"").status_code == 204
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.acme), "newcomer")
    response = api.write(b"", headers={"Authorization": "Bearer vda_acme_newcomer"})
    assert response.status_code == 204


def test_a_suspended_tenants_agents_are_shut_out(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        session.merge(cast.acme).state = TenantState.SUSPENDED
    assert api.write(b"").status_code == 401


def test_an_enrollment_token_is_no_agent_token(api: AgentAPI) -> None:
    response = api.write(b"", headers={"Authorization": "Bearer vde_something"})
    assert response.status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "not_found"),
        ("GET", "/api/v2/write", 405, "method not allowed"),
        ("GET", "/api/v2/buckets", 404, "not found"),
        ("DELETE", "/agent/v1/desired", 405, "method_not_allowed"),
    ],
)
def test_the_router_refuses_in_the_shape_of_the_address(
    api: AgentAPI, method: str, path: str, status: int, code: str
) -> None:
    response = api.request(method, path)
    assert response.status_code == status
    assert response.json()["code"] == code
    assert set(response.json()) == shape_of(path)
