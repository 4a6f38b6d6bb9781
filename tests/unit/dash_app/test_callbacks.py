"""The callbacks over HTTP, in requests with a scope."""

import json
import re
import threading
from html import unescape
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient

from core.db import SessionFactory
from dash_app.components import ABSENT
from dash_app.pcie import TIMES
from dash_app.routes import appliance_path, gpu_path, job_path
from tenants.models import Appliance
from tests.cast import NOON, Cast, FrozenClock
from tests.unit.dash_app.browsing import USER_HEADER, Browser, CountingStore, rows_of, served
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.store import Store

PART = re.compile(r'<script id="(_dash-[a-z]+)" type="application/json">(.*?)</script>')


FLEET = {
    "fleet_path_data": "/dashboards/",
    "url_search": "?range=15m",
}


@pytest.mark.parametrize("path", ["/dashboards/", "/dashboards/appliances/x/gpus/0"])
def test_every_address_is_drawn_inside_the_portals_shell(client: FlaskClient, path: str) -> None:
    page = client.get(path, headers={USER_HEADER: "alice"})
    assert page.status_code == 200
    assert page.text.startswith("<h1>Dashboards</h1>")
    assert "assets/dashboards.css" in page.text


def test_a_page_comes_with_its_layout_and_callbacks(
    client: FlaskClient, fleet_of_three: Fleet
) -> None:
    path, search = appliance_path(fleet_of_three.first.id), "?range=6h&refresh=30s"

    def parts(who: str) -> dict[str, Any]:
        page = client.get(f"{path}{search}", headers={USER_HEADER: who}).text
        return {name: json.loads(text) for name, text in PART.findall(page)}

    alices = parts("alice")
    callbacks = client.get("/dashboards/_dash-dependencies", headers={USER_HEADER: "alice"})
    assert alices["_dash-dependencies"] == callbacks.get_json()
    by_id = {
        component["props"]["id"]: component["props"]
        for component in alices["_dash-layout"]["props"]["children"][:4]
    }
    assert (by_id["url"]["pathname"], by_id["url"]["search"]) == (path, search)
    assert (by_id["tick"]["interval"], by_id["tick"]["disabled"]) == (30_000, False)
    assert by_id["title"]["data"] == "dgx-01"
    assert '"appliance-cpu"' in json.dumps(alices["_dash-layout"])
    charlies = json.dumps(parts("charlie")["_dash-layout"])
    assert "Not found" in charlies
    assert "dgx-01" not in charlies


@pytest.mark.parametrize("path", ["dash/nothing.js", "nothing/deps/react.js"])
def test_a_file_that_dash_does_not_have_is_404(alice: Browser, path: str) -> None:
    url = f"/dashboards/_dash-component-suites/{path}"
    assert alice.client.get(url, headers=alice.headers).status_code == 404


def test_alices_fleet_has_her_appliances_and_not_globexs(alice: Browser) -> None:
    text = alice.fill("fleet-cards.children", **FLEET)
    assert "dgx-01" in text
    assert "dgx-02" in text
    assert "globex" not in text


def test_links_to_other_tiers_keep_the_range(alice: Browser, fleet_of_three: Fleet) -> None:
    text = alice.fill("fleet-cards.children", **FLEET)
    assert f"/dashboards/appliances/{fleet_of_three.first.id}?range=15m&amp;refresh=5s" in text
    assert f"/dashboards/appliances/{fleet_of_three.first.id}/gpus/1?range=15m" in text


def test_the_filter_matches_names_and_jobs(alice: Browser) -> None:
    text = alice.fill("fleet-cards.children", **FLEET | {"url_search": "?text=train"})
    assert "dgx-01" in text
    assert "dgx-02" not in text


def test_the_operators_cards_are_grouped_by_tenant(client: FlaskClient) -> None:
    text = Browser(client, "olivia").fill("fleet-cards.children", **FLEET)
    assert text.index("Acme") < text.index("dgx-02") < text.index("Globex")


