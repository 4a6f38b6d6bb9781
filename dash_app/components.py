"""Building blocks of the dashboards: panels, stat tiles, meters, badges, tables, messages."""

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from core.clock import from_ns
from core.quantities import format_value
from core.zones import instant_text
from dash_app.figures import UNDRAWN
from dash_app.markup import area, markup
from dash_app.notes import Note, note_on
from dash_app.queries.annotations import XIDEvent
from dash_app.routes import PREFIX
from protocol.health import HealthFinding, HealthState, advice_for
from protocol.xids import XIDKind

Component = Any

ABSENT = "—"
_HIDDEN: dict[str, Any] = {"aria-hidden": "true"}
MAX_XIDS = 50
PANEL_ACTIONS = {"full": "Full screen", "csv": "Download CSV", "png": "Download PNG"}
# Badge tones of the states that need attention.
HEALTH_TONES = {HealthState.DEGRADED: "warning", HealthState.FAILED: "danger"}
_HIGH_PERCENT = 90
_XID_KINDS = {
    XIDKind.FATAL: ("fatal", "danger"),
    XIDKind.WARNING: ("warning", "warning"),
    XIDKind.APPLICATION: ("application", "secondary"),
}
_GRAPH_CONFIG: dict[str, Any] = {
    "displaylogo": False,
    # Plotly would offer to upload the chart to its own cloud.
    "showSendToCloud": False,
    "plotlyServerURL": "",
    # The toolbar and the panels' menus do what its buttons did.
    "displayModeBar": False,
    "responsive": True,
    "showTips": False,
}


def panel(ident: str, title: str, *, has_own_time: bool = False) -> Component:
    """Return a panel with an empty chart `ident`, its menu, and the place of its legend.

    Args:
        ident: the id of the chart.
        title: its title.
        has_own_time: the chart keeps its time axis, and a zoom stays within it.
    """
    content = graph(ident, has_own_time=has_own_time)
    name = "vdd-panel has-own-time" if has_own_time else "vdd-panel"
    return framed(content, title, note_on(ident), class_name=name)


def graph(ident: Any, *, has_own_time: bool = False) -> list[Component]:  # noqa: ANN401 - Dash's ids
    """Return an empty chart and the place of its legend."""
    # Elsewhere `window.js` handles double clicks: they leave the window.
    config: Any = _GRAPH_CONFIG | {"doubleClick": "reset" if has_own_time else False}
    chart = dcc.Graph(
        id=ident,
        figure=UNDRAWN,
        config=config,
        className="vdd-graph",
        responsive=True,
    )
    return [chart, html.Div(className="vdd-legend")]


def framed(
    content: list[Component],
    title: str,
    note: Note,
    *,
    class_name: str,
    actions: Mapping[str, str] = PANEL_ACTIONS,
    extra_items: Sequence[Component] = (),
) -> Component:
    """Return content with a title and a menu.

    Args:
        content: below the title.
        title: the title.
        note: what it means.
        class_name: CSS classes.
        actions: entries of the menu by what `panels.js` does.
        extra_items: further entries of the menu.
    """
    menu = _panel_menu(title, note, actions, extra_items)
    head = area(class_name="vdd-panel-head", text=markup([html.H2(title), menu]))
    return html.Section([head, *content], className=class_name)


def _panel_menu(
    title: str, note: Note, actions: Mapping[str, str], extra_items: Sequence[Component]
) -> Component:
    items: list[Component] = [html.P(note.text, className="vdd-note")] if note.text else []
    items += [
        html.Button(
            label,
            type="button",
            className="dropdown-item",
            **attributes({"data-vdd-panel": action}),
        )
        for action, label in actions.items()
    ]
    if note.metric:
        href = f"/rules/new?{urlencode({'metric': note.metric})}"
        items.append(html.A("Create rule", href=href, className="dropdown-item vdd-new-rule"))
    items += extra_items
    toggle = html.Button(
        html.I(className="bi bi-three-dots", **_HIDDEN),
        type="button",
        className="btn vdd-panel-toggle",
        **attributes({"data-bs-toggle": "dropdown", "aria-expanded": "false"}),
        **labeled(f"Menu of {title}"),
    )
    menu = html.Div(items, className="dropdown-menu dropdown-menu-end vdd-menu")
    return html.Div([toggle, menu], className="dropdown ms-auto")


