"""Custom dashboards: panels that a user chose."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from core.errors import UnavailableError
from dash_app import components
from dash_app.axes import Figure
from dash_app.bars import RankedBar, bar_figure
from dash_app.components import PANEL_ACTIONS, attributes, framed, graph, labeled, stat
from dash_app.context import Dashboard, Page, View
from dash_app.custom.dashboards import ITEMS, get_dashboard
from dash_app.custom.models import CustomDashboard
from dash_app.custom.panels import MAX_PANELS, ChartKind, Panel
from dash_app.custom.scales import severity_of
from dash_app.custom.variables import resolved
from dash_app.figures import (
    LOADING,
    NO_SAMPLES,
    heat_figure,
    message_figure,
    natural_order,
    time_figure,
)
from dash_app.notes import Note
from dash_app.queries.custom import Key, PanelQuery, Ranked, field_text
from dash_app.queries.fleet_charts import Heat, Metric, heat_span
from dash_app.queries.telemetry import Telemetry
from dash_app.queries.variables import choices_of, in_places, located_appliances
from dash_app.routes import appliance_path, gpu_path
from tenants.permissions import Permission
from timeseries.store import APPLIANCE_TAG

# The limits of one tenant: each refresh takes a thread of the portal and a core of the store.
MAX_CONCURRENT = 2
MAX_SECONDS = 10.0
BUSY = (
    "Your tenant's custom dashboards take too long to refresh. Choose a shorter time range, or a "
    "longer refresh interval."
)
SKIPPED = "Skipped: the panels before it took too long.\nUse fewer panels or a shorter range."
# Panels that are tables or tiles instead of charts.
_AREAS = frozenset({ChartKind.STAT, ChartKind.TABLE})
LIST_PATH = "/custom-dashboards"


def layout(view: View) -> Page:
    """Return the page of a dashboard."""
    dashboard = get_dashboard(view.session, view.scope, view.route.ident)
    panels = dashboard.panel_list
    is_changeable = ITEMS.may_change(view.scope, dashboard)
    body = [
        _head(dashboard, view, is_changeable=is_changeable, is_full=len(panels) >= MAX_PANELS),
        html.Div(
            [
                _panel(panel, number, dashboard.id if is_changeable else "")
                for number, panel in enumerate(panels)
            ],
            className=f"vdd-panels vdd-custom{' is-changeable' if is_changeable else ''}",
            **attributes({"data-dashboard": dashboard.id}),
        ),
    ]
    if not panels:
        label, href = ("Add panel", f"{LIST_PATH}/{dashboard.id}/panels/new")
        if not is_changeable:
            label, href = ("Custom dashboards", LIST_PATH)
        text = "A panel shows a metric as lines, bars, a heat map, a table or a number."
        body.append(components.empty_state("No panels yet", text, label=label, href=href))
    crumbs = (("Custom dashboards", LIST_PATH),)
    choices = choices_of(view, panels, located_appliances(view))
    return Page(title=dashboard.name, crumbs=crumbs, body=body, choices=choices)


def refresh(view: View) -> dict[str, Any]:
    """Return the data of the panels, as long as they take their turn's time."""
    dashboard = get_dashboard(view.session, view.scope, view.route.ident)
    panels = dashboard.panel_list
    with view.custom.running(dashboard.tenant_id or "") as is_admitted:
        if not is_admitted:
            return {"problem": components.warning(BUSY)}
        return _refreshed(view, panels)


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=(),
    panels=(),
    parts={"chart": "figure", "area": "children"},
    is_personal=True,
)


def _refreshed(view: View, panels: Sequence[Panel]) -> dict[str, Any]:
    appliances = located_appliances(view)
    names = {ident: appliance.name for ident, appliance in appliances.items()}
    telemetry = Telemetry(view.store, view.scope, view.span)
    until = time.monotonic() + MAX_SECONDS
    data: dict[str, Any] = {}
    for number, panel in enumerate(panels):
        if time.monotonic() > until:
            shown: Any = message_figure(SKIPPED)
            if panel.chart in _AREAS:
                shown = html.P(SKIPPED, className="vdd-muted")
        else:
            wanted = resolved(panel, view.controls.choices)
            try:
                wanted = in_places(wanted, appliances, view.store, view.scope.tenants)
            except UnavailableError as error:
                telemetry.problem = telemetry.problem or error.message
            shown = _shown(view, PanelQuery(telemetry, view.span, wanted, names))
        data[f"{'area' if panel.chart in _AREAS else 'chart'}.{number}"] = shown
    return data | {"problem": components.warning(telemetry.problem)}