def test_an_empty_fleet_links_to_adding_an_appliance(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    browser = Browser(served(sessions, store, cast, clock), "alice")
    assert "/appliances" in browser.fill("fleet-cards.children", **FLEET)


def test_an_unknown_and_a_foreign_appliance_get_the_same_page(
    charlie: Browser, fleet_of_three: Fleet
) -> None:
    pages = []
    for ident in (fleet_of_three.first.id, "0" * 36):
        text = charlie.fill("page.children", url_pathname=f"/dashboards/appliances/{ident}")
        pages.append(text.replace(ident, "ID"))
    assert pages[0] == pages[1]
    assert "Not found" in pages[0]


def test_charlie_gets_no_figure_of_acmes_appliance_by_a_forged_callback(
    charlie: Browser, fleet_of_three: Fleet
) -> None:
    text = charlie.fill(
        "appliance-cpu.figure",
        appliance_path_data=appliance_path(fleet_of_three.first.id),
        url_search="",
    )
    assert "There is no appliance" in text
    assert "dgx-01" not in text
    assert "scatter" not in text


def test_charlie_gets_no_figure_of_acmes_gpu_by_a_forged_callback(
    charlie: Browser, fleet_of_three: Fleet
) -> None:
    path = gpu_path(fleet_of_three.first.id, "0")
    text = charlie.fill("gpu-power.figure", gpu_path_data=path, url_search="")
    assert "scatter" not in text


def test_charlie_gets_no_figure_of_acmes_job_by_a_forged_callback(
    charlie: Browser, fleet_of_three: Fleet
) -> None:
    text = charlie.fill("job-gpu-power_watts.figure", job_path_data=job_path(fleet_of_three.job.id))
    assert "There is no job" in text
    assert "scatter" not in text


def test_an_appliance_is_filled_with_figures(alice: Browser, fleet_of_three: Fleet) -> None:
    answer = json.loads(
        alice.fill(
            "appliance-cpu.figure", appliance_path_data=appliance_path(fleet_of_three.first.id)
        )
    )["response"]
    assert answer["appliance-cpu"]["figure"]["data"]
    # One line for both GPUs, and the range between them.
    assert len(answer["appliance-gpu-power_watts"]["figure"]["data"]) == 2
    bars = answer["appliance-timeline"]["figure"]["data"][0]
    assert (bars["y"], bars["text"]) == (["GPU 0"], ["train"])
    assert job_path(fleet_of_three.job.id) in bars["customdata"][0]


def test_a_gpu_is_filled_with_figures(alice: Browser, fleet_of_three: Fleet) -> None:
    path = gpu_path(fleet_of_three.first.id, "0")
    answer = json.loads(alice.fill("gpu-power.figure", gpu_path_data=path))["response"]
    assert answer["gpu-power"]["figure"]["data"]
    assert "train" in json.dumps(answer["gpu-jobs"])
    # Its host: one interface besides the loopback, and the fullest of two file systems.
    host = json.dumps(answer["gpu-host"])
    assert all(text in host for text in ("Host dgx-01", "70 %", "/data is", "977 KiB/s"))
    assert appliance_path(fleet_of_three.first.id) in host


def test_a_window_of_a_gpu_shows_who_used_it_at_its_end(
    alice: Browser, fleet_of_three: Fleet
) -> None:
    path = gpu_path(fleet_of_three.first.id, "0")
    started_ms = int((fleet_of_three.job.started_at or NOON).timestamp() * 1000)

    def header(until_ms: int) -> str:
        search = f"?from={until_ms - 120_000}&to={until_ms}"
        answer = alice.fill("gpu-power.figure", gpu_path_data=path, url_search=search)
        return json.dumps(json.loads(answer)["response"]["gpu-header"])

    assert "not allocated" in header(started_ms - 60_000)
    assert ">train<" in header(started_ms + 60_000)


def test_a_job_is_filled_with_figures(alice: Browser, fleet_of_three: Fleet) -> None:
    answer = json.loads(
        alice.fill("job-gpu-power_watts.figure", job_path_data=job_path(fleet_of_three.job.id))
    )["response"]
    assert answer["job-gpu-power_watts"]["figure"]["data"]


def test_a_jobs_page_is_in_the_chosen_time_zone(alice: Browser, fleet_of_three: Fleet) -> None:
    path = job_path(fleet_of_three.job.id)
    page = alice.fill("toolbar.children", url_pathname=path, url_search="?tz=Asia/Tokyo")
    assert page.count("Asia/Tokyo") > 1
    assert f"{path}?range=1h&refresh=5s" in page

    def runtime(search: str) -> str:
        answer = alice.fill("job-stats.children", job_path_data=path, url_search=search)
        return json.dumps(json.loads(answer)["response"]["job-stats"])

    started_at = fleet_of_three.job.started_at or NOON
    assert f"since {started_at:%b %d %H:%M} UTC" in runtime("")
    local = started_at.astimezone(ZoneInfo("Asia/Tokyo"))
    assert f"since {local:%b %d %H:%M} JST" in runtime("?tz=Asia/Tokyo")


@pytest.mark.parametrize("tier", ["appliances/{0}", "appliances/{0}/gpus/0", "jobs/{1}"])
def test_each_tier_has_a_skeleton_and_a_way_up(
    alice: Browser, fleet_of_three: Fleet, tier: str
) -> None:
    path = tier.format(fleet_of_three.first.id, fleet_of_three.job.id)
    text = alice.fill(
        "page.children", url_pathname=f"/dashboards/{path}", url_search="?range=6h&refresh=off"
    )
    assert "/dashboards/?range=6h&" in text
    assert "Not found" not in text


def test_a_new_range_keeps_the_panels(alice: Browser) -> None:
    text = alice.fill(
        "page.children", changed="url.search", url_pathname="/dashboards/", url_search="?range=6h"
    )
    assert "page" not in json.loads(text)["response"]


def test_an_address_with_a_typo_says_so_above_the_panels(
    client: FlaskClient, alice: Browser
) -> None:
    for search, text in (
        ("?rang=1h", "Unknown query parameter 'rang'. Did you mean 'range'?"),
        ("?range=1hh", "Invalid range '1hh'. Use 15m, 1h,"),
        ("?from=2026-11-22&to=2026-11-23", "Use milliseconds since 1970"),
        ("?tz=Europe/Olso", "Use a name such as"),
        ("?compare=gpu-9", "Invalid compare 'gpu-9'."),
        ("?txt=dgx", "Did you mean 'text'?"),
    ):
        assert text in alice.fill("page.children", url_pathname="/dashboards/", url_search=search)
        assert text in unescape(client.get(f"/dashboards/{search}", headers=alice.headers).text)


def test_an_address_without_a_typo_has_no_message(alice: Browser) -> None:
    search = "?range=6h&refresh=off&tz=Asia/Tokyo&compare=7d&text=dgx&embed=1&utm_source=mail"
    assert "alert-warning" not in alice.fill(
        "page.children", url_pathname="/dashboards/", url_search=search
    )


def test_an_unavailable_store_is_reported_once_on_the_page_and_in_every_panel(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> None:
    client = served(sessions, LostStore(), cast, clock)  # type: ignore[arg-type]
    text = Browser(client, "alice").fill(
        "appliance-cpu.figure", appliance_path_data=appliance_path(fleet_of_three.first.id)
    )
    # Once on the page, and wrapped in ten charts.
    assert text.replace("<br>", " ").count(MESSAGE) == 11
    assert "Traceback" not in text


def test_the_findings_of_an_appliance_reach_its_page(
    alice: Browser, sessions: SessionFactory, fleet_of_three: Fleet
) -> None:
    finding = {"reason": "lost", "state": "failed", "detail": "The driver does not reach it."}
    with sessions.begin() as session:
        session.get_one(Appliance, fleet_of_three.first.id).health = {
            "state": "degraded",
            "gpus": [{"index": 1, "uuid": "GPU-a1", "state": "failed", "findings": [finding]}],
        }
    ident = fleet_of_three.first.id
    values = {"appliance_path_data": appliance_path(ident), "url_search": ""}
    text = alice.fill("appliance-health.children", **values)
    assert "The driver does not reach it." in text
    assert "out of service" in text
    path = gpu_path(ident, "1")
    text = alice.fill("gpu-health.children", gpu_path_data=path, url_search="")
    assert "The driver does not reach it." in text
    text = alice.fill("fleet-cards.children", **FLEET)
    assert "failed: lost" in text


def test_processes_and_topology_of_an_appliance_reach_its_page(
    alice: Browser, sessions: SessionFactory, fleet_of_three: Fleet
) -> None:
    job = {"owner": "job", "job": fleet_of_three.job.id}
    processes = [
        {"pid": 4711, "name": "python3", "gpu": 0, "uuid": "GPU-a0", "memory_bytes": 2**30, **job},
        {"pid": 4712, "name": "ollama", "gpu": 1, "uuid": "GPU-a1", "owner": "host"},
    ]
    path = {"first_index": 0, "second_index": 1, "kind": "NV17"}
    with sessions.begin() as session:
        appliance = session.get_one(Appliance, fleet_of_three.first.id)
        gpus = [
            gpu | {"pcie_width": 8, "pcie_width_max": 16, "pcie_generation_max": 5}
            for gpu in appliance.inventory["gpus"]
        ]
        appliance.inventory = {**appliance.inventory, "gpus": gpus, "gpu_paths": [path]}
        appliance.gpu_processes = processes
    values = {"appliance_path_data": appliance_path(fleet_of_three.first.id), "url_search": ""}
    answer = json.loads(alice.fill("appliance-processes.children", **values))["response"]
    (used, outside) = rows_of(answer["appliance-processes"])
    assert used == ["GPU 0", "4711", "python3", "train", "1 GiB"]
    assert outside == ["GPU 1", "4712", "ollama", "host outside of jobs", ABSENT]
    first, second = rows_of(answer["appliance-topology"])
    assert first == ["0", "X", "NV17", f"Gen 5 {TIMES}8 of {TIMES}16"]
    assert second[1:3] == ["NV17", "X"]
    with sessions.begin() as session:
        session.get_one(Appliance, fleet_of_three.first.id).gpu_processes = None
    text = alice.fill("appliance-processes.children", **values | {"url_search": "?range=6h"})
    assert "reports no GPU processes" in text


def test_a_refresh_sends_only_what_has_changed(
    alice: Browser, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    path = appliance_path(fleet_of_three.first.id)
    first = json.loads(alice.fill("appliance-cpu.figure", appliance_path_data=path))["response"]
    shown = {
        "appliance_path_data": path,
        "appliance_digests_data": first["appliance-digests"]["data"],
    }
    unchanged = json.loads(alice.fill("appliance-cpu.figure", **shown))["response"]
    assert unchanged.keys() == {"appliance-digests"}
    clock.advance(60)
    later = json.loads(alice.fill("appliance-cpu.figure", **shown))["response"]
    assert "appliance-cpu" in later
    assert "appliance-gpu-table" not in later


def test_a_callback_with_the_path_of_another_tier_returns_nothing(
    client: FlaskClient, alice: Browser, fleet_of_three: Fleet
) -> None:
    assert client
    path = job_path(fleet_of_three.job.id)
    assert alice.post("appliance-cpu.figure", appliance_path_data=path).status_code == 204


def test_viewers_with_the_same_rights_share_a_refresh_for_two_seconds(
    *,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    fleet_of_three: Fleet,
) -> None:
    counted = CountingStore(store)
    client = served(sessions, counted, cast, clock)  # type: ignore[arg-type]
    path = appliance_path(fleet_of_three.first.id)

    def asked_by(who: str, search: str = "") -> int:
        before = counted.asked
        Browser(client, who).fill(
            "appliance-cpu.figure", appliance_path_data=path, url_search=search
        )
        return counted.asked - before

    assert asked_by("alice") > 0
    assert asked_by("alice") == 0
    assert asked_by("olivia") > 0
    assert asked_by("alice", "?range=6h") > 0
    assert "There is no appliance" in Browser(client, "charlie").fill(
        "appliance-cpu.figure", appliance_path_data=path, url_search=""
    )
    clock.advance(2)
    assert asked_by("alice") > 0


def test_the_page_is_computed_while_the_browser_loads_its_scripts(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> None:
    counting = CountingStore(store)
    client = served(sessions, counting, cast, clock)  # type: ignore[arg-type] # what it queries
    path = appliance_path(fleet_of_three.first.id)
    client.get(f"{path}?range=15m", headers={USER_HEADER: "alice"})
    for thread in threading.enumerate():
        if thread.name == "prepare-dashboard":
            thread.join()
    assert counting.asked > 0
    counting.asked = 0
    values = {"appliance_path_data": path, "url_search": "?range=15m"}
    assert "dgx-01" not in Browser(client, "charlie").fill("appliance-header.children", **values)
    counting.asked = 0
    Browser(client, "alice").fill("appliance-header.children", **values)
    assert counting.asked == 0


def test_a_filter_of_the_fleet_applies_to_totals_and_charts(alice: Browser) -> None:
    def filled(text: str) -> dict[str, str]:
        answer = json.loads(
            alice.fill("fleet-cards.children", **FLEET | {"url_search": f"?text={quote(text)}"})
        )
        return {name: json.dumps(value) for name, value in answer["response"].items()}

    everything, matching, none = filled(""), filled("dgx-02"), filled("nothing like it")
    assert ">2 / 2<" in everything["fleet-totals"]
    assert ">1 / 1<" in matching["fleet-totals"]
    assert everything["fleet-power"] != matching["fleet-power"]
    assert ">0 / 0<" in none["fleet-totals"]
    for chart in ("fleet-heat", "fleet-power"):
        assert "No appliance matches the filter" in none[chart]
