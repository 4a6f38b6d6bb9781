"""Database statements of sign-in and of signed-in requests, and overload."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from argon2 import PasswordHasher
from flask import Flask
from sqlalchemy import Engine, event, select

from core.db import SessionFactory
from tenants.models import AuditEntry, Throttle, User
from tenants.users import passwords
from tenants.users.passwords import Hashing, needs_rehash
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.unit.portal.conftest import Browser, MakeToken, portal_in

COMMIT = "COMMIT"
SIGN_IN_STATEMENTS = 14
# Older hashes, or those of another portal, cost another amount.
OTHER = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Gather what is sent to the database, commits included."""
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    def note_commit(*_arguments: object) -> None:
        sent.append(COMMIT)

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", note_commit)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "commit", note_commit)


def writes(sent: list[str]) -> list[str]:
    return [statement for statement in sent if statement.startswith(("INSERT", "UPDATE", "DELETE"))]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All turns at hashing are taken."""
    hashing = Hashing(passwords.hashing.hasher, at_once=1, waiting=0)
    monkeypatch.setattr(passwords, "hashing", hashing)
    with hashing.turn():
        yield


def test_a_sign_in_takes_two_commits_and_few_statements(
    app: Flask, nobody: Browser, cast: Cast, engine: Engine
) -> None:
    Browser(app.test_client()).sign_in(cast.alice.email)
    form = {"csrf_token": nobody.csrf_token(), "email": cast.bob.email, "password": PASSWORD}
    with statements(engine) as sent:
        assert nobody.client.post("/login", data=form).status_code == 302
    assert sent.count(COMMIT) == 2
    assert len(sent) - 2 <= SIGN_IN_STATEMENTS


def test_the_attempt_is_committed_before_the_session_starts(
    nobody: Browser, cast: Cast, engine: Engine
) -> None:
    with statements(engine) as sent:
        nobody.sign_in(cast.bob.email)
    counted = next(
        at for at, statement in enumerate(sent) if statement.startswith("INSERT INTO throttles")
    )
    begun = next(
        at
        for at, statement in enumerate(sent)
        if statement.startswith("INSERT INTO login_sessions")
    )
    assert COMMIT in sent[counted:begun]


def test_a_failure_takes_as_many_statements_whether_or_not_the_address_is_known(
    nobody: Browser, cast: Cast, engine: Engine
) -> None:
    counts = []
    for email in ("first@acme.example", cast.bob.email, "nobody@acme.example"):
        form = {"csrf_token": nobody.csrf_token(), "email": email, "password": "wrong"}
        with statements(engine) as sent:
            assert nobody.client.post("/login", data=form).status_code == 401
        counts.append(len(sent))
    # Bob's tenant has no chain yet, as the platform had none before the first.
    assert counts[0] == counts[1]
    form = {"csrf_token": nobody.csrf_token(), "email": cast.alice.email, "password": "wrong"}
    with statements(engine) as sent:
        assert nobody.client.post("/login", data=form).status_code == 401
    assert len(sent) == counts[2]


def test_a_signed_in_browser_and_a_token_write_nothing_within_a_minute(
    app: Flask, alice: Browser, cast: Cast, engine: Engine, make_token: MakeToken
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    client = app.test_client()
    for _ in range(2):
        with statements(engine) as sent:
            assert alice.get("/jobs").status_code == 200
            assert client.get("/api/v1/jobs", headers=headers).status_code == 200
    assert writes(sent) == []


def test_after_a_minute_the_last_use_is_updated_once(
    alice: Browser, cast: Cast, engine: Engine, make_token: MakeToken, clock: FrozenClock
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    client = alice.client.application.test_client()
    client.get("/api/v1/jobs", headers=headers)
    sightings = portal_in(alice.client.application).sightings
    sightings.write()
    clock.advance(60)
    with statements(engine) as sent:
        for _ in range(3):
            alice.get("/jobs")
            client.get("/api/v1/jobs", headers=headers)
            sightings.write()
    assert [statement.split()[1] for statement in writes(sent)] == ["login_sessions", "api_tokens"]


@pytest.mark.usefixtures("full")
def test_too_many_concurrent_hashes_refuse_without_counting(
    nobody: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    answer = nobody.sign_in(cast.bob.email)
    assert answer.status_code == 429
    assert "Too many" in answer.text
    with sessions() as session:
        assert set(session.scalars(select(Throttle.failures))) == {0}
        assert session.scalars(select(AuditEntry.action)).all() == []


@pytest.mark.usefixtures("full")
def test_an_overloaded_response_has_retry_after(app: Flask, cast: Cast) -> None:
    right = (cast.bob.email, PASSWORD)
    answer = app.test_client().post("/api/v1/tokens", json={"name": "x"}, auth=right)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == str(passwords.RETRY_AFTER_SECONDS)


def test_an_outdated_hash_is_upgraded_without_a_password_change(
    nobody: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.get_one(User, cast.bob.id).password_hash = OTHER.hash(PASSWORD)
    assert nobody.sign_in(cast.bob.email).status_code == 302
    with sessions() as session:
        stored_hash = session.get_one(User, cast.bob.id).password_hash
        assert stored_hash is not None
        assert not needs_rehash(stored_hash)
        assert session.scalars(select(AuditEntry.action)).all() == ["session.started"]
    nobody.post("/logout")
    for _ in range(5):
        assert Browser(nobody.client.application.test_client()).sign_in(cast.bob.email, "wrong")
    assert nobody.sign_in(cast.bob.email).status_code == 302  # it is a known browser