def _shown(view: View, query: PanelQuery) -> Any:  # noqa: ANN401 - a figure or a component
    panel, ranked = query.panel, query.ranked()
    if query.telemetry.problem:
        is_area = panel.chart in _AREAS
        text = query.telemetry.problem
        return html.P(text, className="vdd-muted") if is_area else message_figure(text)
    revision = f"{view.route.ident}:{view.controls.time_key}"
    match panel.chart:
        case ChartKind.STAT:
            return _tiles(query, ranked)
        case ChartKind.TABLE:
            return _table(view, query, ranked)
        case ChartKind.BAR:
            figure = bar_figure(_bars(view, query, ranked), query.scale(), revision=revision)
        case ChartKind.HEATMAP:
            figure = _heat(view, query, ranked, revision=revision)
        case _:
            chart = query.chart(ranked)
            compared = view.compared({"": chart}, lambda span: {"": query.chart(ranked, span)})
            figure = time_figure(compared[""], view.span, revision=revision)
    layout = figure["layout"]
    layout["meta"] = layout.get("meta", {}) | {"note": _note_text(panel, ranked)}
    return figure


def _tiles(query: PanelQuery, ranked: Ranked) -> Any:  # noqa: ANN401 - a Dash component
    tiles = [
        _tile(query, query.label(key, name), name, values.get(name))
        for key, values in ranked.rows.items()
        for name in query.panel.fields
    ]
    if not tiles:
        return html.P(NO_SAMPLES, className="vdd-muted")
    return [html.Div(tiles, className="vdd-stats"), _note(query.panel, ranked)]


def _tile(query: PanelQuery, label: str, name: str, value: float | None) -> Any:  # noqa: ANN401 - a component
    severity = severity_of(value, query.panel.thresholds)
    return stat(label, _text(query.panel, name, value), note=severity or "", tone=severity or "")


def _figure(panel: Panel, name: str, value: float | None) -> Any:  # noqa: ANN401 - a component
    text, severity = _text(panel, name, value), severity_of(value, panel.thresholds)
    return html.Span(text, className=f"is-{severity}", title=severity) if severity else text


def _table(view: View, query: PanelQuery, ranked: Ranked) -> Any:  # noqa: ANN401 - a component
    panel = query.panel
    rows = [
        [
            *[_cell(view, query, key, at) for at in range(len(key))],
            *[_figure(panel, name, values.get(name)) for name in panel.fields],
        ]
        for key, values in ranked.rows.items()
    ]
    headings = (*panel.group_by, *[field_text(name) for name in panel.fields])
    table = components.table(headings, rows, empty=NO_SAMPLES, figures=len(panel.fields))
    return [table, _note(panel, ranked)]


def _cell(view: View, query: PanelQuery, key: Key, at: int) -> Any:  # noqa: ANN401 - a component
    tag = query.panel.group_by[at]
    text = query.appliances.get(key[at], key[at]) if tag == APPLIANCE_TAG else key[at]
    href = _href(view, query.panel, key)
    return dcc.Link(text, href=href) if href and tag in {APPLIANCE_TAG, "gpu"} else text


def _bars(view: View, query: PanelQuery, ranked: Ranked) -> list[RankedBar]:
    return [
        RankedBar(
            query.label(key, name),
            values[name],
            color=at,
            href=_href(view, query.panel, key),
        )
        for key, values in ranked.rows.items()
        for at, name in enumerate(query.panel.fields)
        if name in values
    ]


def _heat(view: View, query: PanelQuery, ranked: Ranked, *, revision: str) -> Figure:
    chart = query.heat_rows(ranked)
    lines = sorted(chart.lines, key=lambda line: natural_order(line.name))
    values = [value for line in lines for value in line.values]
    low, high = query.panel.axis_min, query.panel.axis_max
    if low is None:
        low = min([0.0, *values])
    if high is None:
        high = 100.0 if chart.field.endswith("_percent") else max(values, default=1.0)
    links = {
        query.label(key, name): _href(view, query.panel, key)
        for key in ranked.rows
        for name in query.panel.fields
    }
    return heat_figure(
        Heat(replace(chart, lines=tuple(lines)), links),
        heat_span(view.span),
        metric=Metric("", chart.field, low, high),
        search="",
        revision=revision,
    )


