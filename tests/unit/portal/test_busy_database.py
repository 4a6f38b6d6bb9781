"""While another connection writes: reads are answered, and changes are asked to come again."""

import sqlite3
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, event

from tests.cast import Cast, FrozenClock
from tests.fixtures.writers import written_by_another
from tests.unit.portal.conftest import Browser, MakeToken

JOB = {"name": "train", "image": "acme/train:1"}


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs", "/api/v1/rules", "/api/v1/sessions", "/jobs", "/dashboards/"]
)
def test_reads_of_a_browser_need_no_write(
    engine: Engine, alice: Browser, clock: FrozenClock, path: str
) -> None:
    assert alice.get(path).status_code == 200
    clock.advance(120)  # its use is due to be stored
    with written_by_another(engine):
        assert alice.get(path).status_code == 200


def test_reads_with_a_token_need_no_write(
    engine: Engine, app: Flask, make_token: MakeToken, cast: Cast
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.bob)}"}
    with written_by_another(engine):
        assert app.test_client().get("/api/v1/jobs", headers=headers).status_code == 200


def test_a_change_is_503_with_the_time_to_wait(engine: Engine, bob: Browser) -> None:
    with written_by_another(engine):
        answer = bob.call("POST", "/api/v1/jobs", JOB)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    assert answer.json is not None
    assert answer.json["code"] == "database_unavailable"


def test_a_request_with_a_key_is_503_and_may_be_sent_again(
    engine: Engine, app: Flask, make_token: MakeToken, cast: Cast
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.bob)}", "Idempotency-Key": "one"}
    client = app.test_client()
    with written_by_another(engine):
        busy = client.post("/api/v1/jobs", json=JOB, headers=headers)
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "2")
    assert client.post("/api/v1/jobs", json=JOB, headers=headers).status_code == 201


def test_a_page_says_that_the_database_is_busy(engine: Engine, alice: Browser) -> None:
    form = {"time_zone": "Europe/Oslo", "csrf_token": alice.token()}
    with written_by_another(engine):
        answer = alice.client.post("/settings/time-zone", data=form)
    assert answer.status_code == 503, answer.text
    assert answer.headers["Retry-After"] == "2"
    assert "Nothing was changed" in answer.text


@pytest.mark.parametrize("path", ["/jobs", "/jobs/no-such-job", "/dashboards/"])
def test_a_database_that_goes_away_during_a_request_is_reported_on_a_page(
    engine: Engine, alice: Browser, path: str
) -> None:
    alice.get(path)  # what is cached later
    statements: list[str] = []

    def fail(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:  # noqa: ANN401
        statements.append(statement)
        if len(statements) > 1:  # the first one authenticates
            raise sqlite3.OperationalError("the connection was lost")

    event.listen(engine, "before_cursor_execute", fail)
    try:
        answer = alice.get(path)
    finally:
        event.remove(engine, "before_cursor_execute", fail)

    assert answer.status_code == 503, answer.text
    assert answer.headers["Retry-After"] == "2"
    assert "The database is busy or unavailable" in answer.text
