"""The second factor in the browser and for programs: set up, asked for, kept, turned off."""

import re
from typing import Any
from xml.etree import ElementTree as ET

import pyotp
import pytest
from flask import Flask
from sqlalchemy import select

from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings
from tenants.models import AuditEntry, User
from tenants.users.second_factor import begin_setup, confirm_setup
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.unit.portal.conftest import Browser

_SECRET = re.compile(r'value="([A-Z2-7]{32})"')
_CODE = re.compile(r"<li[^>]*>([a-z2-9]{4}(?:-[a-z2-9]{4}){3})</li>")
CHALLENGE = "/login/second-factor"
PAGE = "/settings/second-factor"


class Phone:
    """Bob's authenticator app; it waits a step before each code, as each is good once."""

    def __init__(self, secret: str, clock: FrozenClock) -> None:
        self._totp = pyotp.TOTP(secret)
        self._clock = clock

    def code(self) -> str:
        return self._totp.at(self._clock.now)

    def next_code(self) -> str:
        self._clock.advance(30)
        return self.code()


@pytest.fixture
def phone(
    sessions: SessionFactory, settings: ServerSettings, cast: Cast, clock: FrozenClock
) -> Phone:
    """Bob's phone, after he has set it up."""
    box = SecretBox.of(settings)
    with sessions.begin() as session:
        phone = Phone(begin_setup(session, cast.bob.id, box=box).secret, clock)
        confirm_setup(session, cast.bob.id, phone.code(), box=box, now=clock.now)
    return phone


@pytest.fixture
def half_in(nobody: Browser, cast: Cast, phone: Phone) -> Browser:
    """Bob's browser after the right password."""
    assert phone
    answer = nobody.sign_in(cast.bob.email, query="?next=/jobs?state%3Drunning")
    assert answer.headers["Location"] == CHALLENGE
    return nobody


def send_code(browser: Browser, code: str) -> Any:  # noqa: ANN401 - a test response
    token = browser.csrf_token(CHALLENGE)
    return browser.client.post(CHALLENGE, data={"csrf_token": token, "code": code})


def test_setting_up_shows_the_key_and_turns_on_by_its_code(
    bob: Browser, cast: Cast, clock: FrozenClock, sessions: SessionFactory
) -> None:
    assert "Set up" in bob.get("/settings").text
    bob.post(f"{PAGE}/begin")
    secret = _SECRET.search(bob.get(PAGE).text)
    assert secret is not None
    answer = bob.post(f"{PAGE}/confirm", {"code": pyotp.TOTP(secret[1]).at(clock.now)})
    assert len(_CODE.findall(answer.text)) == 10
    assert "Enabled " in bob.get("/settings").text
    assert secret[1] not in bob.get(PAGE).text
    assert not _CODE.findall(bob.get(PAGE).text)
    with sessions() as session:
        assert session.get_one(User, cast.bob.id).totp_confirmed_at == clock.now


def test_the_qr_code_is_an_image_of_its_own_that_the_policy_lets_in(bob: Browser) -> None:
    assert bob.get(f"{PAGE}/qr.svg").status_code == 404
    bob.post(f"{PAGE}/begin")
    answer = bob.get(f"{PAGE}/qr.svg")
    assert answer.mimetype == "image/svg+xml"
    assert answer.headers["Cache-Control"] == "private, no-store"
    drawing = ET.fromstring(answer.text)  # noqa: S314 - our own
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert f'src="{PAGE}/qr.svg"' in bob.get(PAGE).text
    assert "style=" not in answer.text


def test_a_wrong_first_code_is_reported_and_the_key_remains(bob: Browser) -> None:
    bob.post(f"{PAGE}/begin")
    key = _SECRET.search(bob.get(PAGE).text)
    answer = bob.post(f"{PAGE}/confirm", {"code": "000000"})
    assert answer.status_code == 422
    assert "This code is wrong" in answer.text
    assert key is not None
    assert key[1] in answer.text


def test_the_right_password_alone_opens_nothing(half_in: Browser) -> None:
    for path in ("/jobs", "/settings", PAGE, "/api/v1/me"):
        assert half_in.get(path).status_code in {302, 401}, path


def test_password_and_code_sign_in_and_lead_to_the_page(half_in: Browser, phone: Phone) -> None:
    answer = send_code(half_in, phone.next_code())
    assert answer.headers["Location"] == "/jobs?state=running"
    assert half_in.get("/jobs").status_code == 200


