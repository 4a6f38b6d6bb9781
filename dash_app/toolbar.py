"""The controls above every dashboard: time range, comparison, refresh. Links carry their state."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from dash import dcc, html

from dash_app.components import attributes, labeled
from dash_app.context import Choice, Page
from dash_app.timerange import EARLIER, RANGES, REFRESHES, Controls

Component = Any

_HIDDEN: dict[str, Any] = {"aria-hidden": "true"}


def toolbar(
    controls: Controls,
    path: str,
    *,
    now: datetime,
    page: Page,
) -> Component:
    """Return the controls of a page.

    Args:
        controls: what the address selects.
        path: the page's path.
        now: the current time.
        page: what it can be compared with, its own menus, and whether the time range applies.
    """
    has_range, peers = page.has_range, page.peers
    earlier = {key: label for key, (label, _) in EARLIER.items()} if has_range else {}
    hint = html.Span(
        "Drag over a chart to zoom in",
        className="vdd-hint vdd-muted",
        title="Double-click a chart to leave the zoom",
    )
    return html.Div(
        [
            hint,
            *[_choice(choice, controls, path) for choice in page.choices],
            _compare(controls, path, earlier | dict(peers)) if earlier or peers else None,
            _range(controls, path, now) if has_range else None,
            _zone(controls, path),
            html.Div(
                [_button("now", "arrow-clockwise", "Refresh now"), _refresh(controls, path)],
                className="btn-group btn-group-sm",
                role="group",
                **labeled("Auto refresh"),
            ),
            html.Div(
                _button("kiosk", "fullscreen", "Kiosk mode"), className="btn-group btn-group-sm"
            ),
        ],
        className="vdd-toolbar",
        **attributes(
            {
                "data-range-seconds": str(controls.seconds),
                "data-refresh-seconds": str(REFRESHES[controls.refresh_key][1]),
                "data-zone": controls.zone_name,
            }
        ),
    )


def _range(controls: Controls, path: str, now: datetime) -> Component:
    return html.Div(
        [
            _button("back", "chevron-left", "Previous period"),
            _time(controls, path, now),
            _button("forward", "chevron-right", "Next period"),
            _button("out", "zoom-out", "Zoom out"),
        ],
        className="btn-group btn-group-sm",
        role="group",
        **labeled("Time range"),
    )


def _time(controls: Controls, path: str, now: datetime) -> Component:
    label = controls.window_text(now) or f"Last {RANGES[controls.range_key][0]}"
    is_range = controls.window is None
    ranges = [
        _item(
            f"Last {text}",
            path,
            replace(controls.without_window(), range_key=key),
            is_chosen=is_range and key == controls.range_key,
        )
        for key, (text, _) in RANGES.items()
    ]
    absolute = html.Form(
        [
            _instant("from", "From"),
            _instant("to", "To"),
            html.Button("Apply", type="submit", className="btn btn-sm btn-primary w-100"),
        ],
        className="vdd-absolute",
    )
    menu = [*ranges, _divider(), absolute]
    return _dropdown(label, "clock", menu, ident="range", is_chosen=not is_range)


def _zone(controls: Controls, path: str) -> Component:
    """Return the choice of a time zone for this page, instead of the user's own."""
    choices = {"": f"My time zone: {controls.user_zone}", "UTC": "UTC"}
    items = [
        _item(text, path, replace(controls, zone=key), is_chosen=key == controls.zone)
        for key, text in choices.items()
    ]
    browser = html.Button(
        "Browser time",
        type="button",
        className=f"dropdown-item{'' if controls.zone in choices else ' active'}",
        **attributes({"data-vdd-time": "zone"}),
    )
    items += [browser, _divider(), html.A("Settings", href="/settings", className="dropdown-item")]
    is_chosen = controls.zone not in {"", controls.user_zone}
    dropdown = _dropdown(controls.zone_name, "globe", items, ident="zone", is_chosen=is_chosen)
    return html.Div(dropdown, className="btn-group btn-group-sm")


def _compare(controls: Controls, path: str, choices: Mapping[str, str]) -> Component:
    label = f"Compared: {choices[controls.compare]}" if controls.compare in choices else "Compare"
    items = [
        _item(text, path, replace(controls, compare=key), is_chosen=key == controls.compare)
        for key, text in {"": "No comparison", **choices}.items()
    ]
    dropdown = _dropdown(
        label, "layers", items, ident="compare", is_chosen=controls.compare in choices
    )
    return html.Div(dropdown, className="btn-group btn-group-sm")


def _choice(choice: Choice, controls: Controls, path: str) -> Component:
    chosen = controls.choices.get(choice.parameter, "")
    # A value that is gone stays in the menu while it is chosen.
    options = dict.fromkeys(["", chosen, *choice.options])
    items = [
        _item(
            option or "All",
            path,
            replace(controls, choices={**controls.choices, choice.parameter: option}),
            is_chosen=option == chosen,
        )
        for option in options
    ]
    label = f"{choice.label.replace('_', ' ')}: {chosen or 'All'}"
    dropdown = _dropdown(label, "", items, ident=choice.parameter, is_chosen=bool(chosen))
    return html.Div(dropdown, className="btn-group btn-group-sm")


def _refresh(controls: Controls, path: str) -> Component:
    items = [
        _item(
            text if seconds else "Off",
            path,
            replace(controls, refresh_key=key),
            is_chosen=key == controls.refresh_key,
        )
        for key, (text, seconds) in REFRESHES.items()
    ]
    return _dropdown(REFRESHES[controls.refresh_key][0], "", items, ident="refresh")


def _dropdown(
    label: str, icon: str, items: list[Component], *, ident: str, is_chosen: bool = False
) -> Component:
    text = html.Span(label, className="vdd-tool-label")
    mark: list[Component] = [html.I(className=f"bi bi-{icon}", **_HIDDEN), " "] if icon else []
    tone = "primary" if is_chosen else "secondary"
    toggle = html.Button(
        [*mark, text],
        id=ident,
        type="button",
        className=f"btn btn-outline-{tone} btn-sm dropdown-toggle vdd-tool",
        # The text is hidden where it is narrow.
        **labeled(label),
        **attributes(
            {
                "data-bs-toggle": "dropdown",
                "data-bs-auto-close": "outside",
                "aria-expanded": "false",
            }
        ),
    )
    menu = html.Div(items, className="dropdown-menu dropdown-menu-end vdd-menu")
    return html.Div([toggle, menu], className="btn-group btn-group-sm")


def _item(label: str, path: str, controls: Controls, *, is_chosen: bool) -> Component:
    return dcc.Link(
        label,
        href=f"{path}{controls.whole_search}",
        className=f"dropdown-item{' active' if is_chosen else ''}",
    )


def _button(action: str, icon: str, label: str) -> Component:
    return html.Button(
        html.I(className=f"bi bi-{icon}", **_HIDDEN),
        type="button",
        className="btn btn-outline-secondary btn-sm vdd-tool",
        title=label,
        **labeled(label),
        **attributes({"data-vdd-time": action}),
    )


def _instant(name: str, label: str) -> Component:
    field = dcc.Input(
        id=f"absolute-{name}",
        type="text",
        placeholder="2026-11-22 08:00",
        className="form-control-sm",
        # A new toolbar, as after a button, keeps what is typed.
        persistence=True,
        persistence_type="memory",
    )
    return html.Label([html.Span(label), field])


def _divider() -> Component:
    return html.Hr(className="dropdown-divider")
