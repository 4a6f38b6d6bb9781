"""The fleet tier: every appliance of the scope as a card, with totals and the fleet's course."""

from typing import Any

from dash import Dash, Input, Output, dcc, html

from alerting.states import Severity
from dash_app import components
from dash_app.components import badge, panel, percent_text, stat, value_text
from dash_app.context import Context, Page, View
from dash_app.figures import heat_figure, time_figure
from dash_app.live import Areas, area
from dash_app.queries.fleet import Fleet, FleetTotals, fleet, usage_heat
from dash_app.tiers.fleet_cards import cards_or_reason, pager
from dash_app.tiers.fleet_choice import CARDS_PER_PAGE, SORTS, STATES, Choice, chosen, page_number
from dash_app.timerange import Controls, Span
from tenants.scope import Scope

AREAS = Areas("fleet", ("fleet-totals", "fleet-cards"))


def layout(_view: View) -> Page:
    """Return the skeleton of the fleet tier."""
    body = html.Div(
        [
            html.Div(id="fleet-problem"),
            *AREAS.stores(),
            area("fleet-totals", classes="vdd-stats is-seven"),
            html.Div(_filters(), className="vdd-filters", id="fleet-filters"),
            area("fleet-cards", classes=""),
            html.Div(
                [
                    panel("fleet-heat", "GPU utilisation by appliance, %"),
                    panel("fleet-power", "GPU power, total"),
                ],
                className="vdd-panels is-two",
                id="fleet-panels",
            ),
        ]
    )
    return Page(title="Fleet", crumbs=(), body=body)


def register(app: Dash, context: Context) -> None:
    """Register the callback that refreshes the fleet tier."""
    AREAS.register(app)

    @app.callback(
        Output("fleet-problem", "children"),
        *AREAS.outputs(),
        Output("fleet-heat", "figure"),
        Output("fleet-heat", "style"),
        Output("fleet-power", "figure"),
        Output("fleet-filters", "hidden"),
        Output("fleet-panels", "hidden"),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        Input("fleet-text", "value"),
        Input("fleet-state", "value"),
        Input("fleet-sort", "value"),
        AREAS.state(),
    )
    def refresh(
        _ticks: int | None,
        search: str | None,
        text: str | None,
        state: str,
        sort: str,
        shown: dict[str, str] | None,
    ) -> tuple[Any, ...]:
        controls = Controls.parse(search)
        span = controls.span(context.clock())
        with context.reading() as (session, scope):
            found = fleet(session, context.store, scope, span=span)
        choice = Choice(text or "", state, sort)
        trees, rest = _filled(found, scope, choice, span=span, search=search or "")
        return (components.problem_note(found.problem), *AREAS.fill(shown, trees), *rest)


def _filters() -> list[Any]:
    return [
        dcc.Input(
            id="fleet-text", type="search", placeholder="Filter by name, site or job",
            debounce=0.25, persistence=True, persistence_type="session", className="vdd-search",
        ),
        components.segments("fleet-state", "State", STATES, value="all", persists=True),
        components.segments("fleet-sort", "Sort by", SORTS, value="name", persists=True),
    ]  # fmt: skip


def _filled(
    found: Fleet, scope: Scope, choice: Choice, *, span: Span, search: str
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    controls = Controls.parse(search)
    cards = chosen(found.cards, choice)
    number, pages = page_number(search, len(cards))
    shown = cards[(number - 1) * CARDS_PER_PAGE : number * CARDS_PER_PAGE]
    is_operator = scope.tenant_id is None
    names = {
        card.appliance_id: f"{card.tenant_name} / {card.name}" if is_operator else card.name
        for card in shown
    }
    heat = usage_heat(found.usage, names)
    revision = f"fleet:{controls.time_key}"
    is_empty = not found.cards
    trees = {
        "fleet-totals": _totals(found.totals),
        "fleet-cards": cards_or_reason(
            found, shown, is_operator=is_operator, search=controls.search
        )
        + pager(number, pages, controls),
    }
    return trees, (
        heat_figure(heat, span, revision=revision),
        {"minHeight": f"{max(240, 60 + 24 * len(heat.rows))}px"},
        time_figure(found.power, span, revision=revision),
        is_empty,
        is_empty,
    )


def _totals(totals: FleetTotals) -> list[Any]:
    critical = totals.alerts.get(Severity.CRITICAL, 0)
    warning = totals.alerts.get(Severity.WARNING, 0)
    alerts = [
        badge(f"{count} {word}", tone=tone)
        for count, word, tone in (
            (critical, "critical", "danger"),
            (warning, "warning" if warning == 1 else "warnings", "warning"),
        )
        if count
    ]  # fmt: skip
    return [
        stat("Appliances online", f"{totals.online} / {totals.appliances}",
             percent=_share(totals.online, totals.appliances)),
        stat("Not healthy", str(totals.degraded + totals.failed), note=_illness(totals)),
        stat("GPUs busy", f"{totals.busy_gpus} / {totals.gpus}",
             percent=_share(totals.busy_gpus, totals.gpus)),
        stat("GPU utilisation", percent_text(totals.gpu_percent), percent=totals.gpu_percent or 0),
        stat("GPU power", value_text("power_watts", totals.power_watts)),
        stat("Jobs running", str(totals.running_jobs), note=f"{totals.queued_jobs} queued"),
        html.A(
            stat("Alerts firing", str(critical + warning), note=alerts or "all quiet"),
            href="/alerts", className="vdd-stat-link",
        ),
    ]  # fmt: skip


def _illness(totals: FleetTotals) -> Any:  # noqa: ANN401 - a Dash component
    words = (
        (totals.failed, "failed", "danger"),
        (totals.degraded, "degraded", "warning"),
        (totals.failed_gpus, "GPU failed" if totals.failed_gpus == 1 else "GPUs failed", "danger"),
    )
    badges = [badge(f"{count} {word}", tone=tone) for count, word, tone in words if count]
    return badges or "all well"


def _share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