def plain(kind: type[Component], children: Component = None, **properties: Any) -> Component:  # noqa: ANN401
    """Return a component as the JSON that Dash sends, at a tenth of the time of building it.

    For those that a page has thousands of; None is left out.
    """
    props = {"children": children, **properties}
    return {
        "namespace": kind._namespace,  # noqa: SLF001 - what `to_plotly_json` writes
        "type": kind._type,  # noqa: SLF001
        "props": {name: value for name, value in props.items() if value is not None},
    }


def stat(
    label: str,
    value: str,
    *,
    note: Component = "",
    percent: float | None = None,
    warns: bool = False,
    tone: str = "",
    help_text: str = "",
) -> Component:
    """Return a tile with one value, a note, and a meter where the value is a percentage.

    `tone` is `warning`, `critical` or empty.
    """
    return html.Div(
        [
            html.Div(label, className="vdd-stat-label"),
            html.Div(value, className=f"vdd-stat-value is-{tone}" if tone else "vdd-stat-value"),
            html.Div(note, className="vdd-stat-note"),
            bar(percent, warns=warns) if percent is not None else None,
        ],
        className="vdd-stat",
        title=help_text or None,
    )


def bar(percent: float | None, *, warns: bool = True) -> Component:
    """Return a thin horizontal meter, empty without a value; `warns` colors high values."""
    width = 0.0 if percent is None else min(100.0, max(0.0, percent))
    tone = " is-high" if warns and width >= _HIGH_PERCENT else ""
    fill = plain(html.Div, className=f"vdd-meter-fill{tone}", style={"width": f"{width:.1f}%"})
    return plain(html.Div, fill, className="vdd-meter-track")


def meter(label: str, percent: float | None, *, title: str = "", warns: bool = True) -> Component:
    """Return a labeled meter."""
    return plain(
        html.Div,
        [
            plain(html.Span, label, className="vdd-meter-label"),
            bar(percent, warns=warns),
            plain(html.Span, percent_text(percent), className="vdd-meter-figure"),
        ],
        className="vdd-meter",
        title=title or None,
    )


def percent_text(percent: float | None) -> str:
    """Return a percentage without decimals, or a dash."""
    return ABSENT if percent is None else f"{percent:z.0f} %"


def share(part: float | None, whole: float | None) -> float | None:
    """Return a part as a percentage; None if either is unknown or the whole is 0."""
    return None if part is None or not whole else 100 * part / whole


def value_text(field: str, value: float | None) -> str:
    """Return a value with its unit, or a dash."""
    return ABSENT if value is None else format_value(field, value)


def status_dot(status: str) -> Component:
    """Return the colored dot of an appliance's status, with a title for those who see no color."""
    return plain(html.Span, className=f"vdd-dot is-{status}", title=status, role="img")


def badge(text: str, *, tone: str = "secondary") -> Component:
    """Return a small label in one of Bootstrap's subtle tones."""
    name = f"badge bg-{tone}-subtle text-{tone}-emphasis fw-medium vdd-badge"
    return plain(html.Span, text, className=name)


def health_badge(state: HealthState | None) -> Component | None:
    """Return the badge of a state that needs attention; None for the others."""
    return badge(state.value, tone=HEALTH_TONES[state]) if state in HEALTH_TONES else None


def findings_list(findings: Sequence[tuple[str, HealthFinding]]) -> Component | None:
    """Return health findings, each with its location ("GPU 5") and what to do; None without any."""
    if not findings:
        return None
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(location, className="vdd-finding-place") if location else None,
                    html.Span(
                        badge(advice_for(finding.reason).name, tone=HEALTH_TONES[finding.state]),
                        className="vdd-finding-name",
                    ),
                    html.Div(
                        [
                            html.Div(finding.detail),
                            html.Div(advice_for(finding.reason).action, className="vdd-muted"),
                        ],
                        className="vdd-finding-text",
                    ),
                ]
            )
            for location, finding in findings
        ],
        className="vdd-findings",
    )


