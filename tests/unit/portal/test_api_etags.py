"""ETags: no lost updates, and 304 for an object that the client has."""

from core.db import SessionFactory
from tenants.models import Appliance
from tests.cast import FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

RULE = {
    "name": "Hot",
    "measurement": "gpu",
    "field": "temperature_celsius",
    "warning_threshold": 85,
}


def change(browser: Browser, method: str, path: str, etag: str, json: object = None) -> int:
    headers = {"X-CSRFToken": browser.token(), "If-Match": etag}
    return browser.client.open(path, method=method, json=json, headers=headers).status_code


def test_a_change_with_the_current_etag_succeeds(alice: Browser, world: World) -> None:
    path = f"/api/v1/rules/{world.ids['rule_id']}"
    etag = alice.get(path).headers["ETag"]
    assert change(alice, "PATCH", path, etag, RULE) == 200
    assert alice.get(path).headers["ETag"] != etag


def test_a_change_returns_the_new_etag(alice: Browser, world: World) -> None:
    path = f"/api/v1/rules/{world.ids['rule_id']}"
    etag = alice.call("PATCH", path, RULE).headers["ETag"]
    assert alice.get(path).headers["ETag"] == etag
    assert change(alice, "DELETE", path, etag) == 204


def test_a_change_with_an_outdated_etag_is_refused(
    alice: Browser, bob: Browser, world: World
) -> None:
    path = f"/api/v1/rules/{world.ids['rule_id']}"
    etag = alice.get(path).headers["ETag"]
    bob.call("PATCH", path, {**RULE, "name": "Bob's"})
    assert change(alice, "PATCH", path, etag, RULE) == 412
    assert change(alice, "DELETE", path, etag) == 412
    assert alice.get(path).json["name"] == "Bob's"  # type: ignore[index] # JSON


def test_a_change_without_if_match_succeeds(alice: Browser, world: World) -> None:
    path = f"/api/v1/appliances/{world.ids['appliance_id']}"
    assert alice.call("PATCH", path, {"site": "Oslo"}).status_code == 200
    assert change(alice, "PATCH", path, "*", {"site": "Bergen"}) == 200


def test_a_heartbeat_does_not_change_the_etag(
    alice: Browser, world: World, sessions: SessionFactory, clock: FrozenClock
) -> None:
    path = f"/api/v1/appliances/{world.ids['appliance_id']}"
    etag = alice.get(path).headers["ETag"]
    with sessions.begin() as session:
        session.get_one(Appliance, world.ids["appliance_id"]).last_seen_at = clock.advance(30)
    assert change(alice, "PATCH", path, etag, {"site": "Oslo"}) == 200
    assert change(alice, "PATCH", path, etag, {"site": "Bergen"}) == 412


def test_another_tenants_object_is_404_whatever_the_etag(charlie: Browser, world: World) -> None:
    path = f"/api/v1/rules/{world.ids['rule_id']}"
    assert change(charlie, "PATCH", path, '"x"', RULE) == 404


def test_an_unchanged_object_is_answered_with_304(alice: Browser, world: World) -> None:
    path = f"/api/v1/invitations/{world.ids['invitation_id']}"
    etag = alice.get(path).headers["ETag"]
    answer = alice.get(path, headers={"If-None-Match": etag})
    assert answer.status_code == 304
    assert answer.data == b""
    assert answer.headers["ETag"] == etag


def test_an_object_with_volatile_fields_is_always_sent_in_full(
    alice: Browser, world: World
) -> None:
    path = f"/api/v1/appliances/{world.ids['appliance_id']}"
    etag = alice.get(path).headers["ETag"]
    assert alice.get(path, headers={"If-None-Match": etag}).status_code == 200
