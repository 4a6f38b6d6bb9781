"""The fleet tier: every appliance of the scope as a card, totals, and charts of the fleet."""

from typing import Any

from dash import dcc, html

from alerting.states import Severity
from dash_app import components
from dash_app.components import badge, panel, percent_text, share, stat, value_text
from dash_app.context import Dashboard, Page, View
from dash_app.figures import heat_figure, message_figure, time_figure
from dash_app.queries.fleet import FleetTotals, fleet, fleet_totals, total_power, usage_heat
from dash_app.tiers.cards import (
    CARDS_PER_PAGE,
    NO_MATCH,
    SORTS,
    STATES,
    filtered,
    grids,
    pager,
)


def layout(_view: View) -> Page:
    """Return the page of the fleet."""
    text = dcc.Input(
        id="fleet-text",
        type="search",
        placeholder="Filter by name, site, GPU model, label, or job",
        debounce=0.25,
        persistence=True,
        persistence_type="session",
        className="vdd-search",
    )
    filters = [
        text,
        components.segments("fleet-state", "State", STATES, value="all", persists=True),
        components.segments("fleet-sort", "Sort by", SORTS, value="name", persists=True),
    ]
    panels = [
        panel("fleet-heat", "GPU utilization by appliance (%)"),
        panel("fleet-power", "Total GPU power"),
    ]
    body = [
        html.Div(id="fleet-totals", className="vdd-stats is-seven"),
        html.Div(filters, className="vdd-filters", id="fleet-filters"),
        html.Div(id="fleet-cards"),
        html.Div(panels, className="vdd-panels is-two", id="fleet-charts"),
    ]
    return Page(title="Fleet", crumbs=(), body=body)


def refresh(view: View, text: str | None, state: str, sort: str) -> dict[str, Any]:
    """Return the data of the fleet."""
    found = fleet(view.session, view.store, view.scope, span=view.span)
    data: dict[str, Any] = {"problem": components.warning(found.problem)}
    cards = filtered(found.cards, text=text or "", state=state, sort=sort)
    is_filtered = len(cards) < len(found.cards)
    totals = fleet_totals(view.session, view.scope, cards, is_filtered=is_filtered)
    data["totals"] = _totals(totals)
    if not found.cards:
        empty = components.empty_state(
            "No appliances yet",
            "Add an appliance and enroll its agent to see its metrics here.",
            label="Add an appliance",
            href="/appliances",
        )
        return data | {"cards": [empty], "filters.hidden": True, "charts.hidden": True}
    pages = max(1, -(-len(cards) // CARDS_PER_PAGE))
    number = min(pages, view.controls.page)
    shown = cards[(number - 1) * CARDS_PER_PAGE : number * CARDS_PER_PAGE]
    is_operator = view.scope.tenant_id is None
    names = {
        card.appliance_id: f"{card.tenant_name} / {card.name}" if is_operator else card.name
        for card in shown
    }
    heat = usage_heat(found.usage, names)
    revision = f"fleet:{view.controls.time_key}"
    gpu_counts = {card.appliance_id: len(card.gpus) for card in cards}
    power = total_power(found.usage, gpu_counts, span=view.span)
    return data | {
        "cards": grids(shown, by_tenant=is_operator, search=view.controls.search)
        + pager(number, pages, view.controls),
        "heat": heat_figure(heat, view.span, revision=revision)
        if cards
        else message_figure(NO_MATCH),
        "heat.style": {"minHeight": f"{max(240, 60 + 24 * len(heat.lines))}px"},
        "power": time_figure(power, view.span, revision=revision)
        if cards
        else message_figure(NO_MATCH),
        "filters.hidden": False,
        "charts.hidden": False,
    }


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=("totals", "cards"),
    panels=("heat", "power"),
    properties=("heat.style", "filters.hidden", "charts.hidden"),
    inputs=("text", "state", "sort"),
)


def _totals(totals: FleetTotals) -> list[Any]:
    critical = totals.alerts.get(Severity.CRITICAL, 0)
    warning = totals.alerts.get(Severity.WARNING, 0)
    alerts = _badges(
        (critical, "critical", "danger"),
        (warning, "warning" if warning == 1 else "warnings", "warning"),
    )
    unhealthy = _badges(
        (totals.failed, "failed", "danger"),
        (totals.degraded, "degraded", "warning"),
        (totals.failed_gpus, "GPU failed" if totals.failed_gpus == 1 else "GPUs failed", "danger"),
    )
    jobs_note = "" if totals.queued_jobs is None else f"{totals.queued_jobs} queued"
    return [
        stat(
            "Appliances online",
            f"{totals.online} / {totals.appliances}",
            percent=share(totals.online, totals.appliances) or 0,
        ),
        stat(
            "Unhealthy", str(totals.degraded + totals.failed), note=unhealthy or "no health issues"
        ),
        stat(
            "GPUs busy",
            f"{totals.busy_gpus} / {totals.gpus}",
            percent=share(totals.busy_gpus, totals.gpus) or 0,
        ),
        stat("GPU utilization", percent_text(totals.gpu_percent), percent=totals.gpu_percent or 0),
        stat("GPU power", value_text("power_watts", totals.power_watts)),
        stat("Jobs running", str(totals.running_jobs), note=jobs_note),
        html.A(
            stat("Alerts firing", str(critical + warning), note=alerts or "no alerts"),
            href="/alerts",
            className="vdd-stat-link",
        ),
    ]


def _badges(*counts: tuple[int, str, str]) -> list[Any]:
    return [badge(f"{count} {word}", tone=tone) for count, word, tone in counts if count]
