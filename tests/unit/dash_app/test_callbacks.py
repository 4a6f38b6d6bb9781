"""The callbacks over HTTP, in requests with a scope."""

import json
import re
import threading
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from flask import Flask, request
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from core.clock import to_ns
from core.db import SessionFactory
from dash_app.app import create_dashboards
from dash_app.components import ABSENT
from dash_app.context import MAX_ENTRIES, SharedCache
from dash_app.pcie import TIMES
from dash_app.routes import appliance_path, gpu_path, job_path
from dash_app.shared_store import SharedStore
from dash_app.timerange import Controls, span_between
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.job_spec import JobKind
from tenants.models import Appliance
from tenants.scope import Scope
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.points import Point
from timeseries.store import Latest, LatestQuery, RangeQuery, Series, Store, write

USER_HEADER = "X-Test-User"
ROW, CELL = re.compile("<tr>(<td.*?)</tr>"), re.compile("<td[^>]*>(.*?)</td>")
TAG = re.compile("<[^>]*>")
PART = re.compile(r'<script id="(_dash-[a-z]+)" type="application/json">(.*?)</script>')


class Browser:
    """Calls callbacks by the id of one of their outputs, as Dash's script does."""

    def __init__(self, client: FlaskClient, who: str) -> None:
        self.client = client
        self.headers = {USER_HEADER: who}

    def fill(self, output: str, changed: str = "", **values: object) -> str:
        """Return the JSON response of the callback that writes `output`, as text."""
        response = self.post(output, changed, **values)
        assert response.status_code == 200, response.text
        return json.dumps(response.get_json())

    def post(self, output: str, changed: str = "", **values: object) -> TestResponse:
        """Call the callback that writes `output`."""
        callbacks = self.client.get(
            "/dashboards/_dash-dependencies", headers=self.headers
        ).get_json()
        entry = next(item for item in callbacks if output in item["output"])
        body = {
            "output": entry["output"],
            # Of components of any number, such as charts of a job's metrics, the page has none.
            "outputs": [
                []
                if part.startswith("{")
                else dict(zip(("id", "property"), part.rsplit(".", 1), strict=True))
                for part in entry["output"].strip(".").split("...")
            ],
            "inputs": [self._with_value(item, values) for item in entry["inputs"]],
            "state": [self._with_value(item, values) for item in entry["state"]],
            "changedPropIds": [changed] if changed else [],
        }
        return self.client.post(
            "/dashboards/_dash-update-component", json=body, headers=self.headers
        )

    @staticmethod
    def _with_value(item: dict[str, str], values: dict[str, object]) -> dict[str, object]:
        name = f"{item['id']}_{item['property']}".replace("-", "_")
        return {**item, "value": values.get(name)}


class CountingStore:
    """Counts the queries of another store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.asked += 1
        return self._store.query_range(query)

    def latest(self, query: LatestQuery) -> list[Latest]:
        self.asked += 1
        return self._store.latest(query)


def served(sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock) -> FlaskClient:
    users = {"alice": cast.alice, "charlie": cast.charlie, "olivia": cast.olivia}
    server = Flask("test")

    def scope_provider() -> Scope:
        return scope_of(users[request.headers[USER_HEADER]])

    create_dashboards(
        server,
        sessions=sessions,
        store=store,
        scope_provider=scope_provider,
        zone_provider=lambda: "UTC",
        render_shell=lambda title, parts: f"<h1>{title}</h1>" + "".join(parts.values()),
        clock=clock,
    )
    return server.test_client()


@pytest.fixture
def client(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> FlaskClient:
    assert fleet_of_three
    return served(sessions, store, cast, clock)


@pytest.fixture
def alice(client: FlaskClient) -> Browser:
    return Browser(client, "alice")


@pytest.fixture
def charlie(client: FlaskClient) -> Browser:
    return Browser(client, "charlie")


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


@pytest.mark.parametrize(
    ("search", "text"),
    [
        ("?rang=1h", "Unknown query parameter 'rang'. Did you mean 'range'?"),
        ("?range=1hh", "Invalid range '1hh'. Use 15m, 1h,"),
        ("?from=2026-11-22&to=2026-11-23", "Use milliseconds since 1970"),
        ("?tz=Europe/Olso", "Use a name such as"),
        ("?compare=gpu-9", "Invalid compare 'gpu-9'."),
        ("?txt=dgx", "Did you mean 'text'?"),
    ],
)
def test_an_address_with_a_typo_says_so_above_the_panels(
    client: FlaskClient, alice: Browser, search: str, text: str
) -> None:
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


def rows_of(area: dict[str, str]) -> list[list[str]]:
    """Return the text of each cell of a table's body."""
    return [
        [" ".join(unescape(TAG.sub(" ", cell)).split()) for cell in CELL.findall(row)]
        for row in ROW.findall(area["children"])
    ]


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


