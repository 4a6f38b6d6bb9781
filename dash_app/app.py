"""The Dash app inside the portal: page frame, time controls, and the refresh of every tier.

The HTML of a page has all that Dash would ask for before the first refresh: the layout and the list
of callbacks.

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
from plotly.io.json import to_json_plotly
from plotly.utils import PlotlyJSONEncoder
from werkzeug.exceptions import NotFound

from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.errors import DatabaseUnavailableError, NotFoundError
from core.rate_limits import ConcurrencyLimit
from dash_app import components
from dash_app.callback_requests import install_callback_checks
from dash_app.context import MINUTE, REFRESH_TTL, Context, Dashboard, Page, SharedCache, View
from dash_app.markup import area, markup
from dash_app.parameters import parameter_problem
from dash_app.routes import NO_DASHBOARD, PREFIX, Tier
from dash_app.shared_store import SharedStore
from dash_app.tiers import appliance, custom, fleet, gpu, job, platform
from dash_app.timerange import REFRESHES, Controls
from dash_app.toolbar import toolbar
from dash_app.zoned import in_zone
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store

logger = logging.getLogger(__name__)

# More pages that open concurrently are computed as the browser asks for them.
_MAX_PREPARED = 2
RenderShell = Callable[[str, dict[str, str]], str]
# Dash would load it when it draws the first chart, and without a fingerprint, so that browsers ask
# for it each time. So it would do with Plotly, of which `assets` has the part that charts need.
_GRAPH_SCRIPT = "dcc/async-graph.js"
# Dash has it in every page; no page has a table of it.
_UNUSED_SCRIPT = "/dash_table/"
# The callback of the address writes these.
_PAGE_OUTPUTS = (
    ("page", "children"),
    ("head", "children"),
    ("title", "data"),
    ("toolbar", "children"),
    ("tick", "interval"),
    ("tick", "disabled"),
    ("error", "children"),
)

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
        self, *, render_shell: RenderShell, server: Flask, open_page: Callable[[], Any]
    ) -> None:
        self._render_shell = render_shell
        self._open_page = open_page
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
        graph = {"relative_package_path": _GRAPH_SCRIPT, "namespace": "dash"}
        self.scripts.append_script(graph)  # type: ignore[no-untyped-call]

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]  # keywords only
        """Return the portal's page around Dash's parts."""
        # `dashboards.js` answers Dash's requests for these from the page.
        responses = {
            "_dash-layout": to_json_plotly(self._open_page()),
            "_dash-dependencies": self.dependencies().get_data(as_text=True),
        }
        for name, text in responses.items():
            parts["config"] += f'<script id="{name}" type="application/json">{text}</script>'
        scripts = parts["scripts"].splitlines()
        parts["scripts"] = "\n".join(line for line in scripts if _UNUSED_SCRIPT not in line)
        return self._render_shell(parts.pop("title", "Dashboards"), parts)


def create_dashboards(
    server: Flask,
    *,
    sessions: SessionFactory,
    store: Store,
    scope_provider: Callable[[], Scope],
    zone_provider: Callable[[], str],
    render_shell: RenderShell,
    clock: Clock = utc_now,
) -> Dash:
    """Mount the dashboards at `/dashboards/`; the server's own hooks guard every request.

    Args:
        scope_provider: returns the scope of the current request.
        zone_provider: returns the name of the time zone of its user.
        render_shell: (title, parts) to a whole HTML page; `parts` are Dash's `metas`, `favicon`,
            `css`, `app_entry`, `config`, `scripts` and `renderer`.
    """
    context = Context(
        sessions=sessions,
        # A viewer sees all of the store's interface.
        store=cast("Store", SharedStore(store, clock)),
        scope_provider=scope_provider,
        zone_provider=zone_provider,
        clock=clock,
        cache=SharedCache(clock, ttl=MINUTE),
        refreshes=SharedCache(clock, ttl=REFRESH_TTL),
        custom=ConcurrencyLimit(custom.MAX_CONCURRENT),
    )
    preparing = ConcurrencyLimit(_MAX_PREPARED)
    app = ShellDash(
        render_shell=render_shell, server=server, open_page=lambda: _opened(context, preparing)
    )
    # Each page has its own.
    app.layout = html.Div()
    server.register_error_handler(DependencyException, _no_such_file)
    install_callback_checks(server, app.callback_map)
    _register_controls(app)
    _register_pages(app, context)
    for tier, dashboard in _DASHBOARDS.items():
        _register_refresh(app, context, tier, dashboard)
    return app


def _no_such_file(_error: Exception) -> NotFound:
    return NotFound()


def _show_error(error: Exception) -> None:
    """Log an error and report it above the panels, which stay as they are."""
    advice = "See the portal's log."
    if isinstance(error, DatabaseUnavailableError):
        advice = "The database is busy; the next refresh tries again."
    else:
        logger.error("dashboard callback failed", exc_info=error)
    text = f"The refresh failed, so the data below may be outdated. {advice}"
    set_props("error", {"children": components.warning(text)})


def _opened(context: Context, preparing: ConcurrencyLimit) -> Any:  # noqa: ANN401 - a Dash component
    """Return the layout of the page at the current request's address."""
    query = request.query_string.decode(errors="replace")
    path, search = request.path, f"?{query}" if query else ""
    _prepare(context, preparing, path, search)
    page, head, title, controls, milliseconds, is_paused, problem = _page_values(
        context, path, search
    )
    return html.Div(
        [
            dcc.Location(id="url", refresh=False, pathname=path, search=search),
            dcc.Interval(id="tick", interval=milliseconds, disabled=is_paused),
            dcc.Store(id="title", data=title),
            dcc.Store(id="changed"),
            html.Div(
                [area("head", "vdd-head", text=head), html.Div(controls, id="toolbar")],
                className="vdd-top",
            ),
            html.Div(problem, id="error"),
            html.Div(page, id="page"),
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
        *[Output(*output) for output in _PAGE_OUTPUTS],
        Input("url", "pathname"),
        Input("url", "search"),
        Input("changed", "data"),
        # The layout has the values of the first address.
        prevent_initial_call=True,
    )
    def show_page(
        pathname: str | None, search: str | None, _changed: float | None = None
    ) -> tuple[Any, ...]:
        page, *values = _page_values(context, pathname, search)
        is_new = set(ctx.triggered_prop_ids) != {"url.search"}
        return page if is_new else no_update, *values


def _page_values(context: Context, path: str | None, search: str | None) -> tuple[Any, ...]:
    """Return the values of `_PAGE_OUTPUTS` for an address."""
    page = _page(context, path, search)
    controls = Controls.parse(search, user_zone=context.zone_provider())
    seconds = REFRESHES[controls.refresh_key][1]
    bar = toolbar(
        controls,
        path or PREFIX,
        now=context.clock(),
        page=page,
    )
    return (
        page.body,
        markup(components.breadcrumbs(page.crumbs, page.title)),
        page.title,
        bar if page.has_toolbar else None,
        (seconds or 60) * 1000,
        not seconds,
        components.warning(parameter_problem(search, names=page.parameters, peers=page.peers)),
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
    parameters = {*_DASHBOARDS[tier].inputs, *(choice.parameter for choice in page.choices)}
    return replace(page, body=body, parameters=parameters)


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
        result = _refreshed(context, path, search, only=tier)
        if result is None:
            raise PreventUpdate
        values, digests = result
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


def _prepare(context: Context, limit: ConcurrencyLimit, path: str, search: str) -> None:
    """Begin the first refresh of the page that is opened, while the browser loads its scripts."""
    scope, zone = context.scope_provider(), context.zone_provider()
    prepared = replace(
        context,
        scope_provider=lambda: scope,
        zone_provider=lambda: zone,
        # It takes the turn of no viewer.
        custom=ConcurrencyLimit(limit.max_running),
    )

    def work() -> None:
        with limit.running("") as is_admitted:
            if is_admitted:
                try:
                    _refreshed(prepared, path, search)
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
        person = view.scope.user_id if dashboard.is_personal else ""
        key = (path, search, *rights, person, view.controls.zone_name)
        return context.refreshes.get(key, lambda: _values(view, dashboard))


def _part_names(outputs: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Return the names of the page's own components, by output, such as `chart.3`."""
    return [
        [f"{output['id']['part']}.{output['id']['index']}" for output in part] for part in outputs
    ]


def _values(view: View, dashboard: Dashboard) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a refresh shows by name, and its digests."""
    values: dict[str, Any] = {"problem": None, "body.hidden": False}
    try:
        values |= dashboard.refresh(view)
        values |= {name: markup(values[name]) for name in dashboard.areas if name in values}
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
