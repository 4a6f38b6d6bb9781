"""Rules and alerts in the browser."""

import json
import re

import pytest

from alerting.models import Alert, AlertAction
from alerting.rules.pack import offer_rules
from alerting.states import ActionKind, ActionState
from core.clock import to_ns
from core.db import SessionFactory, transaction
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World
from timeseries.points import Point
from timeseries.store import Store, write

FORM: dict[str, object] = {
    "name": "Disk low",
    "metric": "disk.free_bytes",
    "aggregate": "min",
    "window_seconds": "2m",
    "group_by": "appliance",
    "filters": "mount=/, /data",
    "comparison": "<",
    "warning_threshold": "8 GiB",
    "critical_threshold": "4 GiB",
    "warning_reset": "10 GiB",
    "critical_reset": "",
    "for_seconds": "1m 30s",
    "keep_firing_seconds": "0",
    "no_data": "alert",
    "is_enabled": "1",
}
GIB = 1024.0**3


def rule_named(browser: Browser, name: str) -> dict[str, object]:
    answer = browser.get("/api/v1/rules").json
    assert answer is not None
    rule_body: dict[str, object] = next(rule for rule in answer["items"] if rule["name"] == name)
    return rule_body


def test_a_rule_is_saved_as_typed_and_shown_as_saved(bob: Browser, world: World) -> None:
    receiver = world.ids["receiver_id"]
    answer = bob.post("/rules/new", {**FORM, "receiver_ids": [receiver]})
    assert answer.status_code == 302
    rule = rule_named(bob, "Disk low")
    assert rule["measurement"] == "disk"
    assert rule["field"] == "free_bytes"
    assert rule["window_seconds"] == 120.0
    assert rule["filters"] == {"mount": ["/", "/data"]}
    assert rule["warning_threshold"] == 8 * GIB
    assert rule["critical_reset"] is None
    assert rule["for_seconds"] == 90.0
    assert rule["no_data"] == "alert"
    assert rule["receiver_ids"] == [receiver]
    text = bob.get(f"/rules/{rule['id']}").text
    for shown in ("disk.free_bytes", "2m", "mount=/, /data", "1m 30s"):
        assert shown in text
    assert re.search(r'id="receiver_ids-1"[^>]*checked', text)


@pytest.mark.usefixtures("world")
def test_saving_a_rule_unchanged_changes_nothing(bob: Browser) -> None:
    bob.post("/rules/new", FORM)
    before = rule_named(bob, "Disk low")
    page = bob.get(f"/rules/{before['id']}").text
    typed = {
        name: re.search(rf'name="{name}"[^>]* value="([^"]*)"', page)
        for name in (
            "warning_threshold",
            "critical_threshold",
            "warning_reset",
            "for_seconds",
            "window_seconds",
        )
    }
    retyped = {name: match[1] for name, match in typed.items() if match}
    assert len(retyped) == len(typed)
    assert bob.post(f"/rules/{before['id']}", {**FORM, **retyped}).status_code == 302
    assert rule_named(bob, "Disk low") == before


@pytest.mark.usefixtures("cast")
def test_errors_of_a_rule_are_reported_beside_the_fields(bob: Browser) -> None:
    wrong = {**FORM, "metric": "temperature", "window_seconds": "soon", "warning_threshold": "hot"}
    answer = bob.post("/rules/new", wrong)
    assert answer.status_code == 422
    assert 'id="metric-error"' in answer.text
    assert 'id="window_seconds-error"' in answer.text
    assert 'id="warning_threshold-error"' in answer.text
    assert 'value="soon"' in answer.text


@pytest.mark.usefixtures("cast")
def test_faults_that_the_service_finds_stand_beside_the_fields(bob: Browser) -> None:
    answer = bob.post("/rules/new", {**FORM, "warning_threshold": "", "critical_threshold": ""})
    assert answer.status_code == 422
    assert 'class="vd-error"' in answer.text


