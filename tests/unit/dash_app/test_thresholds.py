"""Thresholds of rules are drawn across the charts of what they watch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.orm import Session

from alerting.models import Rule
from alerting.states import Comparison
from core.db import SessionFactory
from dash_app.charts import Chart, Line, Threshold
from dash_app.figures import time_figure
from dash_app.queries.appliance import appliance_detail
from dash_app.queries.gpu import gpu_detail
from dash_app.timerange import Span
from tenants.models import Appliance, Tenant
from tests.cast import Cast, scope_of
from tests.unit.dash_app.conftest import Fleet
from timeseries.store import Store

HOT = "gpu-temperature_celsius"
HOT_RULE: Mapping[str, Any] = {
    "name": "GPU is hot",
    "measurement": "gpu",
    "field": "temperature_celsius",
    "aggregate": "avg",
    "window_seconds": 30.0,
    "comparison": Comparison.ABOVE,
    "warning_threshold": 75.0,
    "critical_threshold": 85.0,
}


@dataclass(frozen=True, slots=True)
class Desk:
    """Alice's desk: rules are added, and she looks at acme's first appliance."""

    sessions: SessionFactory
    session: Session
    store: Store
    cast: Cast
    appliance: Appliance
    span: Span

    def add_rule(self, tenant: Tenant, fields: Mapping[str, Any] | None = None) -> None:
        created_at = self.appliance.enrolled_at
        with self.sessions.begin() as session:
            values = {**HOT_RULE, **(fields or {})}
            session.add(Rule(tenant_id=tenant.id, created_at=created_at, **values))

    def charts(self) -> Mapping[str, Chart]:
        scope = scope_of(self.cast.alice)
        seen = appliance_detail(self.session, self.store, scope, self.appliance.id, span=self.span)
        return seen.charts

    def charts_of_gpu(self, index: str) -> Mapping[str, Chart]:
        scope, ident = scope_of(self.cast.alice), self.appliance.id
        seen = gpu_detail(self.session, self.store, scope, ident, index=index, span=self.span)
        return seen.charts


@pytest.fixture
def desk(request: pytest.FixtureRequest, cast: Cast, fleet_of_three: Fleet, span: Span) -> Desk:
    """Alice's desk, with no rule yet."""
    sessions, session, store = (
        request.getfixturevalue(name) for name in ("sessions", "session", "store")
    )
    return Desk(sessions, session, store, cast, fleet_of_three.first, span)


def test_both_thresholds_of_a_rule_are_on_its_chart_alone(desk: Desk) -> None:
    desk.add_rule(desk.cast.acme)
    charts = desk.charts()
    assert {key for key, chart in charts.items() if chart.thresholds} == {HOT}
    assert charts[HOT].thresholds == (
        Threshold(75.0, "GPU is hot > 75 °C"),
        Threshold(85.0, "GPU is hot > 85 °C", severity="critical"),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"is_enabled": False},
        {"aggregate": "count"},
        {"filters": {"appliance": ["another"]}},
        {"filters": {"gpu": ["0"]}},
    ],
)
def test_a_rule_that_does_not_hold_for_the_whole_chart_is_left_out(
    desk: Desk, fields: Mapping[str, Any]
) -> None:
    desk.add_rule(desk.cast.acme, fields)
    assert desk.charts()[HOT].thresholds == ()


def test_a_rule_on_one_gpu_has_thresholds_on_that_gpu_alone(desk: Desk) -> None:
    desk.add_rule(desk.cast.acme, {"filters": {"gpu": ["1"]}})
    counts = [len(desk.charts_of_gpu(index)["temperature"].thresholds) for index in ("0", "1")]
    assert counts == [0, 2]


def test_alice_sees_no_threshold_of_globex(desk: Desk) -> None:
    desk.add_rule(desk.cast.globex)
    assert desk.charts()[HOT].thresholds == ()


def test_a_threshold_has_the_unit_of_the_axis_and_is_left_out_beyond_it(span: Span) -> None:
    times_ns = [span.start_ns, span.start_ns + span.step_ns]
    line = Line(name="power", times_ns=times_ns, values=[4000.0, 5000.0], color=0)
    chart = Chart(
        field="power_watts",
        lines=(line,),
        thresholds=(Threshold(4500.0, "near"), Threshold(90_000.0, "far")),
    )
    layout = time_figure(chart, span, revision="r")["layout"]
    assert [(shape["y0"], shape["name"]) for shape in layout["shapes"]] == [(4.5, "near")]
    assert [threshold["name"] for threshold in layout["meta"]["thresholds"]] == ["near"]


def test_labels_of_thresholds_are_below_the_chart_however_close_they_are(span: Span) -> None:
    times_ns = [span.start_ns, span.start_ns + span.step_ns]
    line = Line(name="use", times_ns=times_ns, values=[10.0, 50.0], color=0)
    chart = Chart(
        field="utilization_percent",
        lines=(line,),
        thresholds=(
            Threshold(50.0, "warm"),
            Threshold(51.0, "hot", severity="critical"),
            Threshold(99.0, "x" * 54),
        ),
    )
    layout = time_figure(chart, span, revision="r")["layout"]
    warning, critical = "#d9a300", "#dc3545"
    assert layout["meta"]["thresholds"] == [
        {"name": "x" * 54, "color": warning},
        {"name": "hot", "color": critical},
        {"name": "warm", "color": warning},
    ]
    # Text in the plot would cover the data.
    assert not any("label" in shape for shape in layout["shapes"])
