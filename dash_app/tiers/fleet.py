"""The fleet tier: appliances as cards, totals, charts of the fleet, and what stands out in it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from alerting.states import Severity
from dash_app import components
from dash_app.components import badge, panel, percent_text, share, stat, value_text
from dash_app.context import Dashboard, Page, View
from dash_app.figures import heat_figure, message_figure, time_figures
from dash_app.markup import area
from dash_app.queries.fleet import ApplianceCard, FleetTotals, fleet, fleet_totals
from dash_app.queries.fleet_charts import METRICS, gpu_heat, host_charts, metric_of
from dash_app.queries.power import power_over_time
from dash_app.queries.rankings import rankings
from dash_app.queries.telemetry import Telemetry
from dash_app.tiers.cards import (
    CARDS_PER_PAGE,
    GROUPS,
    NO_MATCH,
    SORTS,
    STATES,
    Tile,
    filtered,
    grids,
    group_of,
    groupings,
    is_label,
    pager,
)
from dash_app.tiers.lists import lists
from timeseries.store import APPLIANCE_TAG

PANELS = {
    "heat": "GPUs over time",
    "power": "Total GPU power",
    "use": "Mean use of GPUs and hosts",
    "diskio": "Disk I/O, all disks",
    "network": "Network, all interfaces",
}


def layout(view: View) -> Page:
    """Return the page of the fleet, with the controls that the address sets."""
    choice = view.controls.choice
    text = dcc.Input(
        id="fleet-text",
        type="search",
        placeholder="Filter by name, site, GPU model, label, or job",
        debounce=0.25,
        value=view.controls.choices.get("text", ""),
        className="vdd-search",
    )
    labels = {key: metric.label for key, metric in METRICS.items()}
    # The first refresh adds the labels of the appliances.
    chosen = view.controls.choices.get("group", "")
    groups = GROUPS | ({chosen: chosen.removeprefix("label:")} if is_label(chosen) else {})
    filters = [
        text,
        components.segments("fleet-state", "State", STATES, value=choice("state", STATES)),
        components.segments("fleet-sort", "Sort by", SORTS, value=choice("sort", SORTS)),
        components.segments("fleet-group", "Group by", groups, value=choice("group", groups)),
        components.segments("fleet-color", "Show", labels, value=choice("color", METRICS)),
    ]
    panels = [panel(f"fleet-{key}", title) for key, title in PANELS.items()]
    body = [
        area("fleet-totals", "vdd-stats is-seven"),
        html.Details(
            [html.Summary("Filter and sort"), html.Div(filters, className="vdd-filters")],
            id="fleet-filters",
            className="vdd-filter-box",
            open=True,
        ),
        area("fleet-cards"),
        html.Div(panels, className="vdd-panels is-two", id="fleet-charts"),
        area("fleet-lists", "vdd-lists"),
    ]
    return Page(title="Fleet", crumbs=(), body=body)


def refresh(view: View) -> dict[str, Any]:
    """Return the data of the fleet."""
    current = fleet(view.session, view.store, view.scope, span=view.span)
    data: dict[str, Any] = {"problem": components.warning(current.problem)}
    choice, search = view.controls.choice, view.controls.search
    groups = groupings(current.cards, chosen=view.controls.choices.get("group", ""))
    grouping = choice("group", groups)
    cards = filtered(
        current.cards,
        text=view.controls.choices.get("text", ""),
        state=choice("state", STATES),
        sort=choice("sort", SORTS),
        grouping=grouping,
    )
    is_filtered = len(cards) < len(current.cards)
    totals = fleet_totals(view.session, view.scope, cards, is_filtered=is_filtered)
    data["totals"] = _totals(totals)
    if not current.cards:
        empty = components.empty_state(
            "No appliances yet",
            "Add an appliance and enroll its agent to see its metrics here.",
            label="Add an appliance",
            href="/appliances",
        )
        hidden = {"filters.hidden": True, "charts.hidden": True, "group.options": groups}
        return data | hidden | {"cards": [empty], "lists": []}
    pages = max(1, -(-len(cards) // CARDS_PER_PAGE))
    number = min(pages, view.controls.page)
    shown = cards[(number - 1) * CARDS_PER_PAGE : number * CARDS_PER_PAGE]
    is_operator = view.scope.tenant_id is None
    metric = metric_of(choice("color", METRICS), cards)

    def heading(card: ApplianceCard) -> str:
        parts = (card.tenant_name if is_operator else "", group_of(card, grouping))
        return " · ".join(filter(None, parts))

    data |= {
        "cards": grids(shown, Tile(metric, search), heading=heading)
        + pager(number, pages, view.controls),
        "filters.hidden": False,
        "charts.hidden": False,
        "group.options": groups,
    }
    if not cards:
        nothing = message_figure(NO_MATCH)
        return data | dict.fromkeys(PANELS, nothing) | {"lists": []}
    names = {
        card.appliance_id: f"{card.tenant_name} / {card.name}" if is_operator else card.name
        for card in shown
    }
    telemetry = _telemetry(view, cards if is_filtered else None, current.problem)
    on_page = _telemetry(view, shown if len(shown) < len(current.cards) else None, current.problem)
    charts = view.compared(
        host_charts(telemetry, view.cache),
        lambda span: host_charts(replace(telemetry, span=span), view.cache),
    )
    heat = gpu_heat(on_page, shown, metric, names=names)
    gpu_counts = {card.appliance_id: len(card.gpus) for card in cards}
    power = power_over_time(_telemetry(view, None, current.problem), view.cache, gpu_counts)
    revision = f"fleet:{view.controls.time_key}"
    ids = {card.appliance_id for card in cards} if is_filtered else None
    ranked = rankings(view.session, telemetry, view.cache, cards, appliances=ids, now=view.now)
    return data | {
        "heat": heat_figure(heat, on_page.span, metric=metric, search=search, revision=revision),
        "lists": lists(ranked, search=search),
        **time_figures({"power": power, **charts}, view.span, revision=revision),
    }


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=("totals", "cards", "lists"),
    panels=tuple(PANELS),
    properties=("filters.hidden", "charts.hidden", "group.options"),
    inputs={
        "text": "",
        "state": "all",
        "sort": "name",
        "group": "none",
        "color": "utilization",
    },
)


def _telemetry(view: View, cards: Sequence[ApplianceCard] | None, problem: str) -> Telemetry:
    """Return the queries for some appliances; None for all. An earlier problem fails them all."""
    filters = {APPLIANCE_TAG: tuple(card.appliance_id for card in cards)} if cards else {}
    return Telemetry(view.store, view.scope, view.span, filters=filters, problem=problem)


BUSY_HELP = (
    "Allocated to a job that starts or runs. Busy: a utilization of at least 5 %, "
    "whether allocated or not. A slice counts as its share of the GPU."
)


def _totals(totals: FleetTotals) -> list[Any]:
    critical = totals.alerts.get(Severity.CRITICAL, 0)
    warning = totals.alerts.get(Severity.WARNING, 0)
    alerts = _badges(
        (critical, "critical", "danger"),
        (warning, "warning" if warning == 1 else "warnings", "warning"),
        (totals.alerts.get(Severity.INFO, 0), "info", "info"),
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
            "GPUs allocated",
            f"{totals.allocated_gpus:g} / {totals.gpus}",
            note=_gpus_note(totals),
            percent=share(totals.allocated_gpus, totals.gpus) or 0,
            help_text=BUSY_HELP,
        ),
        stat(
            "GPU utilization",
            percent_text(totals.gpu_percent),
            percent=totals.gpu_percent or 0,
            note="mean now",
        ),
        stat("GPU power", value_text("power_watts", totals.power_watts)),
        stat("Jobs running", str(totals.running_jobs), note=jobs_note),
        html.A(
            stat("Alerts firing", str(critical + warning), note=alerts or "no alerts"),
            href="/alerts",
            className="vdd-stat-link",
        ),
    ]


def _gpus_note(totals: FleetTotals) -> str:
    """Return how many are busy, and the slices of jobs where GPUs are shared."""
    busy = f"{totals.busy_gpus} busy"
    if not totals.slices and not totals.free_slots:
        return busy
    noun = "slice" if totals.slices == 1 else "slices"
    return f"{busy} · {totals.slices} {noun}, {totals.free_slots} slots free"


def _badges(*counts: tuple[int, str, str]) -> list[Any]:
    return [badge(f"{count} {word}", tone=tone) for count, word, tone in counts if count]
