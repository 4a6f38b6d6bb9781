"""Authentication at the agents' door, and the one shape of its errors."""

import pytest

from core.db import SessionFactory
from tenants.models import Appliance, TenantState
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.access.conftest import SECRET, Door

ADDRESSES = [
    ("POST", "/api/v2/write"),
    ("POST", "/agent/v1/certificate"),
    ("POST", "/agent/v1/heartbeat"),
    ("GET", "/agent/v1/desired"),
    ("POST", "/agent/v1/observed"),
    ("POST", "/agent/v1/attempts/some-id/log"),
    ("GET", "/agent/v1/transfer"),
    ("POST", "/agent/v1/transfer"),
    ("POST", "/write"),
    ("POST", "/collectd"),
]
# Without credentials these tell nothing and change nothing.
OPEN = {"/health", "/ping", "/query", "/agent/v1/enroll", "/agent/v1/authority"}
SHAPES = {
    "/api/v2/": {"code", "status", "message", "errors", "reason"},
    "/write": {"error"},
    "/": {"code", "status", "message", "errors"},
}


def shape_of(path: str) -> set[str]:
    return next(keys for prefix, keys in SHAPES.items() if path.startswith(prefix))


def test_every_address_asks_who_is_there_but_for_a_known_few(door: Door) -> None:
    asked = {path.replace("some-id", "{attempt_id}") for _, path in ADDRESSES}
    assert set(door.app.paths) == asked | OPEN


@pytest.mark.parametrize(("method", "path"), ADDRESSES)
@pytest.mark.parametrize("header", [None, "Bearer vda_wrong", "Token", "Basic YTpi", SECRET])
def test_nobody_known_is_401(door: Door, method: str, path: str, header: str | None) -> None:
    response = door.request(method, path, headers={"Authorization": header})
    assert response.status_code == 401
    assert set(response.json()) == shape_of(path)
    assert "Bearer" in response.headers["WWW-Authenticate"]


def test_an_influx_client_is_told_in_its_own_words(door: Door) -> None:
    response = door.write(b"", headers={"Authorization": "Token vda_wrong"})
    body = response.json()
    assert (body["code"], body["reason"]) == ("unauthorized", "unauthenticated")
    assert response.headers["X-Platform-Error-Code"] == "unauthorized"


@pytest.mark.parametrize("scheme", ["Token", "Bearer", "bearer"])
def test_influx_and_bearer_schemes_are_both_known(door: Door, scheme: str) -> None:
    response = door.write(b"", headers={"Authorization": f"{scheme} {SECRET}"})
    assert response.status_code == 204


def test_a_revoked_appliance_is_shut_out_within_five_seconds(
    door: Door, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    assert door.write(b"").status_code == 204
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).revoked_at = clock.now
    clock.advance(5)
    response = door.write(b"")
    assert response.status_code == 401
    assert "revoked" in response.json()["message"]


def test_who_may_enter_is_not_read_anew_for_some_seconds(
    door: Door, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    assert door.write(b"").status_code == 204
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).revoked_at = clock.now
    clock.advance(2.9)
    assert door.write(b"").status_code == 204


def test_an_agent_that_enrolled_a_moment_ago_comes_in(
    door: Door, sessions: SessionFactory, cast: Cast
) -> None:
    assert door.write(b"").status_code == 204
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.acme), "newcomer")
    response = door.write(b"", headers={"Authorization": "Bearer vda_acme_newcomer"})
    assert response.status_code == 204


def test_a_suspended_tenants_agents_are_shut_out(
    door: Door, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        session.merge(cast.acme).state = TenantState.SUSPENDED
    assert door.write(b"").status_code == 401


def test_an_enrolment_token_is_no_agent_token(door: Door) -> None:
    response = door.write(b"", headers={"Authorization": "Bearer vde_something"})
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
    door: Door, method: str, path: str, status: int, code: str
) -> None:
    response = door.request(method, path)
    assert response.status_code == status
    assert response.json()["code"] == code
    assert set(response.json()) == shape_of(path)
