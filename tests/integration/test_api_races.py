"""Programs that send the same at the same moment, on both databases.

Every racer is a thread with a client of its own; a barrier lets them go together.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from core.db import (
    SessionFactory,
    create_database_engine,
    create_session_factory,
    transaction,
)
from core.migrations import upgrade_database
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.models import APIToken
from tenants.people.tokens import create_api_token
from tests.cast import NOON, make_cast, scope_of
from tests.integration.mariadb import mariadb_server
from timeseries.store import Store

pytestmark = pytest.mark.timeout(300)

RACERS = 8
WAIT_SECONDS = 120


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=[pytest.mark.needs_mariadb])])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionFactory]:
    if request.param == "sqlite":
        yield from _factory(f"sqlite:///{tmp_path / 'vedette.db'}")
        return
    with mariadb_server(tmp_path) as url:
        yield from _factory(url)


def _factory(url: str) -> Iterator[SessionFactory]:
    engine = create_database_engine(url)
    upgrade_database(engine)
    yield create_session_factory(engine)
    engine.dispose()


@pytest.fixture
def app(factory: SessionFactory, store: Store, tmp_path: Path) -> Flask:
    settings = ServerSettings(
        data_dir=tmp_path,
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
    )
    return create_portal(settings, sessions=factory, store=store, clock=lambda: NOON)


@pytest.fixture
def headers(factory: SessionFactory) -> dict[str, str]:
    """Headers of alice's."""
    with transaction(factory) as session:
        cast = make_cast(session)
        _, secret = create_api_token(session, scope_of(cast.alice), name="racer", now=NOON)
    return {"Authorization": f"Bearer {secret}"}


def race(send: Callable[[int], TestResponse]) -> list[TestResponse]:
    """Let all racers send at once."""
    start = threading.Barrier(RACERS, timeout=WAIT_SECONDS)

    def run(number: int) -> TestResponse:
        start.wait()
        return send(number)

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(run, range(RACERS)))


def test_one_key_makes_one_object_however_often_it_is_sent(
    app: Flask, factory: SessionFactory, headers: dict[str, str]
) -> None:
    def send(key: str) -> Callable[[int], TestResponse]:
        keyed = {**headers, "Idempotency-Key": key}
        return lambda _: app.test_client().post("/api/v1/tokens", json={"name": key}, headers=keyed)

    for key in ("one", "two", "three"):
        answers = race(send(key))
        assert {answer.status_code for answer in answers} <= {201, 409}
        made = [answer.json["id"] for answer in answers if answer.status_code == 201]  # type: ignore[index] # JSON
        assert made
        assert len(set(made)) == 1
        with factory() as session:
            count = select(func.count()).where(APIToken.name == key)
            assert session.scalar(count) == 1


def test_of_those_who_change_what_they_read_at_once_one_does(
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
    read = app.test_client().get(path, headers=headers).headers["ETag"]

    def send(number: int) -> TestResponse:
        changed = {**rule, "name": f"Hot {number}"}
        return app.test_client().put(path, json=changed, headers={**headers, "If-Match": read})

    answers = race(send)

    assert sorted(answer.status_code for answer in answers) == [200] + [412] * (RACERS - 1)
    (winner,) = (answer.json for answer in answers if answer.status_code == 200)
    now = app.test_client().get(path, headers=headers).json
    assert winner is not None
    assert now is not None
    assert now["name"] == winner["name"]
