"""The user's browser sessions, in the settings and in the API."""

import re

import pytest
from flask import Flask

from portal.auth.devices import device_name
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn, portal_in

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def test_the_settings_list_the_users_sessions(alice: Browser, sign_in: SignIn, cast: Cast) -> None:
    sign_in(cast.alice)
    text = alice.get("/settings").text
    assert text.count("/settings/sessions/") == 2
    assert ">current<" in text
    assert "127.0.0.1" in text


def test_another_browser_is_signed_out(alice: Browser, sign_in: SignIn, cast: Cast) -> None:
    lost = sign_in(cast.alice)
    (action,) = re.findall(r'"(/settings/sessions/[^"]+/end)"', alice.get("/settings").text)
    alice.post(action)
    assert lost.get("/jobs").status_code == 302
    assert alice.get("/jobs").status_code == 200


def test_every_browser_is_signed_out(alice: Browser, sign_in: SignIn, cast: Cast) -> None:
    lost = sign_in(cast.alice)
    assert alice.post("/settings/sessions/end-all").headers["Location"] == "/login"
    assert lost.get("/jobs").status_code == 302
    assert alice.get("/jobs").status_code == 302
    assert "alert-success" in alice.get("/login").text


def test_the_api_lists_the_users_sessions(
    app: Flask, alice: Browser, bob: Browser, cast: Cast, clock: FrozenClock
) -> None:
    assert bob.get("/jobs").status_code == 200
    clock.advance(90)
    assert alice.get("/jobs").status_code == 200
    portal_in(app).sightings.write()
    listed = alice.get("/api/v1/sessions").json
    assert listed is not None
    (item,) = listed["items"]
    assert item["is_current"] is True
    assert item["address"] == "127.0.0.1"
    assert item["last_seen_at"] == clock.now.isoformat()
    assert cast.bob.email not in str(listed)


def test_the_api_ends_sessions(alice: Browser, sign_in: SignIn, cast: Cast) -> None:
    lost = sign_in(cast.alice)
    items = alice.get("/api/v1/sessions").json["items"]  # type: ignore[index] # JSON
    (other,) = [item["id"] for item in items if not item["is_current"]]
    assert alice.call("DELETE", f"/api/v1/sessions/{other}").status_code == 204
    assert lost.get("/jobs").status_code == 302
    assert alice.call("DELETE", "/api/v1/sessions").status_code == 204
    assert alice.get("/jobs").status_code == 302


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (FIREFOX, "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Safari/604.1", "Safari on iPhone"),
        ("curl/8.5.0", "curl"),
        ("", "Unknown browser"),
    ],
)
def test_a_user_agent_is_shown_as_browser_and_system(user_agent: str, name: str) -> None:
    assert device_name(user_agent) == name