def test_a_rule_is_tried_on_real_samples_without_being_saved(
    bob: Browser, world: World, cast: Cast, store: Store, clock: FrozenClock
) -> None:
    point = Point("disk", {}, {"free_bytes": 3 * GIB}, to_ns(clock.now))
    write(store, [point], identity={"tenant": cast.acme.id, "appliance": world.ids["appliance_id"]})
    clock.advance(5)
    answer = bob.post("/rules/new", {**FORM, "filters": "", "action": "try"})
    assert answer.status_code == 200
    assert 'id="preview"' in answer.text
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


def test_a_new_tenant_reads_when_its_rules_come_and_are_evaluated(
    bob: Browser, sessions: SessionFactory, clock: FrozenClock
) -> None:
    assert "Adding the rule pack" in bob.get("/rules").text
    with transaction(sessions) as session:
        offer_rules(session, now=clock())
    page = bob.get("/rules").text
    assert "Appliance is quarantined" in page
    assert "first within 10s" in page


def test_an_alert_is_shown_with_its_value_unit_and_appliance(bob: Browser, world: World) -> None:
    text = bob.get("/alerts").text
    assert "91.5 °C" in text
    assert "critical" in text
    assert "dgx-01" in text
    assert "91.5 °C" in bob.get(f"/alerts/{world.ids['alert_id']}").text
    assert 'class="vd-empty"' in bob.get("/alerts?state=resolved").text


