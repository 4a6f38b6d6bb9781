"""Programs that send the same at the same moment, on both databases.

Every racer is a thread with a client of its own; a barrier lets them go together.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from alerting.models import Receiver
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from tenants.models import APIToken
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.racing import RACERS, race_numbered
from tests.fixtures.shared_portal import Serve

pytestmark = pytest.mark.timeout(300)

ROUNDS = 2


@pytest.fixture
def app(factory: SessionFactory, serve: Serve, tmp_path: Path) -> Flask:
    settings = ServerSettings(
        data_dir=tmp_path,
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
    )
    return serve(settings, sessions=factory, clock=lambda: NOON)


@pytest.fixture(scope="module")
def headers(factory: SessionFactory, people: Cast) -> dict[str, str]:
    """Headers of alice's."""
    with transaction(factory) as session:
        _, secret = create_api_token(session, scope_of(people.alice), name="racer", now=NOON)
    return {"Authorization": f"Bearer {secret}"}


def test_one_key_makes_one_object_however_often_it_is_sent(
    app: Flask, factory: SessionFactory, headers: dict[str, str]
) -> None:
    def send(key: str) -> Callable[[int], TestResponse]:
        keyed = {**headers, "Idempotency-Key": key}
        return lambda _: app.test_client().post("/api/v1/tokens", json={"name": key}, headers=keyed)

    for key in ("one", "two"):
        answers = race_numbered(send(key))
        assert {answer.status_code for answer in answers} <= {201, 409}
        made = [answer.json["id"] for answer in answers if answer.status_code == 201]  # type: ignore[index] # JSON
        assert made
        assert len(set(made)) == 1
        with factory() as session:
            count = select(func.count()).where(APIToken.name == key)
            assert session.scalar(count) == 1


def test_one_of_several_concurrent_changes_of_a_version_succeeds(
    app: Flask, headers: dict[str, str]
) -> None:
    rule = {
        "name": "Hot",
        "measurement": "gpu",
        "field": "temperature_celsius",
        "warning_threshold": 85,
    }
    made = app.test_client().post("/api/v1/rules", json=rule, headers=headers).json
    assert made is not None
    path = f"/api/v1/rules/{made['id']}"

    for _ in range(ROUNDS):
        read = app.test_client().get(path, headers=headers).headers["ETag"]
        matching = {**headers, "If-Match": read}

        def send(number: int, headers: dict[str, str] = matching) -> TestResponse:
            changed = {**rule, "name": f"Hot {number} after {headers['If-Match']}"}
            return app.test_client().patch(path, json=changed, headers=headers)

        answers = race_numbered(send)

        assert sorted(answer.status_code for answer in answers) == [200] + [412] * (RACERS - 1)
        (winner,) = (answer.json for answer in answers if answer.status_code == 200)
        now = app.test_client().get(path, headers=headers).json
        assert winner is not None
        assert now is not None
        assert now["name"] == winner["name"]


def test_one_name_makes_one_receiver_and_the_others_get_a_conflict(
    app: Flask, factory: SessionFactory, headers: dict[str, str]
) -> None:
    def send(name: str) -> Callable[[int], TestResponse]:
        body = {"name": name, "kind": "email", "target": "oncall@acme.example"}
        return lambda _: app.test_client().post("/api/v1/receivers", json=body, headers=headers)

    for number in range(ROUNDS):
        name = f"on call {number}"
        statuses = Counter(answer.status_code for answer in race_numbered(send(name)))
        assert statuses.keys() <= {201, 409, 422}
        assert statuses[201] == 1
        with factory() as session:
            made = select(func.count()).where(Receiver.name == name)
            assert session.scalar(made) == 1