def xid_table(events: Sequence[XIDEvent], *, zone: tzinfo, empty: str) -> Component:
    """Return the newest XIDs with their meaning."""
    return table(
        ("Time", "XID", "Kind", "Meaning", "What to do"),
        [
            [
                instant_text(from_ns(event.time_ns), zone, "%b %d %H:%M:%S"),
                f"{event.xid.code}" if event.count == 1 else f"{event.xid.code}, {event.count} x",
                badge(_XID_KINDS[event.xid.kind][0], tone=_XID_KINDS[event.xid.kind][1]),
                f"{event.xid.title[0].upper()}{event.xid.title[1:]}",
                html.Span(event.xid.advice, className="vdd-wrap"),
            ]
            for event in list(reversed(events))[:MAX_XIDS]
        ],
        empty=empty,
    )


def tabs(label: str, links: Mapping[str, str], *, chosen: str) -> Component:
    """Return the pages of one object as tabs: label to address."""
    items = []
    for text, href in links.items():
        link = dcc.Link if href.startswith(PREFIX) else html.A
        here: dict[str, Any] = {"aria-current": "page"} if text == chosen else {}
        name = f"nav-link{' active' if here else ''}"
        items.append(html.Li(link(text, href=href, className=name), className="nav-item", **here))
    return html.Nav(html.Ul(items, className="nav nav-tabs vd-tabs"), **labeled(label))


def breadcrumbs(crumbs: Sequence[tuple[str, str]], title: str) -> Component:
    """Return links to the tiers above, and the page's heading."""
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


def warning(text: str) -> Component | None:
    """Return a message about the whole page, or None without a text."""
    return html.Div(text, className="alert alert-warning", role="alert") if text else None


def empty_state(title: str, text: str, *, label: str, href: str) -> Component:
    """Return what to show instead of an empty page, with one link."""
    link = dcc.Link if href.startswith(PREFIX) else html.A
    return html.Div(
        [html.H2(title), html.P(text), link(label, href=href, className="btn btn-primary")],
        className="vdd-empty",
    )


def not_found(message: str, *, search: str) -> Component:
    """Return the page of missing, forbidden and mistyped addresses."""
    return empty_state("Not found", message, label="Go to the fleet", href=f"{PREFIX}{search}")


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str, figures: int = 0
) -> Component:
    """Return a table whose last columns are figures, or the text `empty` without rows."""
    if not rows:
        return html.P(empty, className="vdd-muted")
    first = len(headings) - figures
    right = [{"className": "text-end"} if at >= first else {} for at in range(len(headings))]

    def row_of(cell: Any, values: Sequence[Any], **properties: str) -> Component:  # noqa: ANN401 - Dash's
        pairs = zip(values, right, strict=True)
        return html.Tr([cell(value, **properties, **style) for value, style in pairs])

    head = html.Thead(row_of(html.Th, headings, scope="col"))
    body = html.Tbody([row_of(html.Td, row) for row in rows])
    return html.Div(
        html.Table([head, body], className="table table-sm vdd-table"),
        className="table-responsive",
        # It scrolls where it is narrow.
        tabIndex="0",
        role="region",
        **labeled(headings[0]),
    )


def labeled(text: str) -> dict[str, Any]:
    """Return the attribute that names a control or a region for screen readers."""
    return {"aria-label": text}


def attributes(values: dict[str, Any]) -> dict[str, Any]:
    """Return attributes that Dash's types leave out, such as `data-` ones."""
    return values


def segments(
    ident: str, label: str, options: Mapping[str, str], *, value: str, persists: bool = False
) -> Component:
    """Return radio buttons (value to label) styled as one segmented control."""
    radios = dcc.RadioItems(
        id=ident,
        options=dict(options),
        value=value,
        className="vdd-segments",
        inputClassName="vdd-segment-input",
        labelClassName="vdd-segment",
        persistence=persists,
        persistence_type="session",
    )
    return html.Div(
        [html.Span(label, className="vdd-control-label"), radios],
        className="vdd-control",
        role="group",
        **labeled(label),
    )
