"""The platform tier: the operators' view across tenants."""

from typing import Any

from dash import html

from core.errors import NotFoundError
from dash_app import components
from dash_app.components import panel, stat, value_text
from dash_app.context import Dashboard, Page, View
from dash_app.figures import time_figure
from dash_app.markup import area
from dash_app.queries.fleet_charts import host_charts
from dash_app.queries.platform import PlatformFigures, platform_figures
from dash_app.queries.platform_charts import DAILY, daily_span, platform_charts
from dash_app.queries.telemetry import Telemetry
from dash_app.routes import NO_DASHBOARD, PREFIX
from tenants.fleet.states import EffectiveStatus
from tenants.permissions import Permission

PANELS = {
    "utilization": "GPU utilization by tenant",
    "ingest": "Ingest rate by tenant",
    "use": "Mean use of GPUs and hosts",
    "diskio": "Disk I/O, all disks",
    "network": "Network, all interfaces",
    "hours": "GPU-hours per day by tenant, up to 90 days",
    "storage": "Storage by tenant, up to 90 days",
}


def layout(view: View) -> Page:
    """Return the page; it exists for operators only."""
    if not view.scope.allows(Permission.OPERATE):
        raise NotFoundError(NO_DASHBOARD)
    panels = [
        panel(f"platform-{key}", title, has_own_time=key in DAILY) for key, title in PANELS.items()
    ]
    body = [
        area("platform-stats", "vdd-stats"),
        html.Div(panels, className="vdd-panels is-two"),
    ]
    crumbs = (("Fleet", f"{PREFIX}{view.controls.search}"),)
    return Page(title="Platform", crumbs=crumbs, body=body)


def refresh(view: View) -> dict[str, Any]:
    """Return the data of the platform, at most a minute old."""
    view.scope.require(Permission.OPERATE)
    session, store, scope, now = view.session, view.store, view.scope, view.now
    totals = view.cache.get("totals", lambda: platform_figures(session, store, scope, now=now))
    span, charts = view.cache.get(
        view.controls.time_key,
        lambda: (view.span, platform_charts(session, store, scope, span=view.span, now=now)),
    )
    hosts = view.cache.get(
        ("hosts", view.controls.time_key),
        lambda: host_charts(Telemetry(store, scope, span), view.cache),
    )
    days = daily_span(charts, now=now)
    revision = f"platform:{view.controls.time_key}"
    return {
        "problem": components.warning(totals.problem),
        "stats": _stats(totals),
        **{
            key: time_figure(chart, days, revision="platform:days")
            if key in DAILY
            else time_figure(chart, span, revision=revision)
            for key, chart in {**charts, **hosts}.items()
        },
    }


DASHBOARD = Dashboard(layout=layout, refresh=refresh, areas=("stats",), panels=tuple(PANELS))


GPU_HOURS_HELP = "Two GPUs for an hour are 2 GPU-hours. The current hour is included."


def _stats(totals: PlatformFigures) -> list[Any]:
    online = totals.by_status.get(EffectiveStatus.ONLINE, 0)
    return [
        stat(
            "Appliances",
            str(totals.appliances),
            note=f"{online} online, {len(totals.tenants)} tenants",
        ),
        stat("GPUs", str(totals.gpus)),
        stat(
            "GPU utilization, 24 h",
            value_text("utilization_percent", totals.utilization_percent),
            percent=totals.utilization_percent,
        ),
        stat(
            "GPU-hours, 30 d",
            f"{totals.gpu_hours:z,.1f}",
            note="allocated, so far",
            help_text=GPU_HOURS_HELP,
        ),
        stat("Ingest rate", value_text("points_per_second", totals.points_per_second)),
        stat("Storage", value_text("storage_bytes", totals.storage_bytes)),
    ]