def test_a_wrong_code_is_reported_and_another_may_be_entered(
    half_in: Browser, phone: Phone
) -> None:
    answer = send_code(half_in, "000000")
    assert answer.status_code == 401
    assert "wrong or was already used" in answer.text
    assert send_code(half_in, phone.next_code()).status_code == 302


def test_a_code_signs_in_one_browser_only(
    app: Flask, half_in: Browser, cast: Cast, phone: Phone
) -> None:
    code = phone.next_code()
    thief = Browser(app.test_client())
    thief.sign_in(cast.bob.email)
    assert send_code(half_in, code).status_code == 302
    assert send_code(thief, code).status_code == 401


def test_guessing_codes_is_made_to_wait_even_with_the_right_password(
    half_in: Browser, cast: Cast, phone: Phone
) -> None:
    for _ in range(5):
        assert send_code(half_in, "000000").status_code == 401
        half_in.sign_in(cast.bob.email)
    answer = send_code(half_in, phone.next_code())
    assert answer.status_code == 429
    assert "Too many failed attempts" in answer.text


def test_the_password_is_good_for_five_minutes(
    half_in: Browser, phone: Phone, clock: FrozenClock
) -> None:
    token = half_in.csrf_token(CHALLENGE)
    clock.advance(300)
    data = {"csrf_token": token, "code": phone.code()}
    assert half_in.client.post(CHALLENGE, data=data).headers["Location"] == "/login"
    assert "timed out" in half_in.get("/login").text
    assert half_in.get("/jobs").status_code == 302


def test_without_a_password_before_it_the_code_form_sends_to_the_login(nobody: Browser) -> None:
    assert nobody.get(CHALLENGE).headers["Location"] == "/login"


def test_a_locked_account_stays_out_with_the_right_code(
    half_in: Browser, phone: Phone, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.get_one(User, cast.bob.id).is_active = False
    assert send_code(half_in, phone.next_code()).status_code == 401


def test_a_recovery_code_signs_in_once(
    app: Flask, bob: Browser, cast: Cast, clock: FrozenClock, nobody: Browser
) -> None:
    bob.post(f"{PAGE}/begin")
    key = _SECRET.search(bob.get(PAGE).text)
    assert key is not None
    page = bob.post(f"{PAGE}/confirm", {"code": pyotp.TOTP(key[1]).at(clock.now)}).text
    code = _CODE.findall(page)[0]
    nobody.sign_in(cast.bob.email)
    assert send_code(nobody, code).status_code == 302
    assert nobody.get("/jobs").status_code == 200
    another = Browser(app.test_client())
    another.sign_in(cast.bob.email)
    assert another.get("/jobs").status_code == 302
    assert "<dd>9" in bob.get(PAGE).text


def test_the_codes_come_as_a_text_file_while_they_are_shown(
    half_in: Browser, phone: Phone, charlie: Browser
) -> None:
    send_code(half_in, phone.next_code())
    page = half_in.post(f"{PAGE}/codes", {"renew-proof": PASSWORD}).text
    codes: dict[str, object] = {"codes": _CODE.findall(page)}
    answer = half_in.post(f"{PAGE}/codes.txt", codes)
    assert answer.mimetype == "text/plain"
    assert "vedette-recovery-codes.txt" in answer.headers["Content-Disposition"]
    assert all(code in answer.text.splitlines() for code in _CODE.findall(page))
    assert charlie.post(f"{PAGE}/codes.txt", codes).status_code == 404


def test_new_codes_and_turning_off_need_the_password(half_in: Browser, phone: Phone) -> None:
    send_code(half_in, phone.next_code())
    for path, name in ((f"{PAGE}/codes", "renew-proof"), (f"{PAGE}/off", "off-proof")):
        answer = half_in.post(path, {name: "wrong"})
        assert answer.status_code == 422
        assert "not your password" in answer.text
    half_in.post(f"{PAGE}/off", {"off-proof": PASSWORD})
    assert "alert-success" in half_in.get(PAGE).text
    assert "Set up" in half_in.get(PAGE).text


def test_guessing_the_password_at_an_open_browser_is_made_to_wait(
    half_in: Browser, phone: Phone
) -> None:
    send_code(half_in, phone.next_code())
    for _ in range(5):
        half_in.post(f"{PAGE}/off", {"off-proof": "wrong"})
    answer = half_in.post(f"{PAGE}/off", {"off-proof": PASSWORD})
    assert answer.status_code == 429
    assert "Too many failed attempts" in answer.text


@pytest.mark.usefixtures("phone")
def test_alice_resets_bobs_second_factor(alice: Browser, cast: Cast, nobody: Browser) -> None:
    assert "/second-factor/reset" in alice.get(f"/users/{cast.bob.id}").text
    alice.post(f"/users/{cast.bob.id}/second-factor/reset")
    assert "alert-success" in alice.get("/users").text
    assert nobody.sign_in(cast.bob.email).headers["Location"] == "/"


def test_the_api_resets_it_too(alice: Browser, half_in: Browser, cast: Cast) -> None:
    path = f"/api/v1/users/{cast.bob.id}/reset-second-factor"
    assert alice.call("POST", path).status_code == 200
    assert half_in.get("/jobs").status_code == 302


def test_a_program_needs_the_code_beside_the_password(app: Flask, cast: Cast, phone: Phone) -> None:
    def buy(**headers: str) -> Any:  # noqa: ANN401 - a test response
        return app.test_client().post(
            "/api/v1/tokens", json={"name": "x"}, auth=(cast.bob.email, PASSWORD), headers=headers
        )

    assert buy().json["code"] == "second_factor_required"
    assert buy().status_code == 401
    wrong = buy(**{"X-Vedette-OTP": "000000"})
    assert (wrong.status_code, wrong.json["code"]) == (401, "second_factor_wrong")
    code = phone.next_code()
    assert buy(**{"X-Vedette-OTP": code}).status_code == 201
    assert buy(**{"X-Vedette-OTP": code}).status_code == 401


def test_the_code_is_not_asked_for_before_the_password_is_right(
    app: Flask, cast: Cast, phone: Phone
) -> None:
    assert phone
    answer = app.test_client().post(
        "/api/v1/tokens", json={"name": "x"}, auth=(cast.bob.email, "wrong")
    )
    assert answer.json is not None
    assert answer.json["code"] == "unauthenticated"


def test_an_api_token_changes_nobodys_second_factor(
    app: Flask,
    cast: Cast,
    make_token: Any,  # noqa: ANN401 - a fixture
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.bob)}"}
    pages = [f"{PAGE}/{path}" for path in ("begin", "confirm", "codes", "off", "codes.txt")]
    for path in (*pages, "/api/v1/me/second-factor/begin"):
        answer = app.test_client().post(path, headers=headers)
        assert answer.status_code == 403, path


