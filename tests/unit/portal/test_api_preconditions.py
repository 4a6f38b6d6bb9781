"""Every PUT, PATCH and DELETE of an object honors `If-Match`, by the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select

from core.db import SessionFactory
from portal.api.streams import PATHS as STREAMS
from tenants.models import LoginSession
from tests.cast import Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.routes import BODIES
from tests.unit.portal.world import World

# Deletes all sessions, so there is no single object.
OF_MANY = {("delete", "/api/v1/sessions")}
# For operators only, but for what a tenant's admin decides.
OF_OLIVIA = (
    *("/api/v1/tenants", "/api/v1/platform", "/api/v1/access-points"),
    "/api/v1/market/accounts",
)
OF_ALICE = ("/container-policies", "/queue-settings", "/data-settings", "/cleanup-policies")

Change = tuple[str, str, dict[str, Any]]


@pytest.fixture
def described(app: Flask) -> dict[str, Any]:
    answer = app.test_client().get("/api/v1/openapi.json").json
    assert isinstance(answer, dict)
    return answer


def changes(described: dict[str, Any]) -> Iterator[Change]:
    """Yield method, path and description of every PUT, PATCH and DELETE of an object."""
    for path, item in described["paths"].items():
        for method in ("put", "patch", "delete"):
            if method in item and (method, path) not in OF_MANY and path not in STREAMS:
                yield method, path, item[method]


def name_of(parameter: dict[str, Any], described: dict[str, Any]) -> str:
    """Return the name of a parameter, which may be a reference to a component."""
    if "$ref" in parameter:
        component = parameter["$ref"].rpartition("/")[2]
        parameter = described["components"]["parameters"][component]
    return str(parameter["name"])


def test_every_change_is_described_with_if_match_and_412(
    described: dict[str, Any],
) -> None:
    operations = list(changes(described))
    assert len(operations) >= 9
    for method, path, operation in operations:
        headers = {name_of(parameter, described) for parameter in operation.get("parameters", [])}
        assert "If-Match" in headers, (method, path)
        assert "412" in operation["responses"], (method, path)


def test_every_changeable_object_has_a_get_at_the_same_path(described: dict[str, Any]) -> None:
    for method, path, _ in changes(described):
        assert "get" in described["paths"][path], (method, path)


def test_every_change_with_an_outdated_etag_is_refused(
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
    made = olivia.client.post(
        "/api/v1/platform/receivers",
        json=BODIES["Platform receivers.create"],
        headers={"X-CSRFToken": olivia.token()},
    )
    assert made.status_code == 201, made.text
    # The bodies are by endpoint, such as `Job templates.replace`.
    bodies = {name.replace(" ", "").lower(): body for name, body in BODIES.items()}
    for method, path, operation in changes(described):
        is_alices = path.endswith(OF_ALICE) or not path.startswith(OF_OLIVIA)
        browser = alice if is_alices else olivia
        is_platforms = path.startswith("/api/v1/platform/receivers")
        address = path.format(
            **ids | ({"receiver_id": made.get_json()["id"]} if is_platforms else {})
        )
        headers = {"X-CSRFToken": browser.token(), "If-Match": '"outdated"'}
        body = bodies.get(operation["operationId"].lower())
        answer = browser.client.open(address, method=method.upper(), json=body, headers=headers)
        assert answer.status_code == 412, (method, path, answer.text)
        shown = browser.get(address)
        assert shown.status_code == 200, (method, path)
        assert shown.headers["ETag"], (method, path)


def test_the_etag_of_a_user_is_compared_in_the_tenant_of_the_change(
    olivia: Browser, world: World, cast: Cast
) -> None:
    path = f"/api/v1/users/{world.ids['user_id']}"
    etag = olivia.get(f"{path}?tenant_id={cast.acme.id}").headers["ETag"]
    headers = {"X-CSRFToken": olivia.token(), "If-Match": etag}
    body = {"role": "viewer", "tenant_id": cast.acme.id}
    assert olivia.client.patch(path, json=body, headers=headers).status_code == 200
    assert olivia.client.patch(path, json=body, headers=headers).status_code == 412


def test_quotas_set_by_another_operator_are_not_overwritten(olivia: Browser, world: World) -> None:
    path = f"/api/v1/tenants/{world.ids['tenant_id']}/quotas"
    etag = olivia.get(path).headers["ETag"]
    headers = {"X-CSRFToken": olivia.token(), "If-Match": etag}
    first = olivia.client.patch(path, json={"max_gpus": 8}, headers=headers)
    assert first.status_code == 200
    assert olivia.client.patch(path, json={"max_gpus": 9}, headers=headers).status_code == 412
    headers["If-Match"] = first.headers["ETag"]
    assert olivia.client.patch(path, json={"max_gpus": 9}, headers=headers).status_code == 200
