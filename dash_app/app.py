"""The Dash app inside the portal: page frame, time controls, and the refresh of every tier.

A refresh sends only values that differ from those of the last one: Dash rebuilds the elements of an
area whose children are set, so an unchanged area keeps its text selection and focus.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from dash import (
    ALL,
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
from dash.exceptions import DependencyException, PreventUpdate
from flask import Flask, request
from plotly.utils import PlotlyJSONEncoder
from werkzeug.exceptions import NotFound

from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.errors import NotFoundError
from core.rate_limits import ConcurrencyLimit
from dash_app import components
from dash_app.context import MINUTE, REFRESH_TTL, Context, Dashboard, Page, SharedCache, View
from dash_app.figures import in_zone
from dash_app.routes import NO_DASHBOARD, PREFIX, Tier
from dash_app.shared_store import SharedStore
from dash_app.tiers import appliance, custom, fleet, gpu, job, platform
from dash_app.timerange import REFRESHES, Controls
from dash_app.toolbar import toolbar
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store

logger = logging.getLogger(__name__)

# More pages that open concurrently are computed as the browser asks for them.
_MAX_PREPARED = 2
RenderShell = Callable[[str, dict[str, str]], str]

_DASHBOARDS: Mapping[Tier, Dashboard] = {
    Tier.FLEET: fleet.DASHBOARD,
    Tier.APPLIANCE: appliance.DASHBOARD,
    Tier.GPU: gpu.DASHBOARD,
    Tier.JOB: job.DASHBOARD,
    Tier.CUSTOM: custom.DASHBOARD,
    Tier.PLATFORM: platform.DASHBOARD,
}


class ShellDash(Dash):
    """Dash with an index page that the portal renders, inside its own navigation."""

    def __init__(
        self, *, render_shell: RenderShell, server: Flask, prepare: Callable[[], None]
    ) -> None:
        self._render_shell = render_shell
        self._prepare = prepare
        super().__init__(
            __name__,
            server=server,  # type: ignore[arg-type]  # Dash's type hints leave Flask out
            url_base_pathname=PREFIX,
            serve_locally=True,
            suppress_callback_exceptions=True,
            title="Dashboards",
            update_title="",
            on_error=_show_error,
            add_log_handler=False,
        )

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]  # keywords only
        """Return the portal's page around Dash's parts."""
        self._prepare()
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
        scope_provider: returns the scope of the current request.
        render_shell: (title, parts) to a whole HTML page; `parts` are Dash's `metas`, `favicon`,
            `css`, `app_entry`, `config`, `scripts` and `renderer`.
    """
    context = Context(
        sessions=sessions,
        # What a viewer sees of the store: all of its interface.
        store=cast("Store", SharedStore(store, clock)),
        scope_provider=scope_provider,
        clock=clock,
        cache=SharedCache(clock, ttl=MINUTE),
        refreshes=SharedCache(clock, ttl=REFRESH_TTL),
        custom=ConcurrencyLimit(custom.MAX_CONCURRENT),
    )
    preparing = ConcurrencyLimit(_MAX_PREPARED)
    app = ShellDash(
        render_shell=render_shell, server=server, prepare=lambda: _prepare(context, preparing)
    )
    app.layout = _frame()
    server.register_error_handler(DependencyException, _no_such_file)
    _register_controls(app)
    _register_pages(app, context)
    for tier, dashboard in _DASHBOARDS.items():
        _register_refresh(app, context, tier, dashboard)
    return app


def _no_such_file(_error: Exception) -> NotFound:
    return NotFound()


def _show_error(error: Exception) -> None:
    """Log an error and report it above the panels, which stay as they are."""
    logger.error("dashboard callback failed", exc_info=error)
    text = "The refresh failed, so the data below may be outdated. See the portal's log."
    set_props("error", {"children": components.warning(text)})


def _frame() -> Any:  # noqa: ANN401 - a Dash component
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="tick", disabled=True),
            dcc.Store(id="title"),
            dcc.Store(id="changed"),
            html.Div(
                [html.Div(id="head", className="vdd-head"), html.Div(id="toolbar")],
                className="vdd-top",
            ),
            html.Div(id="error"),
            html.Div(id="page"),
        ],
        className="vdd-dash",
    )


def _register_controls(app: Dash) -> None:
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
        Output("toolbar", "children"),
        Output("tick", "interval"),
        Output("tick", "disabled"),
        Output("error", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("changed", "data"),
    )
    def show_page(
        pathname: str | None, search: str | None, _changed: float | None = None
    ) -> tuple[Any, ...]:
        page = _page(context, pathname, search)
        is_new = set(ctx.triggered_prop_ids) != {"url.search"}
        controls = Controls.parse(search)
        seconds = REFRESHES[controls.refresh_key][1]
        path = pathname or PREFIX
        return (
            page.body if is_new else no_update,
            components.breadcrumbs(page.crumbs, page.title),
            page.title,
            toolbar(
                controls,
                path,
                now=context.clock(),
                peers=page.peers,
                has_range=page.has_range,
            )
            if page.has_toolbar
            else None,
            (seconds or 60) * 1000,
            not seconds,
            None,
        )


