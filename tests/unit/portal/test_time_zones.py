"""Times on pages: in the zone that the user chose, else in that of the browser, always named."""

import re
from datetime import UTC, datetime

from flask import Flask
from sqlalchemy import select

from alerting.models import Silence
from core.db import SessionFactory
from portal.time_zone import ZONE_COOKIE
from tenants.models import User
from tenants.users.time_zones import zone_name_of
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn, portal_in
from tests.unit.portal.world_parts import add_appliance, run_job


def travel(browser: Browser, zone: str) -> None:
    browser.client.set_cookie(ZONE_COOKIE, zone)


def titles(browser: Browser) -> list[str]:
    """Return the absolute times on the settings page, of which one is that of now."""
    return re.findall(r'<time datetime="[^"]*" title="([^"]*)"', browser.get("/settings").text)


def test_times_are_in_the_zone_of_the_browser_until_the_user_chooses_another(
    alice: Browser,
) -> None:
    assert "2026-03-02 12:00:00 UTC" in titles(alice)
    travel(alice, "Asia/Calcutta")
    assert "2026-03-02 17:30:00 IST" in titles(alice)
    assert "data-follows-browser" in alice.get("/settings").text

    answer = alice.post("/settings/time-zone", {"time_zone": "America/New_York"})
    assert answer.status_code == 302
    assert "2026-03-02 07:00:00 EST" in titles(alice)
    page = alice.get("/settings").text
    assert 'data-zone="America/New_York"' in page
    assert "data-follows-browser" not in page


def test_a_zone_that_does_not_exist_is_refused(alice: Browser) -> None:
    assert alice.post("/settings/time-zone", {"time_zone": "Mars/Olympus"}).status_code == 422
    answer = alice.call("PATCH", "/api/v1/me", {"time_zone": "Mars/Olympus"})
    assert answer.status_code == 422
    assert "time_zone" in str(answer.json)
    travel(alice, "Mars/Olympus")
    assert 'data-zone="UTC"' in alice.get("/settings").text


def test_the_api_returns_the_chosen_zone_and_the_one_that_is_shown(
    app: Flask, alice: Browser, clock: FrozenClock
) -> None:
    travel(alice, "Asia/Kolkata")
    clock.advance(120)
    alice.get("/settings")
    portal_in(app).sightings.write()
    before = alice.call("GET", "/api/v1/me").json
    after = alice.call("PATCH", "/api/v1/me", {"time_zone": "Europe/Oslo"}).json
    assert before is not None
    assert after is not None
    assert (before["time_zone"], before["shown_time_zone"]) == ("", "Asia/Kolkata")
    assert (after["time_zone"], after["shown_time_zone"]) == ("Europe/Oslo", "Europe/Oslo")


def test_the_zone_of_the_browser_is_stored_for_emails(
    app: Flask, alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    alice.get("/settings")
    travel(alice, "Asia/Kolkata")
    clock.advance(120)
    alice.get("/settings")
    portal_in(app).sightings.write()
    with sessions() as session:
        assert zone_name_of(session.get_one(User, cast.alice.id)) == "Asia/Kolkata"


def test_days_of_a_list_begin_and_end_in_the_users_zone(
    alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    # 01:30 on 2 March in Kolkata.
    submitted_at = datetime(2026, 3, 1, 20, tzinfo=UTC)
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=submitted_at)
        job_id = run_job(session, cast, now=submitted_at).id
    clock.now = datetime(2026, 3, 3, tzinfo=UTC)
    second_of_march = "/jobs?since=2026-03-02&until=2026-03-02"
    assert job_id not in alice.get(second_of_march).text
    travel(alice, "Asia/Kolkata")
    page = alice.get(second_of_march).text
    assert job_id in page
    assert "From <small>Asia/Kolkata</small>" in page


def test_a_day_that_is_none_is_refused(alice: Browser) -> None:
    assert alice.get("/jobs?since=soon").status_code == 422


def test_a_silence_starts_in_the_users_zone(alice: Browser, sessions: SessionFactory) -> None:
    travel(alice, "America/New_York")
    form = {
        "matchers": "rule=hot",
        "starts_at": "2026-03-08T12:00",
        "duration": "2h",
        "comment": "",
    }
    assert alice.post("/silences", form).status_code == 302
    with sessions() as session:
        (silence,) = session.scalars(select(Silence))
    # New York is four hours behind from the day on which the clocks change.
    assert silence.starts_at == datetime(2026, 3, 8, 16, tzinfo=UTC)


def test_in_a_support_session_times_are_in_the_zone_of_the_operator(
    sign_in: SignIn, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.get_one(User, cast.bob.id).time_zone = "Asia/Kolkata"
        session.get_one(User, cast.olivia.id).time_zone = "Europe/Oslo"
    olivia = sign_in(cast.olivia)
    path = f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support"
    assert olivia.post(path, {"reason": "Looks into ticket 4711"}).status_code == 302
    page = olivia.get("/jobs").text
    assert "Support session" in page
    assert 'data-zone="Europe/Oslo"' in page
