"""Rules, receivers and alerts in the browser."""

import re

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World, make_world
from timeseries.points import Point
from timeseries.store import Store, write

FORM: dict[str, object] = {
    "name": "Memory low",
    "metric": "memory.available_bytes",
    "aggregate": "min",
    "window": "2m",
    "group_by": "appliance",
    "filters": "mount=/, /data",
    "comparison": "<",
    "warning_threshold": "8 GiB",
    "critical_threshold": "4 GiB",
    "warning_reset": "10 GiB",
    "critical_reset": "",
    "for_": "1m 30s",
    "keep_firing": "0",
    "no_data": "alert",
    "is_enabled": "1",
}
GIB = 1024.0**3


@pytest.fixture
def world(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> World:
    with sessions.begin() as session:
        return make_world(session, cast, now=clock.now)


def rule_named(browser: Browser, name: str) -> dict[str, object]:
    answer = browser.get("/api/v1/rules").json
    assert answer is not None
    found: dict[str, object] = next(rule for rule in answer["items"] if rule["name"] == name)
    return found


def test_a_rule_is_saved_as_typed_and_shown_as_saved(bob: Browser, world: World) -> None:
    receiver = world.ids["receiver_id"]
    answer = bob.post("/rules/new", {**FORM, "receivers": [receiver]})
    assert answer.status_code == 302
    rule = rule_named(bob, "Memory low")
    assert rule["measurement"] == "memory"
    assert rule["field"] == "available_bytes"
    assert rule["window_seconds"] == 120.0
    assert rule["filters"] == {"mount": ["/", "/data"]}
    assert rule["warning_threshold"] == 8 * GIB
    assert rule["critical_reset"] is None
    assert rule["for_seconds"] == 90.0
    assert rule["no_data"] == "alert"
    assert rule["receiver_ids"] == [receiver]
    text = bob.get(f"/rules/{rule['id']}").text
    for shown in ("memory.available_bytes", "2m", "mount=/, /data", "1m 30s"):
        assert shown in text
    assert re.search(r'id="receiver-1"[^>]*checked', text)


@pytest.mark.usefixtures("world")
def test_saving_a_rule_unchanged_changes_nothing(bob: Browser) -> None:
    bob.post("/rules/new", FORM)
    before = rule_named(bob, "Memory low")
    page = bob.get(f"/rules/{before['id']}").text
    typed = {
        name: re.search(rf'name="{name}"[^>]* value="([^"]*)"', page)
        for name in ("warning_threshold", "critical_threshold", "warning_reset", "for_", "window")
    }
    again = {name: found[1] for name, found in typed.items() if found}
    assert len(again) == len(typed)
    assert bob.post(f"/rules/{before['id']}", {**FORM, **again}).status_code == 302
    assert rule_named(bob, "Memory low") == before


@pytest.mark.usefixtures("cast")
def test_a_faulty_rule_says_what_is_wrong_beside_the_fields(bob: Browser) -> None:
    wrong = {**FORM, "metric": "temperature", "window": "soon", "warning_threshold": "hot"}
    answer = bob.post("/rules/new", wrong)
    assert answer.status_code == 422
    assert "&#39;temperature&#39; is not a metric." in answer.text
    assert "&#39;soon&#39; is not a duration. Write it like 30s, 5m or 1h." in answer.text
    assert "&#39;hot&#39; is not a number." in answer.text
    assert 'value="soon"' in answer.text


@pytest.mark.usefixtures("cast")
def test_faults_that_the_service_finds_stand_beside_the_fields(bob: Browser) -> None:
    answer = bob.post("/rules/new", {**FORM, "warning_threshold": "", "critical_threshold": ""})
    assert answer.status_code == 422
    assert 'class="vd-error"' in answer.text


def test_a_rule_is_tried_on_real_samples_without_being_saved(
    bob: Browser, world: World, cast: Cast, store: Store, clock: FrozenClock
) -> None:
    point = Point("memory", {}, {"available_bytes": 3 * GIB}, to_ns(clock.now))
    write(store, [point], identity={"tenant": cast.acme.id, "appliance": world.ids["appliance_id"]})
    clock.advance(5)
    answer = bob.post("/rules/new", {**FORM, "filters": "", "action": "try"})
    assert answer.status_code == 200
    assert "What it would say now" in answer.text
    assert "3 GiB" in answer.text
    assert ">critical<" in answer.text
    assert "dgx-01" in answer.text
    rules = bob.get("/api/v1/rules").json
    assert rules is not None
    assert [rule["name"] for rule in rules["items"]] == ["GPU too hot"]


def test_a_rule_is_switched_off_and_on_in_the_list(bob: Browser, world: World) -> None:
    path = f"/rules/{world.ids['rule_id']}/enabled"
    bob.post(path, {"is_enabled": "0"})
    assert rule_named(bob, "GPU too hot")["is_enabled"] is False
    bob.post(path, {"is_enabled": "1"})
    assert rule_named(bob, "GPU too hot")["is_enabled"] is True


def test_an_alert_is_shown_with_its_value_unit_and_appliance(bob: Browser, world: World) -> None:
    text = bob.get("/alerts").text
    assert "91.5 °C" in text
    assert "critical" in text
    assert "dgx-01" in text
    assert "91.5 °C" in bob.get(f"/alerts/{world.ids['alert_id']}").text
    assert "No alerts" in bob.get("/alerts?state=resolved").text


@pytest.mark.usefixtures("cast")
def test_the_key_of_a_webhook_is_shown_once(bob: Browser) -> None:
    form: dict[str, object] = {
        "name": "Pager",
        "kind": "webhook",
        "target": "https://hooks.acme.example/x",
    }
    made = bob.post("/receivers", form)
    assert "shown only now" in made.text
    again = bob.get("/receivers").text
    assert "hooks.acme.example" in again
    assert "shown only now" not in again


@pytest.mark.usefixtures("cast")
def test_a_webhook_into_the_portals_own_network_is_refused_by_page_and_api(bob: Browser) -> None:
    asked: dict[str, object] = {"name": "x", "kind": "webhook", "target": "http://127.0.0.1:6379/"}
    page = bob.post("/receivers", asked)
    assert page.status_code == 422
    assert "leads into a private network" in page.text
    answer = bob.call("POST", "/api/v1/receivers", json=asked)
    assert answer.status_code == 422


def test_a_receiver_that_is_no_address_is_refused(bob: Browser) -> None:
    form: dict[str, object] = {"name": "Pager", "kind": "email", "target": "nobody"}
    answer = bob.post("/receivers", form)
    assert answer.status_code == 422
    assert 'class="vd-error"' in answer.text
    assert 'value="nobody"' in answer.text
