"""Building blocks of the dashboards: panels, stat tiles, meters, GPU tiles, messages."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from core.units import format_value
from dash_app.figures import LOADING, message_figure
from dash_app.routes import PREFIX
from dash_app.timerange import RANGES, Controls

Component = Any

ABSENT = "—"
# Shades of a GPU tile; `assets/dashboards.css` has one class for each.
SHADES = 10
_HIGH_PERCENT = 90
_UNSPOKEN: dict[str, Any] = {"aria-hidden": "true"}
_GRAPH_CONFIG: Any = {
    "displaylogo": False,
    # Plotly would offer to upload the chart to its own cloud.
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displayModeBar": "hover",
    "responsive": True,
    # `dashboards.js` takes a double click for the way out of a window.
    "doubleClick": False,
    "showTips": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "resetScale2d", "toImage"],
}


def panel(ident: str, title: str, *, classes: str = "") -> Component:
    """Return a panel with an empty graph `ident`; its axis carries the unit."""
    return html.Section(
        [
            html.H2(title),
            dcc.Graph(
                id=ident,
                figure=message_figure(LOADING),
                config=_GRAPH_CONFIG,
                className="vdd-graph",
                responsive=True,
            ),
        ],
        className=f"vdd-panel {classes}".strip(),
    )


def stat(
    label: str,
    value: str,
    *,
    note: Component = "",
    percent: float | None = None,
    warns: bool = False,
) -> Component:
    """Return a tile with one figure, what it is of, and a meter where it is a share."""
    return html.Div(
        [
            html.Div(label, className="vdd-stat-label"),
            html.Div(value, className="vdd-stat-value"),
            html.Div(note, className="vdd-stat-note"),
            bar(percent, warns=warns) if percent is not None else None,
        ],
        className="vdd-stat",
    )


def bar(percent: float | None, *, warns: bool = True) -> Component:
    """Return a thin horizontal meter; nothing fills it when there is no reading."""
    width = 0.0 if percent is None else min(100.0, max(0.0, percent))
    tone = " is-high" if warns and width >= _HIGH_PERCENT else ""
    fill = html.Div(className=f"vdd-meter-fill{tone}", style={"width": f"{width:.1f}%"})
    return html.Div(fill, className="vdd-meter-track")


def meter(label: str, percent: float | None, *, title: str = "", warns: bool = True) -> Component:
    """Return a labelled meter; `warns` is off where high use is what one hopes for."""
    return html.Div(
        [
            html.Span(label, className="vdd-meter-label"),
            bar(percent, warns=warns),
            html.Span(percent_text(percent), className="vdd-meter-figure"),
        ],
        className="vdd-meter",
        title=title or None,
    )


def percent_text(percent: float | None) -> str:
    """Return a percentage without decimals, or a dash."""
    return ABSENT if percent is None else f"{percent:.0f} %"


def value_text(field: str, value: float | None) -> str:
    """Return a reading with its unit, or a dash."""
    return ABSENT if value is None else format_value(field, value)


def shade(percent: float | None) -> str:
    """Return the class that colours a tile by utilisation."""
    if percent is None:
        return "vdd-shade-none"
    return f"vdd-shade-{min(SHADES, max(0, round(percent / 100 * SHADES)))}"


def state_dot(state: str) -> Component:
    """Return the coloured dot of an appliance's state, readable without colour too."""
    return html.Span(className=f"vdd-dot is-{state}", title=state, role="img")


def badge(text: str, *, tone: str = "secondary") -> Component:
    """Return a small label in one of Bootstrap's subtle tones."""
    return html.Span(
        text, className=f"badge bg-{tone}-subtle text-{tone}-emphasis fw-medium vdd-badge"
    )


def breadcrumbs(crumbs: Sequence[tuple[str, str]], title: str) -> Component:
    """Return the way up and the page's heading."""
    links = [
        html.Li(
            dcc.Link(label, href=href) if href.startswith(PREFIX) else html.A(label, href=href),
            className="breadcrumb-item",
        )
        for label, href in crumbs
    ]
    return html.Div(
        [
            html.Nav(html.Ol(links, className="breadcrumb")) if links else None,
            html.H1(title, className="vdd-title"),
        ]
    )


def window_note(controls: Controls, path: str) -> Component | None:
    """Return the window that is shown, with the way back to the range that moves on."""
    if controls.window is None:
        return None
    back = f"Back to the last {RANGES[controls.range_key][0]}"
    return dcc.Link(
        [
            controls.window_words,
            html.Span(back, className="visually-hidden"),
            html.I(className="bi bi-x-lg", **_UNSPOKEN),
        ],
        href=f"{path}{controls.moving().search}",
        title=back,
        className="vdd-window",
    )


def problem_note(text: str) -> Component | None:
    """Return the bar that says what is wrong with the whole page, or nothing."""
    return html.Div(text, className="alert alert-warning", role="alert") if text else None


def empty_state(title: str, text: str, *, label: str, href: str) -> Component:
    """Return a friendly panel with one way on."""
    link = dcc.Link if href.startswith(PREFIX) else html.A
    return html.Div(
        [
            html.H2(title),
            html.P(text),
            link(label, href=href, className="btn btn-primary"),
        ],
        className="vdd-empty",
    )


def not_found(message: str, *, search: str) -> Component:
    """Return the one answer to missing, foreign and mistyped addresses."""
    return empty_state("Nothing here", message, label="To the fleet", href=f"{PREFIX}{search}")


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> Component:
    """Return a table whose first column is text and whose others are figures or links."""
    if not rows:
        return html.P(empty, className="vdd-muted")
    head = html.Thead(html.Tr([html.Th(heading, scope="col") for heading in headings]))
    body = html.Tbody([html.Tr([html.Td(cell) for cell in row]) for row in rows])
    return html.Div(
        html.Table([head, body], className="table table-sm vdd-table"), className="table-responsive"
    )


def labelled(text: str) -> dict[str, Any]:
    """Return the attribute that names a control or a region for screen readers."""
    return {"aria-label": text}


def segments(
    ident: str, label: str, options: Sequence[dict[str, str]], *, value: str, persists: bool = False
) -> Component:
    """Return radio buttons that look like one segmented control."""
    radios = dcc.RadioItems(
        id=ident,
        options=list(options),
        value=value,
        className="vdd-segments",
        inputClassName="vdd-segment-input",
        labelClassName="vdd-segment",
        persistence=persists,
        persistence_type="session",
    )
    return html.Div([html.Span(label, className="vdd-control-label"), radios],
                    className="vdd-control", role="group", **labelled(label))  # fmt: skip