def _page(context: Context, path: str | None, search: str | None) -> Page:
    with context.view(path, search) as view:
        tier = view.route.tier
        try:
            page = _layout_of(tier)(view)
        except NotFoundError as error:
            return Page(
                title="Not found",
                crumbs=(("Fleet", f"{PREFIX}{view.controls.search}"),),
                body=components.not_found(error.message, search=view.controls.search),
                has_toolbar=False,
            )
    body = html.Div(
        [
            dcc.Store(id=f"{tier}-path", data=path),
            dcc.Store(id=f"{tier}-digests"),
            dcc.Store(id=f"{tier}-defaults", data=dict(_DASHBOARDS[tier].inputs)),
            html.Div(id=f"{tier}-problem"),
            html.Div(page.body, id=f"{tier}-body"),
        ],
        className="" if view.scope.allows(Permission.EDIT_ALERTS) else "vdd-no-rules",
    )
    return replace(page, body=body)


def _layout_of(tier: Tier) -> Callable[[View], Page]:
    if tier not in _DASHBOARDS:
        raise NotFoundError(NO_DASHBOARD)
    return _DASHBOARDS[tier].layout


def _register_refresh(app: Dash, context: Context, tier: Tier, dashboard: Dashboard) -> None:
    outputs = {
        **{name: Output(f"{tier}-{name}", "children") for name in ("problem", *dashboard.areas)},
        **{name: Output(f"{tier}-{name}", "figure") for name in dashboard.panels},
        **{
            name: Output(f"{tier}-{name.partition('.')[0]}", name.partition(".")[2])
            for name in ("body.hidden", *dashboard.properties)
        },
    }
    parts = {
        name: Output({"tier": tier.value, "part": name, "index": ALL}, property_name)
        for name, property_name in dashboard.parts.items()
    }

    if dashboard.inputs:
        _register_inputs(app, tier, dashboard.inputs)

    @app.callback(
        Output(f"{tier}-digests", "data"),
        *outputs.values(),
        *parts.values(),
        State(f"{tier}-digests", "data"),
        Input("tick", "n_intervals"),
        Input(f"{tier}-path", "data"),
        Input("url", "search"),
    )
    def refresh(
        shown: dict[str, str] | None, _ticks: int | None, path: str | None, search: str | None
    ) -> list[Any]:
        found = _refreshed(context, path, search, only=tier)
        if found is None:
            raise PreventUpdate
        values, digests = found
        shown = shown or {}
        changed = {name for name, digest in digests.items() if shown.get(name) != digest}
        return [
            shown | digests,
            *[values[name] if name in changed else no_update for name in outputs],
            *[
                [values[name] if name in changed else no_update for name in names]
                for names in _part_names(ctx.outputs_list[-len(parts) :] if parts else [])
            ],
        ]


def _prepare(context: Context, limit: ConcurrencyLimit) -> None:
    """Begin the first refresh of the page that is opened, while the browser loads its scripts."""
    scope = context.scope_provider()
    search = request.query_string.decode(errors="replace")
    address = request.path, f"?{search}" if search else ""

    def work() -> None:
        with limit.running("") as is_admitted:
            if is_admitted:
                try:
                    _refreshed(replace(context, scope_provider=lambda: scope), *address)
                except Exception:
                    # The browser's own request reports it.
                    logger.debug("a page was not prepared", exc_info=True)

    threading.Thread(target=work, name="prepare-dashboard", daemon=True).start()


def _refreshed(
    context: Context, path: str | None, search: str | None, *, only: Tier | None = None
) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return what a page shows and its digests; None for an address of another tier."""
    with context.view(path, search) as view:
        tier = view.route.tier
        if tier not in _DASHBOARDS or only not in {None, tier}:
            return None
        dashboard = _DASHBOARDS[tier]
        # All that a refresh depends on: viewers with the same rights get the same.
        rights = (view.scope.tenant_id, view.scope.role, view.scope.token_scopes)
        key = (path, search, *rights, view.scope.user_id if dashboard.is_personal else "")
        return context.refreshes.get(key, lambda: _values(view, dashboard))


def _part_names(outputs: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Return the names of the page's own components, by output, such as `chart.3`."""
    return [[f"{one['id']['part']}.{one['id']['index']}" for one in part] for part in outputs]


def _values(view: View, dashboard: Dashboard) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a refresh shows by name, and its digests."""
    values: dict[str, Any] = {"problem": None, "body.hidden": False}
    try:
        values |= dashboard.refresh(view)
        zone = view.controls.tzinfo
        drawn = [name for name in values if name in dashboard.panels or name.startswith("chart.")]
        values |= {name: in_zone(values[name], zone) for name in drawn}
    except NotFoundError as error:
        gone = components.not_found(error.message, search=view.controls.search)
        values = {"problem": gone, "body.hidden": True}
    return values, {name: _digest(value) for name, value in values.items()}


def _register_inputs(app: Dash, tier: Tier, inputs: Mapping[str, str]) -> None:
    """Write the values of a tier's form controls into the address, from which it is refreshed."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction(namespace="vedette", function_name="choices"),
        Output("url", "search", allow_duplicate=True),
        *[Input(f"{tier}-{name}", "value") for name in inputs],
        State(f"{tier}-defaults", "data"),
        prevent_initial_call=True,
    )


def _digest(value: Any) -> str:  # noqa: ANN401 - components, figures, or plain values
    text = json.dumps(value, cls=PlotlyJSONEncoder, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=9).hexdigest()
