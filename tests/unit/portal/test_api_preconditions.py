"""Every change of an object by its address heeds `If-Match`: taken from the API's description."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select

from core.db import SessionFactory
from tenants.models import LoginSession
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.routes import BODIES
from tests.unit.portal.world import World, make_world

# What ends all at once is no change of one object.
OF_MANY = {("delete", "/api/v1/sessions")}
# Only an operator's, or only one's own.
OF_OLIVIA = ("/api/v1/tenants", "/api/v1/platform")

Change = tuple[str, str, dict[str, Any]]


@pytest.fixture
def described(app: Flask) -> dict[str, Any]:
    answer = app.test_client().get("/api/v1/openapi.json").json
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def world(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> World:
    with sessions.begin() as session:
        return make_world(session, cast, now=clock.now)


def changes(described: dict[str, Any]) -> Iterator[Change]:
    """Yield method, path and description of every PUT, PATCH and DELETE of an object."""
    for path, item in described["paths"].items():
        for method in ("put", "patch", "delete"):
            if method in item and (method, path) not in OF_MANY:
                yield method, path, item[method]


def test_every_change_is_described_with_if_match_and_its_refusal(
    described: dict[str, Any],
) -> None:
    found = list(changes(described))
    assert len(found) >= 9
    for method, path, operation in found:
        headers = {one["name"] for one in operation.get("parameters", [])}
        assert "If-Match" in headers, (method, path)
        assert "412" in operation["responses"], (method, path)


def test_what_is_changed_can_be_read_at_the_same_address(described: dict[str, Any]) -> None:
    for method, path, _ in changes(described):
        assert "get" in described["paths"][path], (method, path)


def test_no_change_is_made_of_what_was_read_otherwise(
    *,
    described: dict[str, Any],
    world: World,
    alice: Browser,
    olivia: Browser,
    sessions: SessionFactory,
    cast: Cast,
) -> None:
    with sessions() as session:
        own = session.scalars(select(LoginSession).where(LoginSession.user_id == cast.alice.id))
        ids = {**world.ids, "session_id": own.one().id}
    for method, path, operation in changes(described):
        browser = olivia if path.startswith(OF_OLIVIA) else alice
        address = path.format(**ids)
        headers = {"X-CSRFToken": browser.csrf_token("/settings"), "If-Match": '"outdated"'}
        name = operation["operationId"]
        body = BODIES.get(f"{name[:1].upper()}{name[1:]}")
        answer = browser.client.open(address, method=method.upper(), json=body, headers=headers)
        assert answer.status_code == 412, (method, path, answer.text)
        shown = browser.get(address)
        assert shown.status_code == 200, (method, path)
        assert shown.headers["ETag"], (method, path)


def test_a_person_is_looked_at_where_the_change_is_made(
    olivia: Browser, world: World, cast: Cast
) -> None:
    path = f"/api/v1/users/{world.ids['user_id']}"
    etag = olivia.get(f"{path}?tenant_id={cast.acme.id}").headers["ETag"]
    headers = {"X-CSRFToken": olivia.csrf_token("/settings"), "If-Match": etag}
    body = {"role": "viewer", "tenant_id": cast.acme.id}
    assert olivia.client.patch(path, json=body, headers=headers).status_code == 200
    assert olivia.client.patch(path, json=body, headers=headers).status_code == 412


def test_quotas_that_somebody_else_set_are_not_overwritten(olivia: Browser, world: World) -> None:
    path = f"/api/v1/tenants/{world.ids['tenant_id']}/quotas"
    etag = olivia.get(path).headers["ETag"]
    headers = {"X-CSRFToken": olivia.csrf_token("/settings"), "If-Match": etag}
    first = olivia.client.put(path, json={"max_gpus": 8}, headers=headers)
    assert first.status_code == 200
    assert olivia.client.put(path, json={"max_gpus": 9}, headers=headers).status_code == 412
    headers["If-Match"] = first.headers["ETag"]
    assert olivia.client.put(path, json={"max_gpus": 9}, headers=headers).status_code == 200
