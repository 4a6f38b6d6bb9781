"""Custom dashboards and saved views: pages, files, rights and bounds."""

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
import yaml

from core.db import SessionFactory
from dash_app.custom import dashboards, views
from tenants.models import Membership, Role, User
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn
from tests.unit.portal.world import make_world
from timeseries.points import Point
from timeseries.store import Store, write

DASHBOARDS, VIEWS = "/api/v1/dashboards", "/api/v1/saved-views"
POWER: dict[str, object] = {"title": "Power", "measurement": "gpu", "fields": ["power_watts"]}
FORM = {"title": "Heat", "chart": "heatmap", "metric": "gpu.temperature_celsius"}


@pytest.fixture
def _samples(store: Store, cast: Cast) -> None:
    point = Point("gpu", {"gpu": "0"}, {"power_watts": 400.0, "temperature_celsius": 60.0}, 10**18)
    identity = {"tenant": cast.acme.id, "appliance": "dgx-01"}
    assert write(store, [point], identity=identity) == []


def create(browser: Browser, name: str, **fields: object) -> dict[str, Any]:
    answer = browser.call("POST", DASHBOARDS, {"name": name, "panels": [POWER], **fields})
    assert answer.status_code == 201, answer.text
    dashboard: dict[str, Any] = answer.get_json()
    return dashboard


def names(browser: Browser, path: str = DASHBOARDS) -> list[str]:
    return [item["name"] for item in browser.get(path).get_json()["items"]]


def test_private_dashboards_are_their_authors_and_shared_ones_the_tenants(
    alice: Browser, bob: Browser, charlie: Browser
) -> None:
    private = create(bob, "Mine")
    shared = create(bob, "Ours", is_shared=True)
    assert names(bob) == ["Mine", "Ours"]
    assert names(alice) == ["Ours"]
    assert names(charlie) == []
    for path in (f"{DASHBOARDS}/{private['id']}", f"/custom-dashboards/{private['id']}/edit"):
        assert alice.get(path).status_code == 404
    # The admin may change a shared one, another member may not.
    own = create(alice, "Alice's", is_shared=True)
    body = {"name": "Renamed", "is_shared": True}
    assert alice.call("PATCH", f"{DASHBOARDS}/{shared['id']}", body).status_code == 200
    assert bob.call("PATCH", f"{DASHBOARDS}/{own['id']}", body).status_code == 403
    assert bob.get(f"/custom-dashboards/{own['id']}/edit").status_code == 403
    assert bob.get(f"{DASHBOARDS}/{own['id']}").get_json()["is_changeable"] is False
    assert bob.call("DELETE", f"{DASHBOARDS}/{shared['id']}").status_code == 204


@pytest.mark.usefixtures("_samples")
def test_all_errors_of_a_dashboard_are_reported_at_once(bob: Browser) -> None:
    panels = [
        {"title": "", "measurement": "gpu", "fields": []},
        {**POWER, "fields": ["power_watts", "temperature_celsius"], "group_by": ["tenant"]},
        {**POWER, "filters": {"gpu": []}},
        *[POWER] * 24,
    ]
    answer = bob.call("POST", DASHBOARDS, {"name": " ", "panels": panels})
    assert answer.status_code == 422
    assert answer.get_json()["errors"].keys() == {
        "name",
        "panels",
        "panels.0.title",
        "panels.0.fields",
        "panels.1.fields",
        "panels.1.group_by",
        "panels.2.filters",
    }
    unknown = {**POWER, "fields": ["power_wats"], "group_by": ["gpuu"]}
    answer = bob.call("POST", DASHBOARDS, {"name": "x", "panels": [POWER, unknown]})
    assert answer.get_json()["errors"].keys() == {"panels.1.fields", "panels.1.group_by"}
    assert names(bob) == []


