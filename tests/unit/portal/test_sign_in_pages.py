"""Login, logout, CSRF, and headers of every response."""

import pytest
from flask import Flask

from portal.auth.guard import safe_next
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.unit.portal.conftest import Browser, MakeToken, SignIn


def test_alice_signs_in_and_continues_at_the_target(nobody: Browser, cast: Cast) -> None:
    turned_away = nobody.get("/jobs?state=running")
    assert turned_away.headers["Location"] == "/login?next=/jobs?state%3Drunning"
    answer = nobody.sign_in(cast.alice.email, query="?next=/jobs?state%3Drunning")
    assert answer.headers["Location"] == "/jobs?state=running"
    assert nobody.get("/jobs").status_code == 200


def test_a_wrong_password_is_reported_and_the_address_stays(nobody: Browser, cast: Cast) -> None:
    answer = nobody.sign_in(cast.alice.email, password="wrong")
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert f'value="{cast.alice.email}"' in answer.text
    assert nobody.get("/jobs").status_code == 302


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/jobs?state=failed", "/jobs?state=failed"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("/\t/evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("jobs", "/"),
        ("", "/"),
        (None, "/"),
    ],
)
def test_only_paths_of_this_portal_are_valid_targets(target: str | None, expected: str) -> None:
    assert safe_next(target) == expected


def test_signing_out_ends_the_session_on_the_server(alice: Browser) -> None:
    stolen = alice.client.get_cookie("vedette")
    assert stolen is not None
    assert alice.post("/logout").headers["Location"] == "/login"
    alice.client.set_cookie("vedette", stolen.value)
    assert alice.get("/jobs").status_code == 302


def test_a_session_ends_after_its_lifetime(alice: Browser, clock: FrozenClock) -> None:
    clock.advance(7 * 24 * 3600 + 1)
    assert alice.get("/jobs").status_code == 302


def test_the_session_cookie_is_http_only_and_same_site(nobody: Browser, cast: Cast) -> None:
    cookie = nobody.sign_in(cast.alice.email).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_a_form_without_its_csrf_token_is_refused(alice: Browser) -> None:
    answer = alice.client.post("/logout")
    assert answer.status_code == 400
    assert "Reload the page" in answer.text
    assert alice.get("/jobs").status_code == 200


def test_an_api_call_by_cookie_needs_the_csrf_header(alice: Browser) -> None:
    refused = alice.client.post("/api/v1/tokens", json={"name": "x"})
    assert refused.status_code == 400
    assert refused.json is not None
    assert refused.json["code"] == "csrf_failed"
    assert alice.call("POST", "/api/v1/tokens", {"name": "x"}).status_code == 201


def test_an_api_token_needs_no_csrf_header(app: Flask, cast: Cast, make_token: MakeToken) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    answer = app.test_client().post("/api/v1/tokens", json={"name": "x"}, headers=headers)
    assert answer.status_code == 201


def test_email_and_password_create_a_token(app: Flask, cast: Cast) -> None:
    made = app.test_client().post(
        "/api/v1/tokens", json={"name": "cli"}, auth=(cast.bob.email, PASSWORD)
    )
    assert made.json is not None
    headers = {"Authorization": f"Bearer {made.json['secret']}"}
    me = app.test_client().get("/api/v1/me", headers=headers).json
    assert me is not None
    assert me["email"] == cast.bob.email


def test_email_and_password_work_for_tokens_only(app: Flask, cast: Cast) -> None:
    answer = app.test_client().get("/api/v1/jobs", auth=(cast.bob.email, PASSWORD))
    assert answer.status_code == 401


def test_a_wrong_password_creates_no_token(app: Flask, cast: Cast) -> None:
    answer = app.test_client().post(
        "/api/v1/tokens", json={"name": "cli"}, auth=(cast.bob.email, "wrong")
    )
    assert answer.status_code == 401


def test_pages_run_no_inline_script(alice: Browser) -> None:
    policy = alice.get("/jobs").headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_every_response_forbids_sniffing_and_framing(nobody: Browser) -> None:
    for path in ("/login", "/health", "/static/vedette.css", "/api/v1/jobs"):
        with nobody.get(path) as answer:
            headers = answer.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"


def test_dash_calls_carry_the_csrf_token_from_their_cookie(alice: Browser) -> None:
    url = "/dashboards/_dash-update-component"
    assert alice.client.post(url, json={}).status_code == 400
    alice.get("/dashboards/")
    cookie = alice.client.get_cookie("_csrf_token", path="/dashboards/")
    assert cookie is not None
    assert not cookie.http_only
    answer = alice.client.post(url, json={}, headers={"X-CSRFToken": cookie.value})
    assert "csrf_failed" not in answer.text


def test_the_dashboards_have_the_portals_layout(alice: Browser) -> None:
    text = alice.get("/dashboards/").text
    assert 'id="sidebar"' in text
    assert "react-entry-point" in text


@pytest.mark.parametrize(
    ("who", "seen", "hidden"),
    [
        ("alice", "/users", "/tenants"),
        ("bob", "/jobs", "/users"),
        ("olivia", "/tenants", "/jobs/new"),
    ],
)
def test_the_navigation_shows_what_the_role_may_do(
    sign_in: SignIn, cast: Cast, who: str, seen: str, hidden: str
) -> None:
    text = sign_in(getattr(cast, who)).get("/jobs").text
    assert f'href="{seen}"' in text
    assert f'href="{hidden}"' not in text
