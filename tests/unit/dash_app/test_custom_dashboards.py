"""The data of custom dashboards: their panels over HTTP, within tenant and bounds."""

import threading
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient

from alerting.states import Comparison, Severity
from core.db import SessionFactory
from dash_app.context import View
from dash_app.custom import panels as custom_panels
from dash_app.custom.dashboards import (
    DashboardRequest,
    create_dashboard,
    request_errors,
)
from dash_app.custom.panels import ChartKind, Panel, load_panels
from dash_app.custom.scales import PanelThreshold
from dash_app.queries.variables import Located, located_appliances
from dash_app.routes import custom_path, gpu_path
from dash_app.tiers import custom
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.dash_app.browsing import USER_HEADER, served
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.store import Aggregate, Store

AREAS = (ChartKind.STAT, ChartKind.TABLE)
GPU: dict[str, Any] = {
    "measurement": "gpu",
    "fields": ["power_watts"],
    "group_by": ["appliance", "gpu"],
}


class Dashboards:
    """Makes dashboards of alice and refreshes them over HTTP."""

    def __init__(
        self, sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
    ) -> None:
        self._sessions, self._cast, self._clock = sessions, cast, clock
        self._client: FlaskClient = served(sessions, store, cast, clock)

    def create(self, *panels: Panel, is_shared: bool = False) -> str:
        request = DashboardRequest(name="Mine", panels=panels, is_shared=is_shared)
        with self._sessions.begin() as session:
            scope = scope_of(self._cast.alice)
            return create_dashboard(session, scope, request, now=self._clock.now).id

    def page(self, ident: str, search: str = "") -> str:
        """Return the HTML of alice's page, with its layout."""
        address = f"{custom_path(ident)}{search}"
        return unescape(self._client.get(address, headers={USER_HEADER: "alice"}).text)

    def refresh(
        self,
        ident: str,
        panels: tuple[Panel, ...],
        *,
        who: str = "alice",
        search: str = "?range=15m",
    ) -> list[Any]:
        """Return the response: digests, message, whether it is hidden, then the panels in order."""
        headers = {USER_HEADER: who}
        callbacks = self._client.get("/dashboards/_dash-dependencies", headers=headers).get_json()
        entry = next(callback for callback in callbacks if "custom-digests" in callback["output"])
        kinds = {"chart": "figure", "area": "children"}
        outputs: list[Any] = [
            {"id": "custom-digests", "property": "data"},
            {"id": "custom-problem", "property": "children"},
            {"id": "custom-body", "property": "hidden"},
        ]
        for part, name in kinds.items():
            places = [
                at for at, panel in enumerate(panels) if (panel.chart in AREAS) == (part == "area")
            ]
            ids = [{"tier": "custom", "part": part, "index": at} for at in places]
            outputs.append([{"id": ident, "property": name} for ident in ids])
        values = {"custom-path": custom_path(ident), "url": search}
        body = {
            "output": entry["output"],
            "outputs": outputs,
            "inputs": [
                {**dependency, "value": values.get(dependency["id"])}
                for dependency in entry["inputs"]
            ],
            "state": entry["state"],
            "changedPropIds": [],
        }
        answer = self._client.post("/dashboards/_dash-update-component", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        response = answer.get_json()["response"]
        shown: list[Any] = [response.get("custom-problem", {}).get("children")]
        for at, panel in enumerate(panels):
            part = "area" if panel.chart in AREAS else "chart"
            key = f'{{"index":{at},"part":"{part}","tier":"custom"}}'
            shown.append(response[key][kinds[part]])
        return shown


@pytest.fixture
def dashboards(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> Dashboards:
    assert fleet_of_three
    return Dashboards(sessions, store, cast, clock)


def test_each_kind_of_panel_shows_the_tenants_series(
    dashboards: Dashboards, fleet_of_three: Fleet
) -> None:
    panels = tuple(Panel(title=kind, chart=kind, **GPU) for kind in ChartKind)
    problem, *shown = dashboards.refresh(dashboards.create(*panels), panels)
    assert problem is None
    line, band, bar, stat, heatmap, table = shown
    names = ["dgx-01 · GPU 0", "dgx-01 · GPU 1", "dgx-02 · GPU 0", "dgx-02 · GPU 1"]
    assert [trace["name"] for trace in line["data"]] == names
    # 80 % and 20 % of use are 400 and 100 W.
    assert {round(value) for trace in line["data"] for value in trace["y"]} == {400, 100}
    assert [entry["name"] for entry in band["layout"]["meta"]["legend"]] == names
    assert (bar["data"][0]["y"], bar["data"][0]["x"]) == (names, [400, 400, 100, 100])
    assert bar["data"][0]["customdata"][1].startswith(gpu_path(fleet_of_three.first.id, "1"))
    assert heatmap["data"][0]["y"] == names
    of_range = "avg of all samples in the range"
    assert [figure["layout"]["meta"]["note"] for figure in (bar, line, heatmap)] == [
        of_range,
        "",
        "",
    ]
    for area in (stat, table):
        assert "400 W" in str(area)
        assert of_range in str(area)
        assert "globex" not in str(area)


def test_a_panel_filters_by_the_appliances_name_and_aggregates(dashboards: Dashboards) -> None:
    panels = (
        Panel(
            title="Two units",
            chart=ChartKind.TABLE,
            measurement="gpu",
            fields=["power_watts", "temperature_celsius"],
            aggregate=Aggregate.MAX,
            filters={"appliance": ["dgx-02"]},
        ),
        Panel(title="Samples", chart=ChartKind.STAT, aggregate=Aggregate.COUNT, **GPU),
    )
    _, table, stat = dashboards.refresh(dashboards.create(*panels), panels)
    assert "100 W" in str(table)
    assert "60 °C" in str(table)
    assert "400 W" not in str(table)
    assert "'60'" in str(stat)


def test_the_series_with_the_greatest_values_are_shown(
    dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = dict.fromkeys(ChartKind, 1)
    monkeypatch.setattr(custom_panels, "MAX_SERIES", bounds)
    monkeypatch.setattr("dash_app.queries.custom.MAX_SERIES", bounds)
    panels = (Panel(title="Power", **GPU),)
    _, line = dashboards.refresh(dashboards.create(*panels), panels)
    assert [trace["name"] for trace in line["data"]] == ["dgx-01 · GPU 0"]
    assert "4" in line["layout"]["meta"]["note"]


def test_another_tenants_user_and_a_busy_tenant_get_no_data(
    *,
    dashboards: Dashboards,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    panels = (Panel(title="Power", **GPU),)
    ident = dashboards.create(*panels, is_shared=True)
    assert "400" not in str(dashboards.refresh(ident, (), who="charlie"))
    monkeypatch.setattr(custom, "MAX_SECONDS", -1.0)
    _, late = dashboards.refresh(ident, panels)
    assert late["data"] == []
    monkeypatch.setattr(custom, "MAX_CONCURRENT", 0)
    busy = Dashboards(sessions, store, cast, clock)
    assert custom.BUSY in str(busy.refresh(ident, ()))


def test_a_store_that_is_down_is_one_message(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    dashboards = Dashboards(sessions, LostStore(), cast, clock)  # type: ignore[arg-type]
    panels = (Panel(title="Power", **GPU), Panel(title="Table", chart=ChartKind.TABLE, **GPU))
    problem, line, table = dashboards.refresh(dashboards.create(*panels), panels)
    assert MESSAGE in str(problem)
    assert MESSAGE in str(line["layout"]["annotations"]).replace("<br>", " ")
    assert MESSAGE in str(table)


def test_a_panel_has_its_own_unit_limits_and_thresholds(dashboards: Dashboards) -> None:
    hot = PanelThreshold(value=450, severity=Severity.CRITICAL, label="Too much")
    low = PanelThreshold(value=150, comparison=Comparison.BELOW)
    own: dict[str, Any] = {**GPU, "unit": "tokens/s", "thresholds": [hot, low]}
    limits: dict[str, Any] = {"axis_min": 50.0, "axis_max": 500.0}
    panels = (
        Panel(title="Line", **own, **limits),
        Panel(title="Bar", chart=ChartKind.BAR, **own),
        Panel(title="Heat", chart=ChartKind.HEATMAP, **GPU, **limits),
        Panel(title="Stat", chart=ChartKind.STAT, **own),
        Panel(title="Table", chart=ChartKind.TABLE, **own),
    )
    _, line, bar, heat, stat, table = dashboards.refresh(dashboards.create(*panels), panels)
    assert line["layout"]["yaxis"]["range"] == [50, 500]
    assert line["layout"]["meta"]["unit"] == "tokens/s"
    drawn = ["Too much > 450 tokens/s", "< 150 tokens/s"]
    for figure in (line, bar):
        assert [threshold["name"] for threshold in figure["layout"]["meta"]["thresholds"]] == drawn
    # The axis of the bars reaches the threshold above all values.
    assert bar["layout"]["xaxis"]["range"][1] > 450
    assert heat["layout"]["meta"]["scale"] == ["50 W", "500 W"]
    # 400 is between both, 100 is below the lower.
    for area in (stat, table):
        assert str(area).count("is-warning") == 2
        assert "is-critical" not in str(area)
        assert "400 tokens/s" in str(area)


def test_pages_that_are_prepared_take_no_turn_of_a_viewer(
    dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels = (Panel(title="Power", chart=ChartKind.LINE, **GPU),)
    ident = dashboards.create(*panels)
    threads = list[threading.Thread]()
    started, is_viewed = threading.Semaphore(0), threading.Event()

    def slow(view: View) -> dict[str, Located]:
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            threads.append(thread)
            started.release()
            is_viewed.wait(60)
        return located_appliances(view)

    monkeypatch.setattr(custom, "located_appliances", slow)
    try:
        for time_range in ("1h", "6h"):
            assert "Mine" in dashboards.page(ident, f"?range={time_range}")
            assert started.acquire(timeout=60)
        problem, line = dashboards.refresh(ident, panels)
    finally:
        is_viewed.set()
        for thread in threads:
            thread.join()
    assert problem is None
    assert len(line["data"]) == 4


def test_variables_are_chosen_in_the_toolbar_and_filter_all_panels(
    dashboards: Dashboards, fleet_of_three: Fleet, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        session.add(fleet_of_three.second)
        fleet_of_three.second.site = "Porto"
    panels = tuple(
        Panel(
            title=chart,
            chart=chart,
            **GPU,
            filters={"appliance": ["$appliance"], "gpu": ["$gpu"], "site": ["$site"]},
        )
        for chart in (ChartKind.LINE, ChartKind.BAR)
    )
    ident = dashboards.create(*panels)
    page = dashboards.page(ident, "?var-gpu=1")
    for text in ("appliance: All", "gpu: 1", "site: All", "var-appliance=dgx-02", "Porto"):
        assert text in page, text
    assert "globex" not in page
    assert "Unknown query parameter" not in page
    assert "Did you mean 'var-gpu'" in dashboards.page(ident, "?var-gpuu=1")

    def shown(search: str) -> tuple[str, ...]:
        _, line, bar = dashboards.refresh(ident, panels, search=f"?range=15m&{search}")
        names = tuple(trace["name"] for trace in line["data"])
        assert set(bar["data"][0]["y"] if bar["data"] else ()) == set(names)
        return names

    everything = ("dgx-01 · GPU 0", "dgx-01 · GPU 1", "dgx-02 · GPU 0", "dgx-02 · GPU 1")
    assert shown("") == everything
    assert shown("var-gpu=1") == everything[1::2]
    assert shown("var-appliance=dgx-02&var-gpu=0") == ("dgx-02 · GPU 0",)
    assert shown("var-site=Porto") == everything[2:]
    assert shown("var-site=Porto&var-appliance=dgx-01") == ()
    assert shown("var-appliance=globex-01") == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"unit": "x" * 17}, "unit"),
        ({"unit": "[W]"}, "unit"),
        ({"axis_min": 5.0, "axis_max": 5.0}, "axis_max"),
        ({"axis_min": float("nan")}, "axis_min"),
        ({"axis_max": 1.0, "chart": ChartKind.TABLE}, "axis_max"),
        ({"thresholds": [PanelThreshold(value=1)] * 9}, "thresholds"),
        ({"thresholds": [PanelThreshold(value=float("inf"))]}, "thresholds"),
        ({"thresholds": [PanelThreshold(value=1, label="x" * 61)]}, "thresholds"),
        ({"thresholds": [PanelThreshold(value=1)], "chart": ChartKind.HEATMAP}, "thresholds"),
        ({"filters": {"gpu": ["$GPU"]}}, "filters"),
        ({"filters": {"gpu": ["$gpu", "1"]}}, "filters"),
        ({"filters": {"gpu": ["$appliance"]}}, "filters"),
    ],
)
def test_an_error_names_the_panel_and_the_field(change: dict[str, Any], field: str) -> None:
    first = Panel(title="Power", **GPU, filters={"appliance": ["$appliance"]})
    request = DashboardRequest(name="Mine", panels=[first, replace(first, **change)])
    assert request_errors(request).keys() == {f"panels.1.{field}"}


def test_variables_are_bounded() -> None:
    panels = [Panel(title="Power", **GPU, filters={tag: [f"$v{tag}"]}) for tag in "abcdefg"]
    assert request_errors(DashboardRequest(name="Mine", panels=panels)).keys() == {"panels"}


def test_panels_of_before_units_and_thresholds_are_read() -> None:
    stored = {"title": "Power", "measurement": "gpu", "fields": ["power_watts"]}
    (panel,) = load_panels([stored])
    assert (panel.unit, panel.axis_min, list(panel.thresholds)) == ("", None, [])