def test_the_page_of_an_alert_has_its_series_and_the_jobs_that_ran_there(
    bob: Browser, world: World, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    clock.advance(300)
    for gpu, celsius in (("0", 91.5), ("1", 40.0)):
        point = Point("gpu", {"gpu": gpu}, {"temperature_celsius": celsius}, to_ns(clock.now) - 1)
        identity = {"tenant": cast.acme.id, "appliance": world.ids["appliance_id"]}
        write(store, [point], identity=identity)
    path = f"/alerts/{world.ids['alert_id']}"
    page = bob.get(path).text
    assert f"/jobs/{world.ids['job_id']}" in page
    assert f'data-series="{path}/chart"' in page
    drawn = bob.get(f"{path}/chart?width=600").text
    assert drawn.count("<title>") == 1  # not the series of the other GPU
    assert 'class="vd-plot-level vd-plot-warning"' in drawn
    assert 'class="vd-plot-band"' in drawn
    # The picture may end long ago: it says nothing about now.
    assert "a threshold now" not in drawn


def test_the_filters_of_alerts_and_of_their_history_stay_in_the_address(
    bob: Browser, world: World
) -> None:
    link = f"/alerts/{world.ids['alert_id']}"
    for path, is_found in (
        ("/alerts?appliance=dgx-01&severity=critical", True),
        (f"/alerts?rule_id={world.ids['rule_id']}", True),
        ("/alerts?appliance=dgx-02", False),
        ("/alerts?severity=warning", False),
    ):
        text = bob.get(path).text
        assert (link in text) is is_found, path
    text = bob.get("/alerts/history?appliance=dgx-01&severity=critical&since=2026-01-01").text
    assert 'value="dgx-01"' in text
    assert 'value="2026-01-01"' in text
    assert re.search(r'value="critical"\s+selected', text)


@pytest.mark.usefixtures("world")
def test_a_field_that_does_not_exist_is_not_saved_and_the_nearest_is_named(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    point = Point("memory", {}, {"used_bytes": 1.0, "available_percent": 2.0}, to_ns(clock.now))
    identity = {"tenant": cast.acme.id, "appliance": "dgx-1"}
    assert write(store, [point], identity=identity) == []

    refused = bob.post("/rules/new", {**FORM, "metric": "memory.used_byte", "filters": ""})
    assert refused.status_code == 422
    assert "used_bytes" in refused.text
    rule = {"name": "x", "measurement": "memory", "field": "used", "critical_threshold": 1}
    answer = bob.call("POST", "/api/v1/rules", json=rule)
    assert (answer.status_code, [*answer.get_json()["errors"]]) == (422, ["field"])
    # Of a measurement without samples, no field is known.
    later = {**rule, "measurement": "fabric"}
    assert bob.call("POST", "/api/v1/rules", json=later).status_code == 201

    changed = {**rule, "field": "used_bytes"}
    made = bob.call("POST", "/api/v1/rules", json={**changed, "name": "y"}).get_json()
    path = f"/api/v1/rules/{made['id']}"
    assert bob.call("PATCH", path, json={**changed, "field": "nope"}).status_code == 422
    assert bob.call("PATCH", path, json={**changed, "name": "z"}).status_code == 200


def test_an_operator_sees_whose_rules_alerts_and_receivers_they_are(
    world: World, olivia: Browser, alice: Browser, cast: Cast
) -> None:
    del world
    for path in ("/rules", "/receivers", "/alerts?state=all", "/jobs"):
        link = f'href="/tenants/{cast.acme.id}"'
        assert link in olivia.get(path).text
        assert link not in alice.get(path).text


@pytest.mark.usefixtures("world")
def test_a_rule_is_typed_as_an_expression_that_fills_the_form(bob: Browser) -> None:
    text = (
        'min(disk.free_bytes{mount="/"}) over 2m by appliance, mount critical < 4 GiB no_data alert'
    )
    typed: dict[str, object] = {"name": "Disk full", "expression": text}
    page = bob.post("/rules/new", {**typed, "action": "try"})
    assert page.status_code == 200
    assert 'value="disk.free_bytes"' in page.text
    assert bob.post("/rules/new", typed).status_code == 302
    rule = rule_named(bob, "Disk full")
    assert (rule["critical_threshold"], rule["filters"]) == (4 * GIB, {"mount": ["/"]})
    assert rule["expression"] == text

    wrong = bob.post("/rules/new", {"name": "x", "expression": "avg(gpu.x) > hot"})
    assert wrong.status_code == 422
    assert "Column 14" in wrong.text
    comma = bob.post("/rules/new", {"name": "x", "expression": 'avg(gpu.x{a="b, c"}) > 5'})
    assert comma.status_code == 422
    assert "filter values with commas" in comma.text


@pytest.mark.usefixtures("world")
def test_of_expression_and_fields_the_changed_one_applies(bob: Browser) -> None:
    bob.post("/rules/new", FORM)
    rule = rule_named(bob, "Disk low")
    shown = {"expression": rule["expression"], "shown_expression": rule["expression"]}
    bob.post(f"/rules/{rule['id']}", {**FORM, **shown, "window_seconds": "9m"})
    by_field = rule_named(bob, "Disk low")
    assert "over 9m" in str(by_field["expression"])
    changed = str(by_field["expression"]).replace("9m", "7m")
    bob.post(f"/rules/{rule['id']}", {**FORM, **shown, "expression": changed})
    assert rule_named(bob, "Disk low")["window_seconds"] == 420.0


def test_an_alert_is_silenced_in_one_click(bob: Browser, world: World) -> None:
    alert = f"/alerts/{world.ids['alert_id']}"
    answer = bob.post(f"{alert}/silence")
    assert answer.status_code == 302
    assert "silenced" in bob.get(alert).text
    assert "silenced" in bob.get("/alerts").text
    shown = bob.get(f"/api/v1{alert}").json
    assert shown is not None
    (silence_id,) = shown["silence_ids"]
    silence = bob.get(f"/api/v1/silences/{silence_id}").json
    assert silence is not None
    assert silence["matchers"] == ["rule=GPU too hot", "appliance=dgx-01", "gpu=0"]
    assert bob.post(f"/silences/{silence_id}/expire").status_code == 302
    after = bob.get(f"/api/v1{alert}").json
    assert after is not None
    assert after["silence_ids"] == []
    assert bob.post(f"/silences/{silence_id}/expire").status_code == 302
    assert "ended already" in bob.get("/silences").text


@pytest.mark.usefixtures("world")
def test_a_silence_is_added_listed_and_wrong_input_is_shown_again(bob: Browser) -> None:
    typed: dict[str, object] = {
        "matchers": "rule=GPU too hot\ngpu=~[0-3]",
        "starts_at": "2126-01-01T10:00",
        "duration": "3d",
        "comment": "Fans",
    }
    assert bob.post("/silences", typed).headers["Location"].endswith("state=pending")
    assert "gpu=~[0-3]" in bob.get("/silences?state=pending").text
    wrong = bob.post("/silences", {**typed, "matchers": "gpu", "duration": "900d"})
    assert wrong.status_code == 422
    for part in ("is not a matcher", "366 days at most"):
        assert part in wrong.text


@pytest.mark.usefixtures("world")
def test_a_backtest_is_shown_without_saving_the_rule(bob: Browser) -> None:
    before = bob.get("/api/v1/rules").json
    shown = bob.post("/rules/new", {**FORM, "action": "backtest"})
    assert shown.status_code == 200
    assert 'id="backtest"' in shown.text

    lines = bob.post("/rules/backtest", {**FORM, "backtest_days": "30"}).text.splitlines()
    *parts, result = map(json.loads, lines)
    assert [part["done"] for part in parts] == [tenths / 10 for tenths in range(10)]
    assert "Backtest of 30 days" in result["html"]
    wrong = bob.post("/rules/backtest", {**FORM, "metric": "x"})
    assert (wrong.status_code, set(wrong.json["errors"])) == (422, {"metric"})  # type: ignore[index]
    assert bob.get("/api/v1/rules").json == before


def test_actions_of_a_rule_are_saved_as_chosen_and_listed_on_the_alerts_page(
    alice: Browser, bob: Browser, world: World, sessions: SessionFactory, clock: FrozenClock
) -> None:
    chosen: dict[str, object] = {
        "drain-mode": "on",
        "drain-max_per_hour": "2",
        "drain-severity": "critical",
        "label-mode": "dry_run",
        "label-max_per_hour": "7",
        "label-labels": "needs=repair, rack=b12",
        "stop_jobs-mode": "off",
        "stop_jobs-max_per_hour": "",
    }
    assert alice.post("/rules/new", {**FORM, **chosen}).status_code == 302
    rule = rule_named(alice, "Disk low")
    drain = {"kind": "drain", "is_dry_run": False, "max_per_hour": 2, "severity": "critical"}
    assert rule["actions"] == [
        drain,
        {
            "kind": "label",
            "is_dry_run": True,
            "max_per_hour": 7,
            "severity": "warning",
            "labels": {"needs": "repair", "rack": "b12"},
        },
    ]
    page = alice.get(f"/rules/{rule['id']}").text
    assert 'value="needs=repair, rack=b12"' in page
    assert '<option value="on" selected>Drain appliance: on' in page
    wrong = alice.post("/rules/new", {**FORM, "name": "B", **chosen, "drain-max_per_hour": "many"})
    assert (wrong.status_code, "Drain appliance: enter how often" in wrong.text) == (422, True)
    assert bob.post("/rules/new", {**FORM, "name": "C", **chosen}).status_code == 403

    with sessions.begin() as session:
        alert = session.get_one(Alert, world.ids["alert_id"])
        session.add(
            AlertAction(
                tenant_id=alert.tenant_id,
                rule_id=alert.rule_id,
                alert_id=alert.id,
                kind=ActionKind.DRAIN,
                fired_at=clock.now,
                action=drain,
                state=ActionState.OVER_BUDGET,
                message="The rule has used up its budget of 2 in an hour.",
                due_at=clock.now,
                created_at=clock.now,
                finished_at=clock.now,
            )
        )
    page = bob.get(f"/alerts/{world.ids['alert_id']}").text
    assert "Action: over budget" in page
    assert "Drain: The rule has used up its budget" in page
    listed = bob.get(f"/api/v1/alerts/{world.ids['alert_id']}/actions").json
    assert listed is not None
    assert [(action["kind"], action["state"]) for action in listed["items"]] == [
        ("drain", "over_budget")
    ]


def test_a_maintenance_window_is_added_changed_and_deleted(bob: Browser, world: World) -> None:
    typed: dict[str, object] = {
        "name": "Racks",
        "matchers": "label.rack=b12",
        "schedule": "0 22 * * 0",
        "time_zone": "Europe/Oslo",
        "duration_seconds": "4h",
    }
    assert bob.post("/silences/windows", typed).status_code == 302
    assert "Europe/Oslo" in bob.get("/silences/windows").text
    assert "Racks" in bob.get("/silences?state=pending").text
    wrong = bob.post("/silences/windows", {**typed, "schedule": "weekly", "time_zone": "Mars"})
    assert wrong.status_code == 422
    for part in ("is not a schedule", "is not a time zone"):
        assert part in wrong.text
    path = f"/silences/windows/{world.ids['window_id']}"
    assert "Change Updates" in bob.get(path).text
    assert bob.post(path, {**typed, "name": "Reboots"}).status_code == 302
    assert bob.post(f"{path}/delete").status_code == 302
    assert "Reboots" not in bob.get("/silences/windows").text


@pytest.mark.usefixtures("world")
def test_a_rule_with_all_of_the_language_is_saved_by_its_form_and_shown(bob: Browser) -> None:
    text = (
        'max(gpu.power_watts{gpu!="0", uuid=~"GPU-.+"}) over 5m '
        "/ max(gpu.power_watts) over 1d offset 1d by appliance, gpu != 1 "
        "and last(gpu.utilization_percent) over 5m < 5 % for 10m"
    )
    typed = {**FORM, "name": "Odd power", "expression": text}
    assert bob.post("/rules/new", typed).status_code == 302
    rule = rule_named(bob, "Odd power")
    assert rule["expression"] == text
    assert rule["matchers"] == ["gpu!=0", "uuid=~GPU-.+"]
    assert rule["compared_with"] == "/ max(gpu.power_watts) over 1d offset 1d"
    assert rule["and_condition"] == "last(gpu.utilization_percent) over 5m < 5 %"
    page = bob.get(f"/rules/{rule['id']}")
    for shown in ("not equal to", "gpu!=0\nuuid=~GPU-.+", "over 1d offset 1d", "&lt; 5 %"):
        assert shown in page.text

    wrong = {"matchers": "gpu=~[", "compared_with": "avg(x)", "and_condition": "avg(gpu.x) >"}
    refused = bob.post("/rules/new", {**FORM, "name": "x", "filters": "", **wrong})
    assert refused.status_code == 422
    for part in ("invalid pattern", "expected one of + - * /", "expected a number"):
        assert part in refused.text
    answer = bob.call(
        "POST", "/api/v1/rules", json={"name": "x", "expression": text, "and_condition": "x"}
    )
    assert [*answer.get_json()["errors"]] == ["and_condition"]


@pytest.mark.usefixtures("world")
def test_a_rule_in_promql_is_typed_tested_and_saved(bob: Browser) -> None:
    text = 'promql(max by (gpu) (gpu_temperature_celsius) > 1) critical labels {team="dc"} for 2m'
    typed: dict[str, object] = {"name": "In PromQL", "expression": text, "is_enabled": "1"}
    page = bob.post("/rules/new", {**typed, "action": "try"})
    assert (page.status_code, page.text.count("<h2>Query</h2>")) == (200, 0)
    assert bob.post("/rules/new", typed).status_code == 302
    rule = rule_named(bob, "In PromQL")
    assert (rule["expression"], rule["labels"]) == (text, {"team": "dc"})
    assert (rule["measurement"], rule["critical_threshold"]) == ("", 0.0)

    shown = bob.get(f"/rules/{rule['id']}").text
    assert "<h2>Query</h2>" not in shown
    assert "promql(max by (gpu)" in bob.get("/rules").text
    for path in ("/rules/chart", "/rules/backtest"):
        assert bob.post(path, typed).status_code == 200
    changed = {**typed, "expression": text.replace("> 1)", "> 2)")}
    assert bob.post(f"/rules/{rule['id']}", changed).status_code == 302
    assert str(rule_named(bob, "In PromQL")["promql"]).endswith("> 2")

    wrong = bob.post("/rules/new", {"name": "x", "expression": "promql(rate(up))"})
    assert (wrong.status_code, "expected type matrix" in wrong.text) == (422, True)