@pytest.mark.usefixtures("_samples")
def test_panels_are_added_and_changed_in_the_browser(bob: Browser) -> None:
    made = bob.post("/custom-dashboards/new", {"name": "Heat", "description": "of the GPUs"})
    ident = made.headers["Location"].rpartition("/")[2]
    path = f"/custom-dashboards/{ident}"
    wrong = bob.post(f"{path}/panels/new", {**FORM, "metric": "gpu.heat", "group_by": "gpu, rack"})
    assert wrong.status_code == 422
    assert 'id="metric-error"' in wrong.text
    assert 'id="group_by-error"' in wrong.text
    preview = bob.post("/custom-dashboards/chart", {**FORM, "aggregate": "avg", "title": ""})
    assert "gpu.temperature_celsius" in preview.text
    typed = {**FORM, "aggregate": "max", "group_by": "appliance, gpu", "filters": "gpu=0, 1"}
    assert bob.post(f"{path}/panels/new", typed).status_code == 302
    shown = bob.get(f"{path}/panels/0").text
    assert "gpu=0, 1" in shown
    bob.post(f"{path}/panels/0", {**typed, "chart": "table", "more_fields": "power_watts"})
    (panel,) = bob.get(f"{DASHBOARDS}/{ident}").get_json()["panels"]
    assert panel == {
        "title": "Heat",
        "chart": "table",
        "measurement": "gpu",
        "fields": ["temperature_celsius", "power_watts"],
        "aggregate": "max",
        "group_by": ["appliance", "gpu"],
        "filters": {"gpu": ["0", "1"]},
        "is_wide": False,
        "unit": "",
        "axis_min": None,
        "axis_max": None,
        "thresholds": [],
    }
    assert bob.get(f"{path}/panels/1").status_code == 404
    copied = bob.post(f"/custom-dashboards/new?copy={ident}", {"name": "Heat, too"})
    copy_id = copied.headers["Location"].rpartition("/")[2]
    assert bob.get(f"{DASHBOARDS}/{copy_id}").get_json()["panels"] == [panel]
    assert bob.post("/custom-dashboards/new", {"name": "Heat"}).status_code == 409
    bob.post(f"{path}/delete")
    assert names(bob) == ["Heat, too"]


@pytest.mark.usefixtures("_samples")
def test_units_limits_and_thresholds_go_through_form_file_and_api(bob: Browser) -> None:
    ident = create(bob, "Heat")["id"]
    path = f"/custom-dashboards/{ident}/panels/0"
    typed = {
        **FORM,
        "chart": "line",
        "aggregate": "avg",
        "unit": "tokens/s",
        "axis_min": "10",
        "axis_max": "2 KiB",
        "thresholds": "> 80 warning\n< 5.5 critical Too cold",
        "filters": "appliance=$appliance\nsite=$site",
    }
    wrong = {**typed, "unit": "x" * 17, "axis_min": "3 KiB", "filters": "gpu=$GPU"}
    answer = bob.post(path, wrong)
    assert answer.status_code == 422
    for field in ("unit", "axis_max", "filters"):
        assert f'id="{field}-error"' in answer.text
    answer = bob.post(path, {**typed, "thresholds": "85 hot"})
    assert "is no threshold. Write &gt; or &lt;" in answer.text
    assert bob.post(path, typed).status_code == 302
    assert "&lt; 5.5 critical Too cold" in bob.get(path).text
    preview = bob.post("/custom-dashboards/chart", typed)
    assert "gpu.temperature_celsius" in preview.text

    (panel,) = bob.get(f"{DASHBOARDS}/{ident}").get_json()["panels"]
    thresholds = [
        {"value": 80.0, "severity": "warning", "comparison": ">", "label": ""},
        {"value": 5.5, "severity": "critical", "comparison": "<", "label": "Too cold"},
    ]
    shown = {"unit": "tokens/s", "axis_min": 10.0, "axis_max": 2048.0, "thresholds": thresholds}
    assert shown.items() <= panel.items()
    assert panel["filters"] == {"appliance": ["$appliance"], "site": ["$site"]}

    # A file is YAML, and JSON is YAML, too: what the API answers can be imported.
    exported = yaml.safe_load(bob.get(f"/custom-dashboards/export?id={ident}").data)
    assert shown.items() <= exported["dashboards"][0]["panels"][0].items()
    bob.post(f"/custom-dashboards/{ident}/delete")
    file = json.dumps({"dashboards": [{"name": "Copy", "panels": [panel]}]})
    assert bob.post("/custom-dashboards/import", {"text": file}).status_code == 302
    (copied,) = bob.get(DASHBOARDS).get_json()["items"]
    assert copied["panels"] == [panel]

    bad = {**panel, "thresholds": [{"value": "hot", "severity": "fatal"}]}
    answer = bob.call("POST", DASHBOARDS, {"name": "x", "panels": [bad]})
    assert answer.get_json()["errors"].keys() == {
        "panels.0.thresholds.0.value",
        "panels.0.thresholds.0.severity",
    }


