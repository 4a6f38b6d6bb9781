"""Idempotency keys: a creation request that is sent twice creates one object."""

import itertools
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from werkzeug.test import TestResponse

from core.db import SessionFactory
from core.errors import DatabaseUnavailableError
from jobqueue.queue import stopping
from tenants.models import IdempotencyKey
from tenants.users.tokens import TokenLimits
from tests.cast import FrozenClock
from tests.unit.portal.conftest import Browser

PATH = "/api/v1/tokens"
DAY_SECONDS = 24 * 3600

pytestmark = pytest.mark.usefixtures("cast")


def create(browser: Browser, key: str, body: object = None, path: str = PATH) -> TestResponse:
    headers = {"X-CSRFToken": browser.token(), "Idempotency-Key": key}
    return browser.client.post(path, json={"name": "ci"} if body is None else body, headers=headers)


def test_the_same_request_returns_the_same_response(bob: Browser) -> None:
    first, second = create(bob, "one"), create(bob, "one")
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json == first.json
    assert second.headers["Idempotency-Replayed"] == "true"
    assert bob.get(PATH).json["total"] == 1  # type: ignore[index] # JSON


def test_a_file_of_jobs_and_a_run_of_a_schedule_are_submitted_once(bob: Browser) -> None:
    jobs = {"jobs": [{"name": "a", "image": "acme/a"}, {"name": "b", "image": "acme/b"}]}
    first, second = (create(bob, "one", jobs, "/api/v1/jobs/apply") for _ in range(2))
    assert (first.status_code, second.get_json()) == (200, first.get_json())
    plan = {"name": "nightly", "schedule": "@daily", "job": {"name": "c", "image": "acme/c"}}
    schedule = create(bob, "two", plan, "/api/v1/job-schedules").get_json()["id"]
    for _ in range(2):
        create(bob, "three", {}, f"/api/v1/job-schedules/{schedule}/run")
    names = [job["name"] for job in bob.get("/api/v1/jobs").get_json()["items"]]
    assert sorted(names) == ["a", "b", "c"]


def test_another_key_creates_another_object(bob: Browser) -> None:
    assert create(bob, "one").json != create(bob, "two").json


def test_another_body_with_the_same_key_is_refused(bob: Browser) -> None:
    create(bob, "one")
    answer = create(bob, "one", {"name": "other"})
    assert answer.status_code == 422
    assert answer.json["code"] == "idempotency_key_reused"  # type: ignore[index] # JSON


def test_another_address_with_the_same_key_is_refused(bob: Browser) -> None:
    create(bob, "one")
    body = {"name": "x", "kind": "email", "target": "x@acme.example"}
    assert create(bob, "one", body, "/api/v1/receivers").status_code == 422


def test_keys_of_different_users_are_independent(alice: Browser, bob: Browser) -> None:
    assert create(alice, "one").json != create(bob, "one").json


def test_a_failed_request_can_be_sent_again(bob: Browser) -> None:
    assert create(bob, "one", {"name": ""}).status_code == 422
    assert create(bob, "one").status_code == 201


def test_a_key_expires_after_a_day(bob: Browser, clock: FrozenClock) -> None:
    first = create(bob, "one").json
    clock.advance(DAY_SECONDS - 1)
    assert create(bob, "one").json == first
    clock.advance(1)
    assert create(bob, "one").json != first


def crash(sessions: SessionFactory, *, is_created: bool) -> None:
    """Leave the key as a portal does that dies before it keeps the answer."""
    with sessions.begin() as session:
        row = session.scalars(select(IdempotencyKey)).one()
        row.status, row.answer = (201 if is_created else None), None


@pytest.mark.parametrize("is_created", [False, True])
def test_a_concurrent_request_with_the_same_key_is_refused(
    bob: Browser, sessions: SessionFactory, *, is_created: bool
) -> None:
    create(bob, "one")
    crash(sessions, is_created=is_created)
    answer = create(bob, "one")
    assert answer.status_code == 409
    assert answer.json["code"] == "idempotency_key_in_flight"  # type: ignore[index] # JSON


def test_an_abandoned_claim_is_taken_over_after_a_minute(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    first = create(bob, "one").json
    crash(sessions, is_created=False)
    clock.advance(60)
    second = create(bob, "one")
    assert second.status_code == 201
    assert second.json != first
    assert create(bob, "one").json == second.json


def test_what_was_created_before_a_crash_is_never_created_again(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    create(bob, "one")
    crash(sessions, is_created=True)
    clock.advance(60)
    answer = create(bob, "one")
    assert answer.status_code == 409
    assert answer.json["code"] == "idempotency_answer_lost"  # type: ignore[index] # JSON
    assert bob.get(PATH).json["total"] == 1  # type: ignore[index] # JSON


def test_a_slow_request_creates_nothing_after_its_claim_was_taken_over(
    *, bob: Browser, sessions: SessionFactory, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any) -> TokenLimits:  # noqa: ANN401 - what limits are made of
        with sessions.begin() as session:
            row = session.scalars(select(IdempotencyKey)).one()
            row.created_at = clock.now + timedelta(minutes=1)
        return TokenLimits(*args)

    monkeypatch.setattr("portal.api.account.TokenLimits", slow)
    answer = create(bob, "one")
    assert answer.status_code == 409
    assert answer.json["code"] == "idempotency_key_in_flight"  # type: ignore[index] # JSON
    assert bob.get(PATH).json["total"] == 0  # type: ignore[index] # JSON


def test_stored_responses_are_encrypted(bob: Browser, sessions: SessionFactory) -> None:
    made = create(bob, "one").json
    assert made is not None
    with sessions() as session:
        stored = session.scalars(select(IdempotencyKey)).one().answer
    assert stored
    assert made["secret"] not in stored
    assert made["id"] not in stored


@pytest.mark.parametrize("key", ["x" * 256, "two words"])
def test_an_invalid_key_is_refused(bob: Browser, key: str) -> None:
    answer = create(bob, key)
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json["errors"]  # type: ignore[index] # JSON


def test_without_a_key_every_request_creates_an_object(bob: Browser) -> None:
    for _ in range(2):
        assert bob.call("POST", PATH, {"name": "ci"}).status_code == 201
    assert bob.get(PATH).json["total"] == 2  # type: ignore[index] # JSON


def test_a_change_in_parts_that_ended_early_is_done_by_the_same_request(
    bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "TASKS_PER_TRANSACTION", 2)
    array = bob.call("POST", "/api/v1/jobs", {"name": "a", "image": "a/b:1", "array": "0-4"}).json
    assert array is not None
    path = f"/api/v1/jobs/{array['id']}/stop-array"
    headers = {"X-CSRFToken": bob.token(), "Idempotency-Key": "stop"}
    stop_all, parts = stopping.stop_all, itertools.count()

    def fail_once(*args: Any, **options: Any) -> int:  # noqa: ANN401 - of any function
        if next(parts) == 1:
            raise DatabaseUnavailableError("The database is busy.")
        return stop_all(*args, **options)

    monkeypatch.setattr(stopping, "stop_all", fail_once)
    answers = [bob.client.post(path, headers=headers).status_code for _ in range(3)]
    assert answers == [503, 200, 200]
    states = bob.get(f"/api/v1/jobs?array_id={array['id']}").json
    assert states is not None
    assert {job["state"] for job in states["items"]} == {"stopped"}
