"""Failed sign-ins are limited and logged."""

from flask import Flask
from sqlalchemy import select

from core.db import SessionFactory
from tenants.models import AuditEntry
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.letters import without_tokens

FREE_TRIES = 5
NEW = "staple battery horse"


def guess(browser: Browser, email: str, times: int = FREE_TRIES) -> str:
    for _ in range(times):
        text = browser.sign_in(email, "wrong").text
    return without_tokens(text.replace(email, "ADDRESS"))


def told(sessions: SessionFactory, action: str) -> list[AuditEntry]:
    with sessions() as session:
        query = select(AuditEntry).where(AuditEntry.action == action).order_by(AuditEntry.id)
        return list(session.scalars(query))


def test_after_five_wrong_passwords_the_right_one_has_to_wait(
    nobody: Browser, cast: Cast, clock: FrozenClock
) -> None:
    guess(nobody, cast.bob.email)
    answer = nobody.sign_in(cast.bob.email, PASSWORD)
    assert answer.status_code == 429
    assert "Try again in 1 min." in answer.text
    clock.advance(60)
    assert nobody.sign_in(cast.bob.email, PASSWORD).status_code == 302


def test_a_locked_account_and_an_unknown_one_look_the_same(nobody: Browser, cast: Cast) -> None:
    emails = (cast.bob.email, "nobody@acme.example")
    assert len({guess(nobody, email, FREE_TRIES + 1) for email in emails}) == 1


def test_a_right_password_resets_the_count(nobody: Browser, cast: Cast) -> None:
    guess(nobody, cast.bob.email, FREE_TRIES - 1)
    assert nobody.sign_in(cast.bob.email).status_code == 302
    nobody.post("/logout")
    guess(nobody, cast.bob.email, FREE_TRIES - 1)
    assert nobody.sign_in(cast.bob.email).status_code == 302


def test_token_and_page_sign_ins_share_one_count(app: Flask, nobody: Browser, cast: Cast) -> None:
    client = app.test_client()
    for _ in range(FREE_TRIES):
        wrong = (cast.bob.email, "wrong")
        assert client.post("/api/v1/tokens", json={"name": "x"}, auth=wrong).status_code == 401
    right = (cast.bob.email, PASSWORD)
    answer = client.post("/api/v1/tokens", json={"name": "x"}, auth=right)
    assert answer.status_code == 429
    assert answer.json is not None
    assert answer.json["code"] == "too_many_attempts"
    assert answer.headers["Retry-After"] == "60"
    assert nobody.sign_in(cast.bob.email).status_code == 429


def test_guesses_of_the_current_password_are_limited(alice: Browser) -> None:
    form: dict[str, object] = {
        "current": "no",
        "new": "staple battery",
        "repeated": "staple battery",
    }
    for _ in range(FREE_TRIES):
        assert alice.post("/settings/password", form).status_code == 422
    assert alice.post("/settings/password", {**form, "current": PASSWORD}).status_code == 429


def test_sign_ins_are_logged_with_user_and_address(
    nobody: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    nobody.sign_in(cast.bob.email)
    (entry,) = told(sessions, "session.started")
    assert (entry.chain, entry.actor_id) == (cast.acme.id, cast.bob.id)
    assert entry.address == "127.0.0.1"


def test_failed_sign_ins_are_logged_in_the_tenants_log(
    nobody: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    nobody.sign_in(cast.bob.email, "wrong")
    nobody.sign_in("nobody@acme.example", "wrong")
    of_bob, of_nobody = told(sessions, "session.failed")
    assert (of_bob.chain, of_bob.target_id) == (cast.acme.id, cast.bob.id)
    assert (of_nobody.chain, of_nobody.target_name) == ("platform", "nobody@acme.example")


def test_a_password_in_the_wrong_field_is_not_logged(
    nobody: Browser, sessions: SessionFactory
) -> None:
    nobody.sign_in("hunter2-hunter2", "bob@acme.example")
    (entry,) = told(sessions, "session.failed")
    assert entry.target_name == "(not an email address)"