@pytest.mark.usefixtures("_samples")
def test_a_file_is_exported_and_imported(alice: Browser, bob: Browser) -> None:
    create(bob, "Training", is_shared=True, description="All of it")
    file = bob.get("/custom-dashboards/export").data
    assert yaml.safe_load(file) == {
        "dashboards": [
            {
                "name": "Training",
                "description": "All of it",
                "is_shared": True,
                "panels": [{**POWER, "chart": "line", "aggregate": "avg"}],
            }
        ]
    }
    # The admin's import changes the shared dashboard of its name.
    changed = file.replace(b"chart: line", b"chart: band").replace(b"of it", b"of them")
    answer = alice.post("/custom-dashboards/import", {"file": (BytesIO(changed), "d.yaml")})
    assert answer.status_code == 302
    (dashboard,) = bob.get(DASHBOARDS).get_json()["items"]
    assert (dashboard["description"], dashboard["user_email"]) == (
        "All of them",
        "bob@acme.example",
    )
    assert dashboard["panels"][0]["chart"] == "band"

    wrong = {
        "dashboards": [
            {"name": "A", "panels": [{**POWER, "fields": ["power"]}]},
            {"name": "B", "panels": [{**POWER, "group_by": ["gpuu"]}]},
        ]
    }
    answer = bob.post("/custom-dashboards/import", {"text": yaml.safe_dump(wrong)})
    assert answer.status_code == 422
    assert "dashboards.0.panels.0.fields" in answer.text
    assert "dashboards.1.panels.0.group_by" in answer.text
    for text in ("dashboards: [", "rules: []", "dashboards: [{name: A, panels: [{chart: pie}]}]"):
        assert bob.post("/custom-dashboards/import", {"text": text}).status_code == 422
    assert names(bob) == ["Training"]


def test_a_file_that_is_no_list_of_dashboards_is_refused(bob: Browser) -> None:
    for text in (
        "[" * 14_000,
        "dashboards: " + "9" * 100_000,
        f"dashboards: [{{name: {'9' * 100_000}}}]",
        "dashboards:\n- name: !!int x\n- [1]\n- 2026-13-45",
        "dashboards: &a [*a]",
        "{1: 2, dashboards: []}",
        "dashboards: [" + "{}, " * 9_000 + "]",
        "dashboards: [{name: x, panels: [{title: x, axis_min: .nan, filters: {1: [2]}}]}]",
    ):
        for fields in ({"text": text}, {"file": (BytesIO(text.encode()), "dashboards.yaml")}):
            assert bob.post("/custom-dashboards/import", fields).status_code == 422
    answer = bob.post("/custom-dashboards/import", {"file": text, "text": text})
    assert answer.status_code == 422
    assert "This is a text. Send a file" in answer.text


def test_dashboards_and_views_are_bounded(bob: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboards, "ITEMS", replace(dashboards.ITEMS, max_items=2, max_shared=1))
    monkeypatch.setattr(views, "ITEMS", replace(views.ITEMS, max_items=1))
    create(bob, "1", is_shared=True)
    shared = bob.call("POST", DASHBOARDS, {"name": "2", "is_shared": True})
    create(bob, "2")
    third = bob.call("POST", DASHBOARDS, {"name": "3"})
    assert (shared.status_code, third.status_code) == (409, 409)
    view = {"name": "v", "address": "/reports?kind=jobs"}
    assert bob.call("POST", VIEWS, view).status_code == 201
    assert bob.call("POST", VIEWS, {**view, "name": "w"}).status_code == 409


