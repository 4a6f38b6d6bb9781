"""Users who send many messages: tests of receivers, invitations, and messages sent again."""

from dataclasses import replace

import pytest

from core.settings import ServerSettings
from tests.cast import Cast, FrozenClock
from tests.e2e.inboxes import MailServer
from tests.unit.portal.conftest import Browser

pytestmark = pytest.mark.usefixtures("mail")
LIMIT = 3


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    return replace(settings, max_messages_per_user_per_hour=LIMIT)


def receiver_of(browser: Browser) -> str:
    body = {"name": "ops", "kind": "email", "target": "outsider@example.com"}
    return str(browser.call("POST", "/api/v1/receivers", json=body).get_json()["id"])


def test_tests_of_a_receiver_are_limited_in_forms(bob: Browser) -> None:
    path = f"/receivers/{receiver_of(bob)}/test"
    for _ in range(LIMIT):
        assert bob.post(path).status_code == 302
    assert bob.post(path).status_code == 302
    page = bob.get("/receivers").text
    assert f"You have sent {LIMIT} messages within an hour" in page
    assert page.count("Test of ops") == LIMIT


def test_invitations_share_the_limit_and_refused_ones_leave_nothing(
    alice: Browser, mail: MailServer, clock: FrozenClock
) -> None:
    def invite(number: int) -> int:
        body = {"email": f"user-{number}@example.com", "role": "member"}
        return alice.call("POST", "/api/v1/invitations", json=body).status_code

    assert [invite(number) for number in range(LIMIT)] == [201] * LIMIT
    refused = alice.call(
        "POST", "/api/v1/invitations", json={"email": "more@example.com", "role": "member"}
    )
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3600")
    assert refused.get_json()["code"] == "overloaded"
    form = alice.post("/users", {"email": "more@example.com", "role": "member"})
    assert form.status_code == 429
    assert f"You have sent {LIMIT} messages within an hour" in form.text
    assert len(mail.messages) == LIMIT
    assert alice.get("/api/v1/invitations").get_json()["total"] == LIMIT
    clock.advance(3600)
    assert invite(LIMIT) == 201


def test_the_usage_page_and_the_api_show_the_budgets(
    alice: Browser, olivia: Browser, cast: Cast
) -> None:
    alice.call("POST", "/api/v1/invitations", json={"email": "a@example.com", "role": "member"})
    page = alice.get("/usage").text
    assert "Your messages this hour" in page
    tenant_id = cast.acme.id
    for browser, own in ((alice, 1), (olivia, 0)):
        uses = browser.call("GET", f"/api/v1/tenants/{tenant_id}/usage").get_json()["uses"]
        usage = {use["name"]: (use["used"], use["most"]) for use in uses}
        assert usage["Messages this hour"] == (1, 500)
        assert usage["Alert messages this hour"] == (0, 3000)
        assert ("Your messages this hour" in usage) is bool(own)
