"""The platform tier: the operators' view across tenants."""

from typing import Any

from dash import Dash, Input, Output, dcc, html

from core.errors import NotFoundError
from dash_app import components
from dash_app.components import panel, percent_text, stat, value_text
from dash_app.context import Context, Page, View
from dash_app.figures import time_figure
from dash_app.live import Areas, area
from dash_app.minute import MinuteCache
from dash_app.queries.platform import PlatformFigures, platform_figures
from dash_app.queries.platform_charts import platform_charts
from dash_app.routes import PREFIX, platform_path
from dash_app.timerange import Controls
from tenants.permissions import Permission

PANELS = {
    "utilization": "GPU utilisation by tenant",
    "ingest": "Points taken a second, by tenant",
    "hours": "GPU-hours a day, by tenant",
    "storage": "Storage by tenant",
}
# Drawn over months of days, whatever the time range.
_BY_DAY = frozenset({"hours", "storage"})
AREAS = Areas("platform", ("platform-stats",))


def layout(view: View) -> Page:
    """Return the skeleton; for others than operators there is no such page."""
    if not view.scope.allows(Permission.OPERATE):
        raise NotFoundError(f"There is no dashboard at {platform_path()}. Check the address.")
    body = html.Div(
        [
            html.Div(id="platform-problem"),
            *AREAS.stores(),
            dcc.Store(id="platform-subject", data={}),
            area("platform-stats", classes="vdd-stats"),
            html.Div(
                [
                    panel(f"platform-{key}", title, classes="is-apart" if key in _BY_DAY else "")
                    for key, title in PANELS.items()
                ],
                className="vdd-panels is-two",
            ),
        ]
    )
    crumbs = (("Fleet", f"{PREFIX}{view.controls.search}"),)
    return Page(title="Platform", crumbs=crumbs, body=body)


def register(app: Dash, context: Context) -> None:
    """Register the callback that refreshes the platform tier."""
    AREAS.register(app)
    cache = MinuteCache(context.clock)

    @app.callback(
        Output("platform-problem", "children"),
        *AREAS.outputs(),
        *[Output(f"platform-{key}", "figure") for key in PANELS],
        Input("tick", "n_intervals"),
        Input("url", "search"),
        Input("platform-subject", "data"),
        AREAS.state(),
    )
    def refresh(
        _ticks: int | None, search: str | None, _subject: object, shown: dict[str, str] | None
    ) -> tuple[Any, ...]:
        controls, now = Controls.parse(search), context.clock()
        with context.reading() as (session, scope):
            scope.require(Permission.OPERATE)
            found = cache.get(
                "figures", lambda: platform_figures(session, context.store, scope, now=now)
            )
            span, charts = cache.get(
                controls.time_key,
                lambda: (
                    controls.span(now),
                    platform_charts(
                        session, context.store, scope, span=controls.span(now), now=now
                    ),
                ),
            )
        revision = f"platform:{controls.time_key}"
        return (
            components.problem_note(found.problem),
            *AREAS.fill(shown, {"platform-stats": _stats(found)}),
            time_figure(charts.utilization, span, revision=revision),
            time_figure(charts.ingest, span, revision=revision),
            time_figure(charts.gpu_hours, charts.days, revision="platform:days"),
            time_figure(charts.storage, charts.days, revision="platform:days"),
        )


def _stats(found: PlatformFigures) -> list[Any]:
    online = sum(count for life, count in found.by_life.items() if life.value == "online")
    return [
        stat("Appliances", str(found.appliances),
             note=f"{online} online, of {len(found.tenants)} tenants"),
        stat("GPUs", str(found.gpus)),
        stat("Utilisation, 24 h", percent_text(found.utilization_percent),
             percent=found.utilization_percent),
        stat("GPU-hours, 30 d", f"{found.gpu_hours:,.1f}"),
        stat("Points taken", value_text("points_per_second", found.points_per_second)),
        stat("Storage", value_text("storage_bytes", found.storage_bytes)),
    ]  # fmt: skip
