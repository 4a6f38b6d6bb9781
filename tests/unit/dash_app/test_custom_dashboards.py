"""The data of custom dashboards: their panels over HTTP, within tenant and bounds."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from core.db import SessionFactory
from dash_app.custom import panels as custom_panels
from dash_app.custom.dashboards import DashboardRequest, create_dashboard
from dash_app.custom.panels import ChartKind, Panel
from dash_app.routes import custom_path, gpu_path
from dash_app.tiers import custom
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from tests.unit.dash_app.test_callbacks import USER_HEADER, served
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

    def refresh(self, ident: str, panels: tuple[Panel, ...], *, who: str = "alice") -> list[Any]:
        """Return the response: digests, message, whether it is hidden, then the panels in order."""
        headers = {USER_HEADER: who}
        known = self._client.get("/dashboards/_dash-dependencies", headers=headers).get_json()
        entry = next(one for one in known if "custom-digests" in one["output"])
        kinds = {"chart": "figure", "area": "children"}
        outputs: list[Any] = [
            {"id": "custom-digests", "property": "data"},
            {"id": "custom-problem", "property": "children"},
            {"id": "custom-body", "property": "hidden"},
        ]
        for part, name in kinds.items():
            places = [
                at for at, one in enumerate(panels) if (one.chart in AREAS) == (part == "area")
            ]
            ids = [{"tier": "custom", "part": part, "index": at} for at in places]
            outputs.append([{"id": ident, "property": name} for ident in ids])
        values = {"custom-path": custom_path(ident), "url": "?range=15m"}
        body = {
            "output": entry["output"],
            "outputs": outputs,
            "inputs": [{**one, "value": values.get(one["id"])} for one in entry["inputs"]],
            "state": entry["state"],
            "changedPropIds": [],
        }
        answer = self._client.post("/dashboards/_dash-update-component", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found = answer.get_json()["response"]
        shown: list[Any] = [found.get("custom-problem", {}).get("children")]
        for at, panel in enumerate(panels):
            part = "area" if panel.chart in AREAS else "chart"
            key = f'{{"index":{at},"part":"{part}","tier":"custom"}}'
            shown.append(found[key][kinds[part]])
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
    assert [one["name"] for one in band["layout"]["meta"]["legend"]] == names
    assert (bar["data"][0]["y"], bar["data"][0]["x"]) == (names, [400, 400, 100, 100])
    assert bar["data"][0]["customdata"][1].startswith(gpu_path(fleet_of_three.first.id, "1"))
    assert heatmap["data"][0]["y"] == names
    for area in (stat, table):
        assert "400 W" in str(area)
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