def _href(view: View, panel: Panel, key: Key) -> str:
    """Return the address of the appliance, or of the GPU, that a group is about."""
    tags = dict(zip(panel.group_by, key, strict=True))
    appliance = tags.get(APPLIANCE_TAG)
    if not appliance:
        return ""
    gpu = tags.get("gpu")
    path = gpu_path(appliance, gpu) if gpu else appliance_path(appliance)
    return f"{path}{view.controls.search}"


def _text(panel: Panel, name: str, value: float | None) -> str:
    return components.value_text(panel.unit_field(name), value)


def _note(panel: Panel, ranked: Ranked) -> Any:  # noqa: ANN401 - a Dash component
    return html.P(_note_text(panel, ranked))


def _note_text(panel: Panel, ranked: Ranked) -> str:
    """Return of what the values are, unless a legend says so, and how many series are left out."""
    is_of_range = panel.chart in {*_AREAS, ChartKind.BAR} and ranked.rows
    of_range = f"{panel.aggregate} of all samples in the range" if is_of_range else ""
    return " · ".join(filter(None, (of_range, ranked.note)))


def _head(dashboard: CustomDashboard, view: View, *, is_changeable: bool, is_full: bool) -> Any:  # noqa: ANN401 - a Dash component
    path = f"{LIST_PATH}/{dashboard.id}"
    author = dashboard.user.name if dashboard.user else "a deleted user"
    facts = [f"Shared by {author}" if dashboard.is_shared else "Private", dashboard.description]
    links = {"Export": f"{LIST_PATH}/export?id={dashboard.id}"}
    if view.scope.allows(Permission.EDIT_DASHBOARDS):
        links = {"Copy": f"{LIST_PATH}/new?copy={dashboard.id}", **links}
    if is_changeable:
        links = {"Settings": f"{path}/edit", **links}
        if not is_full:
            links = {"Add panel": f"{path}/panels/new", **links}
    buttons = [
        html.A(
            text,
            href=href,
            className=f"btn btn-sm btn-{'primary' if text == 'Add panel' else 'outline-secondary'}",
        )
        for text, href in links.items()
    ]
    return html.Div(
        [
            html.Span(" · ".join(filter(None, facts)), className="vdd-facts"),
            html.Div(buttons, className="vdd-header-link vd-actions"),
        ],
        className="vdd-header",
    )


def _panel(panel: Panel, number: int, changeable_id: str) -> Any:  # noqa: ANN401 - a component
    is_area = panel.chart in _AREAS
    has_own_time = panel.chart is ChartKind.BAR
    ident = {"tier": "custom", "part": "area" if is_area else "chart", "index": number}
    actions = PANEL_ACTIONS
    content = graph(ident, has_own_time=has_own_time)
    if is_area:
        # It scrolls where it is high.
        region: dict[str, Any] = {"tabIndex": "0", "role": "region", **labeled(panel.title)}
        content = [html.Div(LOADING, id=ident, className="vdd-area", **region)]
        actions = {"full": "Full screen", "csv": "Download CSV"}
    names = [
        "vdd-panel",
        "has-own-time" if has_own_time else "",
        "is-wide" if panel.is_wide else "",
    ]
    return framed(
        content,
        panel.title,
        Note(_query_text(panel), f"{panel.measurement}.{panel.fields[0]}"),
        class_name=" ".join(filter(None, names)),
        actions=actions,
        extra_items=_changes(changeable_id, number) if changeable_id else (),
    )


def _changes(dashboard_id: str, number: int) -> list[Any]:
    buttons = {"earlier": "Move back", "later": "Move forward", "copy": "Copy", "remove": "Remove"}
    return [
        html.Hr(className="dropdown-divider"),
        html.A(
            "Edit panel",
            href=f"{LIST_PATH}/{dashboard_id}/panels/{number}",
            className="dropdown-item",
        ),
        *[
            html.Button(
                label,
                type="button",
                className="dropdown-item",
                **attributes({"data-vdd-change": change, "data-index": str(number)}),
            )
            for change, label in buttons.items()
        ],
    ]


def _query_text(panel: Panel) -> str:
    """Return what a panel shows, as text such as `avg(gpu.power_watts) by appliance`."""
    metrics = ", ".join(f"{panel.measurement}.{name}" for name in panel.fields)
    by = f" by {', '.join(panel.group_by)}" if panel.group_by else ""
    filters = "; ".join(f"{tag} = {', '.join(values)}" for tag, values in panel.filters.items())
    return f"{panel.aggregate}({metrics}){by}{f' where {filters}' if filters else ''}"