def test_a_gpu_is_compared_with_a_peer_and_an_appliance_with_the_period_before(
    alice: Browser, fleet_of_three: Fleet
) -> None:
    def names(output: str, path: str, compare: str) -> list[str]:
        values = {f"{output.partition('-')[0]}_path_data": path}
        search = f"?range=15m&compare={compare}"
        answer = alice.fill(f"{output}.figure", url_search=search, **values)
        figure = json.loads(answer)["response"][output]["figure"]
        return [line["name"] for line in figure["layout"]["meta"]["legend"]]

    ident = fleet_of_three.first.id
    assert names("gpu-power", gpu_path(ident, "0"), "gpu-1") == ["power", "power, GPU 1"]
    assert names("gpu-power", gpu_path(ident, "0"), "gpu-9") == ["power"]
    # The fixture's samples are ten minutes old at most.
    assert names("appliance-memory", appliance_path(ident), "previous") == ["used", "total"]


def test_a_job_is_compared_with_another_one_from_its_start_on(
    alice: Browser, sessions: SessionFactory, store: Store, fleet_of_three: Fleet, cast: Cast
) -> None:
    job = fleet_of_three.job
    started_at = job.started_at or NOON
    with sessions.begin() as session:
        other = Job(
            tenant_id=job.tenant_id,
            user_id=cast.bob.id,
            name="eval",
            kind=JobKind.BATCH,
            image="pytorch",
            gpus=1,
            memory_bytes=1,
            state=JobState.SUCCEEDED,
            submitted_at=started_at,
            queue_at=started_at,
            started_at=started_at + timedelta(minutes=4),
            finished_at=started_at + timedelta(minutes=6),
        )
        session.add(other)
        session.flush()
        attempt = {"tenant_id": job.tenant_id, "appliance_id": fleet_of_three.second.id}
        session.add(
            Attempt(
                job_id=other.id,
                number=1,
                state=AttemptState.SUCCEEDED,
                gpu_uuids=["GPU-b0"],
                bound_at=other.started_at,
                started_at=other.started_at,
                **attempt,
            )
        )
        time_ns = to_ns(started_at + timedelta(minutes=5))
    tags = {"gpu": "0", "uuid": "GPU-b0", "model": "H100", "job": other.id}
    sample = Point("gpu", tags, {"power_watts": 250.0}, time_ns)
    identity = {"tenant": job.tenant_id, "appliance": fleet_of_three.second.id}
    assert write(store, [sample], identity=identity) == []
    page = alice.fill("page.children", url_pathname=job_path(job.id), url_search="")
    assert f"compare=job%3A{other.id}" in page
    assert "Last 1 h" not in page

    def lines(compare: str) -> dict[str, list[object]]:
        values = {"job_path_data": job_path(job.id), "url_search": f"?compare={compare}"}
        answer = json.loads(alice.fill("job-attempt-memory_bytes.figure", **values))["response"]
        traces = answer["job-gpu-power_watts"]["figure"]["data"]
        return {trace["name"]: [trace["x"][0], trace["y"]] for trace in traces}

    assert lines("").keys() == {"GPU 0"}
    assert lines(f"job:{fleet_of_three.foreign_job.id}").keys() == {"GPU 0"}
    compared = lines(f"job:{other.id}")
    # Its sample a minute after its start is drawn a minute after the start of this job.
    expected = f"{started_at + timedelta(minutes=1):%Y-%m-%d %H:%M:%S}"
    assert compared["GPU 0, eval"] == [expected, [250.0]]


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


def test_a_failed_refresh_is_computed_again(clock: FrozenClock) -> None:
    cache = SharedCache(clock, ttl=timedelta(seconds=2))
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 7) == 7
    assert cache.get("key", lambda: 8) == 7


class CountedAnswers:
    asked = 0

    def query_range(self, _query: RangeQuery) -> list[Series]:
        self.asked += 1
        return [Series("x", {}, [0], [1.0])]


