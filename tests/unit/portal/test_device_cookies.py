"""Browsers that signed in before are known by a cookie, and not blocked by others' attempts."""

from collections.abc import Callable
from datetime import timedelta

import pyotp
import pytest
from flask import Flask
from sqlalchemy import select
from werkzeug.http import parse_cookie
from werkzeug.test import TestResponse

from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings
from portal.auth.device_cookies import LIFETIME, MAX_USERS
from tenants.models import Throttle, ThrottleKind, User
from tenants.users.passwords import set_password
from tenants.users.second_factor import begin_setup, confirm_setup
from tenants.users.throttling import count_attempt
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn

Block = Callable[[], None]

COOKIE = "vedette-device"
CODE_PAGE = "/login/second-factor"
NEW = "staple battery horse"
ACCOUNT_TRIES, ADDRESS_TRIES = 5, 50


def device_cookie(browser: Browser) -> str:
    cookie = browser.client.get_cookie(COOKIE)
    return "" if cookie is None else cookie.value


@pytest.fixture
def remembered(app: Flask, cast: Cast) -> Browser:
    """Bob's browser after he signed out."""
    bob = Browser(app.test_client())
    assert bob.sign_in(cast.bob.email).status_code == 302
    bob.post("/logout")
    assert device_cookie(bob)
    return bob


@pytest.fixture
def block(app: Flask, cast: Cast, sessions: SessionFactory, clock: FrozenClock) -> Block:
    """Return what blocks Bob's account and the address: guesses of somebody else behind it."""

    def guess() -> None:
        other = Browser(app.test_client())
        for _ in range(ACCOUNT_TRIES):
            assert other.sign_in(cast.bob.email, "wrong").status_code == 401
        with sessions.begin() as session:
            for number in range(ADDRESS_TRIES - ACCOUNT_TRIES):
                count_attempt(session, account=f"u{number}", address="127.0.0.1", now=clock.now)
        assert other.sign_in("one-more@acme.example", "wrong").status_code == 429

    return guess


def locks(sessions: SessionFactory) -> dict[ThrottleKind, int]:
    with sessions() as session:
        rows = session.execute(select(Throttle.kind, Throttle.failures))
        return dict(sorted((kind, failures) for kind, failures in rows))


def test_a_known_browser_signs_in_while_account_and_address_are_blocked(
    remembered: Browser, nobody: Browser, cast: Cast, block: Block
) -> None:
    block()
    assert nobody.sign_in(cast.bob.email).status_code == 429
    assert remembered.sign_in(cast.bob.email).status_code == 302


def test_a_known_browser_is_known_for_its_user_only(
    remembered: Browser, cast: Cast, block: Block
) -> None:
    block()
    assert remembered.sign_in(cast.alice.email).status_code == 429


def test_a_known_browser_has_five_tries_of_its_own(
    remembered: Browser, nobody: Browser, cast: Cast, clock: FrozenClock
) -> None:
    for _ in range(ACCOUNT_TRIES):
        assert remembered.sign_in(cast.bob.email, "wrong").status_code == 401
    answer = remembered.sign_in(cast.bob.email)
    assert answer.status_code == 429
    assert "from this browser. Try again in 1 min." in answer.text
    assert nobody.sign_in(cast.bob.email).status_code == 302
    clock.advance(60)
    assert remembered.sign_in(cast.bob.email).status_code == 302


