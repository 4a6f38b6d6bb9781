"""Appliances in pages and API: list, filters, detail, changes, bulk, mass-outage guard."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, event

from core.db import SessionFactory
from tenants.fleet.liveness import FleetReachability, update_mass_outage_guard
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World
from tests.unit.portal.world_parts import add_appliance


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> str:
    """An idle appliance of acme, at a site and with labels."""
    with sessions.begin() as session:
        made = add_appliance(session, cast, "dgx-02", now=clock.now)
        made.site, made.region, made.labels = "Lyon", "eu-west", {"rack": "b12"}
        made.health = {"state": "healthy", "appliance_class": "2 x flagship"}
        return str(made.id)


def api(browser: Browser, path: str, method: str = "GET", json: object = None) -> dict[str, Any]:
    answer = browser.call(method, f"/api/v1/{path}", json=json)
    body: dict[str, Any] = answer.json or {}
    return body


def ticked(text: str) -> set[str]:
    return set(re.findall(r'name="appliance_id" value="([^"]+)"', text))


@pytest.mark.usefixtures("world")
def test_the_address_narrows_the_list(alice: Browser, dgx: str) -> None:
    for query in (
        "search=lyon",
        "site=Lyon",
        "region=eu-west",
        "label=rack",
        "label=rack%3Db12",
        "appliance_class=2+x+flagship",
        "status=online&search=dgx-02",
    ):
        assert ticked(alice.get(f"/appliances?{query}").text) == {dgx}, query
    assert len(ticked(alice.get("/appliances?gpu_model=H100+80GB").text)) == 2


def test_what_narrows_the_list_is_shown_and_can_be_taken_away(alice: Browser, dgx: str) -> None:
    text = alice.get("/appliances?site=Lyon&status=online&sort=-gpus").text
    assert dgx in text
    assert 'href="/appliances?status=online&amp;sort=-gpus"' in text
    assert '<option value="Lyon" selected>' in text
    assert 'class="vd-empty"' in alice.get("/appliances?site=Oslo").text


def test_headers_sort_and_show_the_order(alice: Browser, dgx: str) -> None:
    text = alice.get("/appliances?sort=last_seen_at").text
    assert dgx in text
    assert re.search(r'aria-sort="ascending"><a [^>]*sort=-last_seen_at', text)
    assert alice.get("/appliances?sort=nonsense&status=nonsense&health=x").status_code == 200


def test_a_page_beyond_the_last_leads_back(alice: Browser, dgx: str) -> None:
    assert dgx
    assert 'class="vd-empty"' in alice.get("/appliances?page=9").text


def test_the_number_of_queries_does_not_grow_with_the_fleet(
    *, bob: Browser, sessions: SessionFactory, engine: Engine, cast: Cast, clock: FrozenClock
) -> None:
    def asked() -> int:
        seen: list[str] = []

        def note(*args: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
            seen.append(args[2])

        event.listen(engine, "before_cursor_execute", note)
        bob.get("/appliances?page_size=25")
        event.remove(engine, "before_cursor_execute", note)
        return len(seen)

    with sessions.begin() as session:
        make_appliance(session, cast.acme, "gpu-00", now=clock.now)
    count = asked()
    with sessions.begin() as session:
        for number in range(1, 60):
            make_appliance(session, cast.acme, f"gpu-{number:02}", now=clock.now)
    assert asked() == count


def test_a_viewer_of_the_list_has_no_ticks_and_no_bulk_actions(bob: Browser, dgx: str) -> None:
    text = bob.get("/appliances").text
    assert "dgx-02" in text
    assert dgx not in ticked(text)
    assert 'id="bulk"' not in text
    form: dict[str, object] = {"action": "drain", "appliance_id": [dgx]}
    assert bob.post("/appliances/bulk", form).status_code == 403


def test_ticked_appliances_are_drained_and_the_list_is_as_it_was(
    alice: Browser, world: World, dgx: str
) -> None:
    idents = [world.ids["appliance_id"], dgx]
    answer = alice.post(
        "/appliances/bulk?search=dgx&sort=-name", {"action": "drain", "appliance_id": idents}
    )
    assert answer.headers["Location"] == "/appliances?search=dgx&sort=-name"
    assert "2 appliances drained" in alice.get("/appliances").text
    assert ticked(alice.get("/appliances?status=drained").text) == set(idents)


def test_ticked_appliances_wait_for_their_jobs_before_these_move(
    alice: Browser, world: World, dgx: str
) -> None:
    idents = [world.ids["appliance_id"], dgx]
    page = alice.get("/appliances").text
    assert "Jobs stop after 15 minutes and queue again" in page
    alice.post("/appliances/bulk", {"action": "drain", "appliance_id": idents, "wait": "0.25"})
    for ident in idents:
        drain = api(alice, f"appliances/{ident}/drain")
        begin, end = (datetime.fromisoformat(drain[key]) for key in ("drained_at", "deadline_at"))
        assert end - begin == timedelta(minutes=15)
    form: dict[str, object] = {"action": "drain", "appliance_id": idents, "wait": "1000"}
    alice.post("/appliances/bulk", form)
    assert "Not a valid choice" in alice.get("/appliances").text


@pytest.mark.parametrize(
    ("form", "labels"),
    [
        ({"action": "label", "label": "tier = gold"}, {"rack": "b12", "tier": "gold"}),
        ({"action": "unlabel", "label": "rack"}, {}),
    ],
)
def test_a_label_is_put_on_and_taken_off(
    alice: Browser, dgx: str, form: dict[str, object], labels: dict[str, str]
) -> None:
    alice.post("/appliances/bulk", {**form, "appliance_id": [dgx]})
    assert api(alice, f"appliances/{dgx}")["labels"] == labels


def test_an_invalid_bulk_action_changes_nothing_and_explains_why(alice: Browser, dgx: str) -> None:
    for form, fault in (
        ({"action": "label", "label": "gold"}, "KEY=VALUE"),
        ({"action": "label", "label": "a b=c"}, "can&#39;t be labeled"),
        ({"action": "drain", "appliance_id": []}, "at least one"),
        ({"action": "drain", "appliance_id": ["x"]}, "There is no appliance"),
        ({"action": "move", "site": " "}, "a site"),
        ({"action": "explode"}, "Not a valid choice"),
    ):
        alice.post("/appliances/bulk", {"appliance_id": [dgx], **form})
        assert fault in alice.get("/appliances").text
        shown = api(alice, f"appliances/{dgx}")
        assert (shown["labels"], shown["status"]) == ({"rack": "b12"}, "online")


def test_name_site_region_and_labels_are_edited(alice: Browser, dgx: str) -> None:
    path = f"/appliances/{dgx}/edit"
    assert "rack=b12" in alice.get(path).text
    form: dict[str, object] = {"name": "node-7", "site": "Oslo", "region": "", "labels": "a=1\nb=2"}
    assert alice.post(path, form).status_code == 302
    shown = api(alice, f"appliances/{dgx}")
    assert [shown[key] for key in ("name", "site", "region", "labels")] == [
        "node-7",
        "Oslo",
        "",
        {"a": "1", "b": "2"},
    ]
    text = alice.get(f"/appliances/{dgx}").text
    assert "Name: node-7; was dgx-02." in text
    assert "by alice@acme.example" in text


def test_faults_stand_beside_the_fields_and_what_was_typed_stays(
    alice: Browser, world: World, dgx: str
) -> None:
    assert world
    path = f"/appliances/{dgx}/edit"
    answer = alice.post(path, {"name": "dgx-01", "site": "Oslo", "region": "", "labels": ""})
    assert (answer.status_code, "Another appliance" in answer.text) == (409, True)
    answer = alice.post(path, {"name": "a b", "site": "Oslo", "region": "", "labels": "/=1"})
    assert answer.status_code == 422
    assert 'value="Oslo"' in answer.text


def test_bob_edits_nothing(bob: Browser, dgx: str) -> None:
    assert bob.get(f"/appliances/{dgx}/edit").status_code == 403
    assert "Retire" not in bob.get(f"/appliances/{dgx}").text


def test_an_idle_appliance_is_retired_and_taken_back(alice: Browser, dgx: str) -> None:
    alice.post(f"/appliances/{dgx}/retire")
    text = alice.get(f"/appliances/{dgx}").text
    assert "Retired " in text
    assert "Reinstate" in text
    assert dgx not in alice.get("/appliances").text
    assert ticked(alice.get("/appliances?status=retired").text) == {dgx}
    alice.post(f"/appliances/{dgx}/reinstate")
    assert api(alice, f"appliances/{dgx}")["status"] == "lost"


def test_a_busy_appliance_is_not_retired_and_the_page_names_the_job(
    alice: Browser, world: World
) -> None:
    path = f"/appliances/{world.ids['appliance_id']}"
    alice.post(f"{path}/retire")
    text = alice.get(path).text
    assert "Jobs run on &#39;dgx-01&#39;: &#39;train&#39;." in text
    answer = alice.call("POST", f"/api/v1{path}/retire")
    assert (answer.status_code, (answer.json or {})["code"]) == (409, "jobs_running")


def test_events_are_listed_by_page_and_api(
    alice: Browser, bob: Browser, dgx: str, clock: FrozenClock
) -> None:
    for verb in ("drain", "undrain"):
        alice.post(f"/appliances/{dgx}/{verb}")
        clock.advance(60)
    kinds = [event["kind"] for event in api(bob, f"appliances/{dgx}/events")["items"]]
    assert kinds == ["undrained", "drained"]
    assert api(bob, f"appliances/{dgx}/events?kind=drained&page_size=1")["total"] == 1
    assert "Undrained" in bob.get(f"/appliances/{dgx}/events").text
    assert 'class="vd-empty"' in bob.get(f"/appliances/{dgx}/events?kind=reboot").text


def test_a_clock_that_is_off_is_shown_on_list_and_page(
    bob: Browser, sessions: SessionFactory, dgx: str
) -> None:
    with sessions.begin() as session:
        session.get_one(Appliance, dgx).clock_skew_seconds = -61.5
    assert "-61.5 s" in bob.get("/appliances").text
    text = bob.get(f"/appliances/{dgx}").text
    assert "-61.50 s" in text
    assert "check clock" in text


def test_the_api_narrows_sorts_and_leaves_out_what_is_large(
    bob: Browser, world: World, dgx: str
) -> None:
    page = api(bob, "appliances?status=online&sort=-name&label=rack")
    assert [appliance["id"] for appliance in page["items"]] == [dgx]
    assert (page["items"][0]["gpu_count"], page["items"][0]["status"]) == (2, "online")
    assert page["items"][0].keys().isdisjoint({"inventory", "health"})
    names = [appliance["name"] for appliance in api(bob, "appliances?sort=-name")["items"]]
    assert (names, world.ids["appliance_id"] != dgx) == (["dgx-02", "dgx-01"], True)
    assert api(bob, "appliances?sort=secret")["status"] == 422


def test_a_patch_changes_what_it_names(alice: Browser, bob: Browser, dgx: str) -> None:
    changed = api(alice, f"appliances/{dgx}", "PATCH", {"labels": {"rack": "c1"}})
    assert (changed["name"], changed["labels"]) == ("dgx-02", {"rack": "c1"})
    assert api(bob, f"appliances/{dgx}", "PATCH", {"site": "x"})["status"] == 403


BANNER = re.compile(r'class="alert alert-warning vd-outage".*?<strong>(.*?)</strong>', re.DOTALL)


@pytest.fixture
def mass_outage(sessions: SessionFactory, clock: FrozenClock, cast: Cast) -> None:
    assert cast
    with sessions.begin() as session:
        update_mass_outage_guard(
            session, FleetReachability(312, 500), now=clock.now - timedelta(minutes=3)
        )


@pytest.mark.usefixtures("mass_outage")
def test_a_mass_outage_shows_a_banner_with_figures_for_the_operator_only(
    alice: Browser, olivia: Browser, dgx: str
) -> None:
    for path in ("/appliances", f"/appliances/{dgx}", "/jobs", "/dashboards/"):
        (headline,) = BANNER.findall(alice.get(path).text)
        assert not re.search(r"\d", headline), path
    (headline,) = BANNER.findall(olivia.get("/appliances").text)
    assert re.findall(r"\d+", headline) == ["312", "500"]
    assert api(alice, "fleet-outage")["unreachable_count"] is None
    assert api(olivia, "fleet-outage")["unreachable_count"] == 312


@pytest.mark.usefixtures("mass_outage")
def test_only_an_operator_releases_the_mass_outage_guard(alice: Browser, olivia: Browser) -> None:
    assert "/appliances/release-guard" not in alice.get("/appliances").text
    assert alice.post("/appliances/release-guard").status_code == 403
    assert alice.call("POST", "/api/v1/fleet-outage/release-guard").status_code == 403
    olivia.post("/appliances/release-guard")
    assert api(olivia, "fleet-outage")["is_active"] is False
    assert not BANNER.findall(olivia.get("/appliances").text)


def test_pages_run_no_inline_script_or_style(app: Flask, alice: Browser, dgx: str) -> None:
    assert app
    for path in (
        "/appliances",
        f"/appliances/{dgx}",
        f"/appliances/{dgx}/edit",
        f"/appliances/{dgx}/events",
    ):
        text = alice.get(path).text
        assert not re.search(r"<script>|\son\w+=|\sstyle=", text), path


def test_the_address_gives_no_orders_to_the_links_of_the_page(alice: Browser, dgx: str) -> None:
    query = "_scheme=javascript&_external=1&_anchor=x&site=Lyon&appliance_id=other"
    text = alice.get(f"/appliances?{query}").text
    assert dgx in text
    assert "javascript:" not in text
    assert 'action="/appliances/bulk?site=Lyon"' in text