@pytest.mark.usefixtures("_samples")
def test_operators_have_dashboards_and_views_of_no_tenant(
    alice: Browser, olivia: Browser, cast: Cast
) -> None:
    shared = create(alice, "Acme's", is_shared=True)
    create(alice, "Private")
    own = create(olivia, "Platform", is_shared=True)
    assert names(olivia) == ["Acme's", "Platform"]
    assert names(alice) == ["Acme's", "Private"]
    assert alice.get(f"{DASHBOARDS}/{own['id']}").status_code == 404
    text = olivia.get("/custom-dashboards").text
    assert "all operators" in text
    assert cast.acme.name in text
    # Operators see what tenants share, and change their own.
    path = f"{DASHBOARDS}/{shared['id']}"
    assert olivia.call("PATCH", path, {"name": "Renamed"}).status_code == 403
    assert olivia.call("PATCH", f"{DASHBOARDS}/{own['id']}", {"name": "Renamed"}).status_code == 200
    assert olivia.call("DELETE", f"{DASHBOARDS}/{own['id']}").status_code == 204
    view = {"name": "Fleet", "address": "/dashboards/platform", "is_default": True}
    assert olivia.call("POST", VIEWS, {**view, "is_shared": True}).status_code == 201
    assert olivia.call("POST", VIEWS, view).status_code == 409
    assert olivia.get("/").headers["Location"] == view["address"]
    assert names(alice, VIEWS) == []


def test_a_default_view_is_its_users_start_page(alice: Browser, bob: Browser) -> None:
    first = {"name": "Day", "address": "/dashboards/?range=24h", "is_default": True}
    second = {"name": "Week", "address": "/reports?kind=jobs", "is_default": True}
    for view in (first, second):
        assert bob.call("POST", VIEWS, {**view, "is_shared": True}).status_code == 201
    views = {view["name"]: view for view in bob.get(VIEWS).get_json()["items"]}
    assert [views[name]["is_default"] for name in ("Day", "Week")] == [False, True]
    assert bob.get("/").headers["Location"] == "/reports?kind=jobs"
    assert alice.get("/").headers["Location"] == "/dashboards/"
    # The admin may rename a shared view, which stays the default of its user.
    address = f"{VIEWS}/{views['Week']['id']}"
    renamed = {"name": "7 days", "address": second["address"], "is_shared": True}
    assert alice.call("PATCH", address, renamed).get_json()["is_default"] is True
    for wrong in ("https://evil.example/dashboards/", "//evil.example/dashboards/", "/login"):
        answer = bob.call("POST", VIEWS, {"name": "x", "address": wrong})
        assert answer.get_json()["errors"].keys() == {"address"}
    assert bob.call("DELETE", address).status_code == 204
    assert bob.get("/").headers["Location"] == "/dashboards/"


def test_a_viewer_saves_views_of_their_own_alone(
    sign_in: SignIn, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        make_world(session, cast, now=clock.now)
        dana = User(
            email="dana@acme.example",
            name="Dana",
            password_hash=cast.bob.password_hash,
            is_operator=False,
            created_at=clock.now,
        )
        dana.memberships.append(
            Membership(tenant_id=cast.acme.id, role=Role.VIEWER, created_at=clock.now)
        )
        session.add(dana)
    viewer = sign_in(dana)
    assert names(viewer) == ["Training"]
    assert "/dashboards/custom/" in viewer.get("/custom-dashboards").text
    assert viewer.call("POST", DASHBOARDS, {"name": "x"}).status_code == 403
    view = {"name": "Mine", "address": "/dashboards/?range=6h"}
    assert viewer.call("POST", VIEWS, {**view, "is_shared": True}).status_code == 403
    assert viewer.call("POST", VIEWS, view).status_code == 201
    assert names(viewer, VIEWS) == ["Mine", "Today"]