def test_the_api_sets_up_and_turns_off_as_the_pages_do(bob: Browser, clock: FrozenClock) -> None:
    base = "/api/v1/me/second-factor"
    setup = bob.call("POST", f"{base}/begin").json
    assert setup is not None
    code = pyotp.TOTP(setup["secret"]).at(clock.now)
    made = bob.call("POST", f"{base}/confirm", {"code": code}).json
    assert made is not None
    assert len(made["recovery_codes"]) == 10
    assert bob.get(base).json == {"on_since": clock.now.isoformat(), "recovery_codes_left": 10}
    assert bob.call("POST", f"{base}/recovery-codes", {"proof": PASSWORD}).status_code == 200
    assert bob.call("POST", f"{base}/turn-off", {"proof": "wrong"}).status_code == 422
    assert bob.call("POST", f"{base}/turn-off", {"proof": PASSWORD}).status_code == 204
    assert bob.get(base).json == {"on_since": None, "recovery_codes_left": 0}


def test_the_audit_log_has_the_changes_and_no_secret(
    bob: Browser, cast: Cast, clock: FrozenClock, sessions: SessionFactory
) -> None:
    bob.post(f"{PAGE}/begin")
    key = _SECRET.search(bob.get(PAGE).text)
    assert key is not None
    bob.post(f"{PAGE}/confirm", {"code": pyotp.TOTP(key[1]).at(clock.now)})
    bob.post(f"{PAGE}/off", {"off-proof": PASSWORD})
    with sessions() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.number)).all()
    told = [entry for entry in entries if entry.target_id == cast.bob.id]
    actions = [entry.action for entry in told if "second_factor" in entry.action]
    assert actions == ["user.second_factor_on", "user.second_factor_off"]
    assert {entry.actor_name for entry in told} == {cast.bob.email}
    assert {entry.chain for entry in told} == {cast.acme.id}
    assert key[1] not in str([(entry.before, entry.after) for entry in told])