def test_wrong_attempts_of_a_known_browser_do_not_count_for_others(
    remembered: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    remembered.sign_in(cast.bob.email, "wrong")
    assert locks(sessions)[ThrottleKind.DEVICE] == 1
    assert locks(sessions)[ThrottleKind.ACCOUNT] == locks(sessions)[ThrottleKind.ADDRESS] == 0


def test_the_cookie_alone_opens_nothing(remembered: Browser) -> None:
    assert remembered.get("/jobs").status_code == 302
    assert remembered.get("/api/v1/me").status_code == 401


def test_scripts_and_other_sites_cannot_use_the_cookie(nobody: Browser, cast: Cast) -> None:
    (cookie,) = set_cookies(nobody.sign_in(cast.bob.email))
    words = {word.strip() for word in cookie.split(";")[1:]}
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= words
    assert f"Max-Age={LIFETIME.total_seconds():.0f}" in words
    assert "Secure" not in words  # over HTTPS: test_security


def set_cookies(answer: TestResponse) -> list[str]:
    return [
        cookie for cookie in answer.headers.getlist("Set-Cookie") if COOKIE in parse_cookie(cookie)
    ]


def test_a_wrong_password_makes_no_browser_known(nobody: Browser, cast: Cast) -> None:
    nobody.sign_in(cast.bob.email, "wrong")
    assert device_cookie(nobody) == ""


def test_a_made_up_cookie_is_worth_nothing(nobody: Browser, cast: Cast, block: Block) -> None:
    block()
    for value in ("", "x", "~" * 2000, "a.b~c.d", "WyJhIiwxXQ.x"):
        nobody.client.set_cookie(COOKIE, value)
        assert nobody.sign_in(cast.bob.email).status_code == 429, value


def test_a_changed_cookie_is_worth_nothing(remembered: Browser, cast: Cast, block: Block) -> None:
    block()
    remembered.client.set_cookie(COOKIE, f"x{device_cookie(remembered)}")
    assert remembered.sign_in(cast.bob.email).status_code == 429


def test_a_new_password_makes_known_browsers_unknown(
    remembered: Browser, cast: Cast, sessions: SessionFactory, block: Block
) -> None:
    block()
    with sessions.begin() as session:
        set_password(session, session.get_one(User, cast.bob.id), NEW)
    assert remembered.sign_in(cast.bob.email, NEW).status_code == 429


def test_the_browser_that_changes_the_password_stays_known_and_others_do_not(
    bob: Browser, sign_in: SignIn, cast: Cast, block: Block
) -> None:
    other = sign_in(cast.bob)
    form: dict[str, object] = {"current": PASSWORD, "new": NEW, "repeated": NEW}
    assert bob.post("/settings/password", form).status_code == 302
    bob.post("/logout")
    block()
    assert other.sign_in(cast.bob.email, NEW).status_code == 429
    assert bob.sign_in(cast.bob.email, NEW).status_code == 302


def test_a_cookie_expires_with_the_clock_of_the_server(
    remembered: Browser, cast: Cast, clock: FrozenClock, block: Block
) -> None:
    clock.advance((LIFETIME - timedelta(seconds=1)).total_seconds())
    block()
    stored = device_cookie(remembered)
    assert remembered.sign_in(cast.bob.email, "wrong").status_code == 401
    clock.advance(2)
    remembered.client.set_cookie(COOKIE, stored)
    assert remembered.sign_in(cast.bob.email).status_code == 429


def test_a_sign_in_renews_the_cookie_but_not_the_count(
    remembered: Browser, cast: Cast, clock: FrozenClock, sessions: SessionFactory
) -> None:
    before = device_cookie(remembered)
    clock.advance(10)
    assert remembered.sign_in(cast.bob.email).status_code == 302
    assert device_cookie(remembered) != before
    remembered.post("/logout")
    remembered.sign_in(cast.bob.email, "wrong")
    with sessions() as session:
        devices = select(Throttle).where(Throttle.kind == ThrottleKind.DEVICE)
        assert len(session.scalars(devices).all()) == 1


def test_users_of_one_browser_are_known_together_up_to_a_number(
    remembered: Browser, cast: Cast, block: Block
) -> None:
    for user in (cast.alice, cast.charlie, cast.olivia, cast.bob):
        assert remembered.sign_in(user.email).status_code == 302
        remembered.post("/logout")
    assert len(device_cookie(remembered).split("~")) == 4 < MAX_USERS
    block()
    for user in (cast.alice, cast.bob):
        assert remembered.sign_in(user.email).status_code == 302
        remembered.post("/logout")


@pytest.fixture
def totp(
    sessions: SessionFactory, settings: ServerSettings, cast: Cast, clock: FrozenClock
) -> pyotp.TOTP:
    """Bob's authenticator app."""
    box = SecretBox.of(settings)
    with sessions.begin() as session:
        totp = pyotp.TOTP(begin_setup(session, cast.bob.id, box=box).secret)
        confirm_setup(session, cast.bob.id, totp.at(clock.now), box=box, now=clock.now)
    clock.advance(300)
    return totp


def send_code(browser: Browser, code: str) -> int:
    form = {"csrf_token": browser.csrf_token(CODE_PAGE), "code": code}
    return browser.client.post(CODE_PAGE, data=form).status_code


def test_the_password_alone_makes_no_browser_known_with_a_second_factor(
    nobody: Browser, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    assert nobody.sign_in(cast.bob.email).headers["Location"] == CODE_PAGE
    assert device_cookie(nobody) == ""
    assert send_code(nobody, "000000") == 401
    assert device_cookie(nobody) == ""
    assert send_code(nobody, totp.at(clock.now)) == 302
    assert device_cookie(nobody)


def test_knowing_the_password_does_not_block_the_codes_of_a_known_browser(
    remembered: Browser, nobody: Browser, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    nobody.sign_in(cast.bob.email)
    answers = [send_code(nobody, "000000") for _ in range(ACCOUNT_TRIES + 1)]
    assert answers == [401] * ACCOUNT_TRIES + [429]
    assert remembered.sign_in(cast.bob.email).headers["Location"] == CODE_PAGE
    assert send_code(remembered, totp.at(clock.now)) == 302


def test_codes_are_slow_to_guess_in_a_known_browser_too(
    remembered: Browser, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    remembered.sign_in(cast.bob.email)
    answers = [send_code(remembered, "000000") for _ in range(ACCOUNT_TRIES + 1)]
    assert answers == [401] * ACCOUNT_TRIES + [429]
    assert send_code(remembered, totp.at(clock.now)) == 429


def test_a_signed_in_user_is_not_blocked_by_the_address(bob: Browser, block: Block) -> None:
    bob.client.delete_cookie(COOKIE)
    block()
    form: dict[str, object] = {"current": PASSWORD, "new": NEW, "repeated": NEW}
    assert bob.post("/settings/password", form).status_code == 302


def test_an_api_token_that_changes_the_password_gets_no_cookie(app: Flask, cast: Cast) -> None:
    client = app.test_client()
    right = (cast.bob.email, PASSWORD)
    made = client.post("/api/v1/tokens", json={"name": "x"}, auth=right)
    assert made.json is not None
    headers = {"Authorization": f"Bearer {made.json['secret']}"}
    body = {"current": PASSWORD, "new": NEW}
    answer = client.post("/api/v1/me/password", json=body, headers=headers)
    assert answer.status_code == 204
    assert set_cookies(made) == set_cookies(answer) == []