def test_the_first_minute_of_a_job_shows_new_samples_although_its_span_ends_later(
    clock: FrozenClock,
) -> None:
    counting = CountedAnswers()
    shared = SharedStore(counting, clock)  # type: ignore[arg-type] # the one method that it needs
    span = span_between(clock.now, clock.now)
    query = RangeQuery(
        measurement="gpu", fields=("x",), start_ns=span.start_ns, end_ns=span.end_ns, tenants=None
    )
    for _ in range(3):
        shared.query_range(query)
        clock.advance(5)
    assert counting.asked == 3


def test_viewers_share_the_answers_of_a_range_but_not_between_tenants(clock: FrozenClock) -> None:
    counting = CountedAnswers()
    shared = SharedStore(counting, clock)  # type: ignore[arg-type] # the one method that it needs
    second = 10**9
    end_ns = 2**20 * 2**33
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=end_ns - 3600 * second,
        end_ns=end_ns,
        step_ns=15 * second,
        tenants=("acme",),
    )
    for later_ns in (0, second, 5 * second):
        shared.query_range(replace(query, end_ns=end_ns + later_ns))
    assert counting.asked == 1
    shared.query_range(replace(query, end_ns=end_ns + 9 * second))
    shared.query_range(replace(query, tenants=("globex",)))
    shared.query_range(replace(query, tenants=None))
    assert counting.asked == 4
    clock.advance(60)
    shared.query_range(query)
    assert counting.asked == 5


def test_a_range_that_ends_in_the_future_shows_new_samples_in_it(
    store: Store, clock: FrozenClock
) -> None:
    shared = SharedStore(store, clock)
    second, began_ns = 10**9, to_ns(clock.now)
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=began_ns,
        end_ns=began_ns + 120 * second,
        step_ns=10 * second,
        tenants=("t",),
    )
    for _ in range(12):
        point = Point("gpu", {"gpu": "0"}, {"power_watts": 100.0}, to_ns(clock.now))
        write(store, [point], identity={"tenant": "t", "appliance": "a"})
        assert list(shared.query_range(query)) == store.query_range(query)
        clock.advance(10)


class WidthsStore(CountingStore):
    """Records the seconds that each range query spans."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.widths: list[float] = []

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.widths.append((query.end_ns - query.start_ns) / 10**9)
        return super().query_range(query)


def test_a_live_range_queries_only_its_newest_steps_and_misses_nothing(
    store: Store, clock: FrozenClock
) -> None:
    widths = WidthsStore(store)
    shared = SharedStore(widths, clock)  # type: ignore[arg-type] # the methods that it needs
    second = 10**9
    for turn in range(5):
        at_ns = to_ns(clock.now)
        # A GPU appears, another one leaves, and a sample is late.
        gpus = ("0", "1") if turn < 2 else ("1", "2")
        times = [*range(at_ns - 3600 * second, at_ns, 300 * second)] if turn == 0 else []
        late = [at_ns - 25 * second] if turn == 3 else []
        for time_ns in [*times, *late, at_ns - second]:
            power = {"power_watts": 100.0 + turn}
            points = [Point("gpu", {"gpu": gpu}, power, time_ns) for gpu in gpus]
            write(store, points, identity={"tenant": "t", "appliance": "a"})
        span = Controls.parse("?range=1h").span(clock.now)
        query = RangeQuery(
            measurement="gpu",
            fields=("power_watts",),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            step_ns=span.step_ns,
            tenants=("t",),
            group_by=("gpu",),
        )
        assert list(shared.query_range(query)) == store.query_range(query)
        clock.advance(11)
    assert [width >= 3600 for width in widths.widths] == [True, False, False, False, False]
    clock.advance(60)
    shared.query_range(replace(query, end_ns=to_ns(clock.now)))
    assert widths.widths[-1] >= 3600


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


def test_the_oldest_results_make_room_in_the_cache(clock: FrozenClock) -> None:
    cache = SharedCache(clock, ttl=timedelta(seconds=2))
    for number in range(MAX_ENTRIES + 1):
        cache.get(number, lambda number=number: number)  # type: ignore[misc] # bound now
    assert cache.get(MAX_ENTRIES, lambda: -1) == MAX_ENTRIES
    assert cache.get(0, lambda: -1) == -1


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
