"""The notification policy in the browser and in the API."""

import pytest

from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

POLICY = """
receivers: [ops]
group_by: [rule]
routes:
  - matchers: [severity=critical]
    receivers: [ops]
    repeat_interval: 1h
"""


def receiver_name(browser: Browser) -> str:
    answer = browser.get("/api/v1/receivers").json
    assert answer is not None
    return str(answer["items"][0]["name"])


@pytest.mark.usefixtures("world")
def test_a_policy_is_saved_shown_and_previewed(bob: Browser) -> None:
    name = receiver_name(bob)
    rules = "[{source_matchers: [rule=Fatal XID], target_matchers: [severity=warning]}]"
    form: dict[str, object] = {"route": POLICY.replace("ops", name), "inhibit_rules": rules}
    saved = bob.post("/notification-policy", form)
    assert saved.status_code == 302
    answer = bob.get("/api/v1/notification-policy").json
    assert answer is not None
    assert answer["route"]["receivers"] == [name]
    assert answer["route"]["routes"] == [
        {"matchers": ["severity=critical"], "repeat_interval": "1h"}
    ]
    assert answer["inhibit_rules"] == [
        {"source_matchers": ["rule=Fatal XID"], "target_matchers": ["severity=warning"]}
    ]
    shown = bob.get("/notification-policy?labels=severity=critical, rule=x").text
    assert "repeat every 1h" in shown
    assert shown.index('id="destinations"') < shown.rindex(name)


def test_an_invalid_policy_is_shown_with_its_error(bob: Browser) -> None:
    for route in (
        "receivers: [Nobody]",
        "routes: [",
        "- a",
        "group_wait: soon",
        "a: {",
    ):
        answer = bob.post("/notification-policy", {"route": route})
        assert answer.status_code == 422
        assert "vd-error" in answer.text
        current = bob.get("/api/v1/notification-policy").json
        assert current is not None
        assert current["route"] == {}


NIGHTS = """
- name: nights
  time_intervals:
    - times: [{start_time: 22:00, end_time: 24:00}]
      location: Europe/Oslo
"""


@pytest.mark.usefixtures("world")
def test_time_intervals_are_saved_with_the_routes_that_use_them(bob: Browser) -> None:
    route = f"receivers: [{receiver_name(bob)}]\nmute_time_intervals: [nights]"
    form: dict[str, object] = {"route": route, "time_intervals": NIGHTS}
    assert bob.post("/notification-policy", form).status_code == 302
    answer = bob.get("/api/v1/notification-policy").get_json()
    assert answer["route"]["mute_time_intervals"] == ["nights"]
    times = {"start_time": "22:00", "end_time": "24:00"}
    entry = {"times": [times], "location": "Europe/Oslo"}
    assert answer["time_intervals"] == [{"name": "nights", "time_intervals": [entry]}]
    assert "muted: nights" in bob.get("/notification-policy").text
    changed = answer | {"time_intervals": []}
    refused = bob.call("PUT", "/api/v1/notification-policy", json=changed)
    assert refused.status_code == 422
    assert list(refused.get_json()["errors"]) == ["route.mute_time_intervals"]


def test_an_invalid_time_interval_is_shown_with_its_error(bob: Browser) -> None:
    form: dict[str, object] = {"route": "", "time_intervals": NIGHTS.replace("Oslo", "Olso")}
    answer = bob.post("/notification-policy", form)
    assert answer.status_code == 422
    assert "Europe/Olso" in answer.text
    assert "vd-error" in answer.text


def test_an_alert_is_acknowledged_once(bob: Browser, world: World) -> None:
    alert_id = world.ids["alert_id"]
    assert "Acknowledge" in bob.get(f"/alerts/{alert_id}").text
    assert bob.post(f"/alerts/{alert_id}/acknowledge", {}).status_code == 302
    shown = bob.get(f"/alerts/{alert_id}").text
    assert "Acknowledged" in shown
    assert f"/alerts/{alert_id}/acknowledge" not in shown
