"""The Dash app inside the portal: its page, its controls, and the tier that each address shows."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from dash import (
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    dcc,
    html,
    no_update,
    set_props,
)
from flask import Flask

from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.errors import NotFoundError
from dash_app import components
from dash_app.context import Context, Page, View
from dash_app.routes import PREFIX, Tier, parse_path
from dash_app.tiers import appliance, fleet, gpu, job, platform
from dash_app.timerange import DEFAULT_RANGE, DEFAULT_REFRESH, RANGES, REFRESHES, Controls
from tenants.scope import Scope
from timeseries.store import Store

logger = logging.getLogger(__name__)

RenderShell = Callable[[str, dict[str, str]], str]

_LAYOUTS: Mapping[Tier, Callable[[View], Page]] = {
    Tier.FLEET: fleet.layout,
    Tier.APPLIANCE: appliance.layout,
    Tier.GPU: gpu.layout,
    Tier.JOB: job.layout,
    Tier.PLATFORM: platform.layout,
}


class ShellDash(Dash):
    """Dash whose index page is drawn by the portal, inside its own navigation."""

    def __init__(self, *, render_shell: RenderShell, server: Flask) -> None:
        self._render_shell = render_shell
        super().__init__(
            __name__,
            server=server,  # type: ignore[arg-type]  # Dash's hint knows no Flask, Dash does
            url_base_pathname=PREFIX,
            serve_locally=True,
            suppress_callback_exceptions=True,
            title="Dashboards",
            update_title="",
            on_error=_report,
            add_log_handler=False,
        )

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]  # all by name
        """Return the portal's page around Dash's parts."""
        return self._render_shell(parts.pop("title", "Dashboards"), parts)


def create_dashboards(
    server: Flask,
    *,
    sessions: SessionFactory,
    store: Store,
    scope_provider: Callable[[], Scope],
    render_shell: RenderShell,
    clock: Clock = utc_now,
) -> Dash:
    """Mount the dashboards at `/dashboards/`; the server's own hooks guard every request.

    Args:
        scope_provider: returns the scope of the request at hand, within its context.
        render_shell: (title, parts) to a whole HTML page; `parts` are Dash's `metas`, `favicon`,
            `css`, `app_entry`, `config`, `scripts` and `renderer`.
    """
    context = Context(sessions=sessions, store=store, scope_provider=scope_provider, clock=clock)
    app = ShellDash(render_shell=render_shell, server=server)
    app.layout = _frame()
    _register_controls(app)
    _register_pages(app, context)
    for tier in (fleet, appliance, gpu, job, platform):
        tier.register(app, context)
    return app


def _report(error: Exception) -> None:
    """Log a fault and say so above the panels, which stay as they were."""
    logger.error("a dashboard callback failed", exc_info=error)
    text = "A refresh failed; the figures below may be old. The portal's log says why."
    set_props("fault", {"children": components.problem_note(text)})


def _frame() -> Any:  # noqa: ANN401 - a Dash component
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="tick", disabled=True),
            dcc.Store(id="title"),
            dcc.Store(id="choices", data=_choices()),
            html.Div(
                [
                    html.Div(id="head", className="vdd-head"),
                    html.Div(
                        [
                            html.Div(
                                [
                                    _segments("range", "Time range", RANGES, value=DEFAULT_RANGE),
                                    html.Div(id="window"),
                                ],
                                id="range-box",
                            ),
                            _segments("refresh", "Auto refresh", REFRESHES, value=DEFAULT_REFRESH),
                        ],
                        className="vdd-controls",
                    ),
                ],
                className="vdd-top",
            ),
            html.Div(id="fault"),
            html.Div(id="page"),
        ],
        className="vdd-dash",
    )


def _segments(ident: str, label: str, choices: Mapping[str, tuple[str, int]], *, value: str) -> Any:  # noqa: ANN401 - a Dash component
    options = [{"label": text, "value": key} for key, (text, _) in choices.items()]
    return components.segments(ident, label, options, value=value)


def _choices() -> dict[str, Any]:
    return {
        "ranges": list(RANGES),
        "refreshes": {key: seconds * 1000 for key, (_, seconds) in REFRESHES.items()},
        "range": DEFAULT_RANGE,
        "refresh": DEFAULT_REFRESH,
    }


def _register_controls(app: Dash) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction(namespace="vedette", function_name="controls"),
        Output("url", "search"),
        Output("range", "value"),
        Output("refresh", "value"),
        Output("tick", "interval"),
        Output("tick", "disabled"),
        Input("url", "search"),
        Input("range", "value"),
        Input("refresh", "value"),
        State("choices", "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction(namespace="vedette", function_name="title"),
        Output("title", "modified_timestamp"),
        Input("title", "data"),
    )


def _register_pages(app: Dash, context: Context) -> None:
    @app.callback(
        Output("page", "children"),
        Output("head", "children"),
        Output("title", "data"),
        Output("range-box", "className"),
        Output("window", "children"),
        Output("fault", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
    )
    def show_page(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        controls = Controls.parse(search)
        page = _page(context, pathname, controls)
        is_new = "url.pathname" in ctx.triggered_prop_ids or not ctx.triggered_prop_ids
        return (
            page.body if is_new else no_update,
            components.breadcrumbs(page.crumbs, page.title),
            page.title,
            "vdd-range" if page.has_range else "d-none",
            components.window_note(controls, pathname or PREFIX),
            None,
        )


def _page(context: Context, pathname: str | None, controls: Controls) -> Page:
    route = parse_path(pathname)
    with context.reading() as (session, scope):
        view = View(session=session, scope=scope, route=route, controls=controls)
        try:
            if route.tier in _LAYOUTS:
                return _LAYOUTS[route.tier](view)
            message = f"There is no dashboard at {pathname}. Check the address."
        except NotFoundError as error:
            message = error.message
    return Page(
        title="Not found",
        crumbs=(("Fleet", f"{PREFIX}{controls.search}"),),
        body=components.not_found(message, search=controls.search),
        has_range=False,
    )
