"""The fleet tier: every appliance of the scope as a card, with totals and the fleet's course."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import parse_qs, urlencode

from dash import Dash, Input, Output, dcc, html

from alerting.states import Severity
from dash_app import components
from dash_app.components import badge, meter, panel, percent_text, stat, value_text
from dash_app.context import Context, Page, View
from dash_app.figures import heat_figure, time_figure
from dash_app.health import TONES, health_badge
from dash_app.live import Areas, area
from dash_app.queries.fleet import ApplianceCard, Fleet, FleetTotals, GPUTile, fleet, usage_heat
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.timerange import Controls, Span
from jobqueue.executors.health import HealthState
from tenants.fleet.life import LifeState
from tenants.models import ApplianceState
from tenants.scope import Scope

AREAS = Areas("fleet", ("fleet-totals", "fleet-cards"))
CARDS_PER_PAGE = 48
STATES = ({"label": "All", "value": "all"}, {"label": "Online", "value": "online"},
          {"label": "Not online", "value": "away"},
          {"label": "Not healthy", "value": "ill"})  # fmt: skip
SORTS = ({"label": "Name", "value": "name"}, {"label": "GPU use", "value": "gpu"},
         {"label": "State", "value": "state"}, {"label": "Health", "value": "health"})  # fmt: skip
_ILLNESS = {HealthState.FAILED: 0, HealthState.DEGRADED: 1, None: 2, HealthState.HEALTHY: 3}
_WORST = frozenset({LifeState.LOST, LifeState.FENCED})
_SEVERITY = {
    ApplianceState.LOST: 0, ApplianceState.UNREACHABLE: 1, ApplianceState.STALE: 2,
    ApplianceState.ENROLLED: 3, ApplianceState.ONLINE: 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """Which cards to show, in which order."""

    text: str = ""
    state: str = "all"
    sort: str = "name"


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


def chosen(cards: Sequence[ApplianceCard], choice: Choice) -> list[ApplianceCard]:
    """Return the cards that match, in the order asked for, by tenant first."""
    words = choice.text.casefold().split()
    kept = [card for card in cards if all(word in _haystack(card) for word in words)]
    if choice.state == "ill":
        kept = [card for card in kept if card.health in TONES]
    elif choice.state != "all":
        wants_online = choice.state == "online"
        kept = [card for card in kept if (card.state is ApplianceState.ONLINE) is wants_online]
    return sorted(kept, key=lambda card: (card.tenant_name, *_rank(card, choice.sort)))


def _haystack(card: ApplianceCard) -> str:
    jobs = " ".join(tile.job_name for tile in card.gpus)
    return f"{card.name} {card.site} {card.life} {card.tenant_name} {jobs}".casefold()


def _rank(card: ApplianceCard, sort: str) -> tuple[float, str]:
    if sort == "gpu":
        return -(card.gpu_percent if card.gpu_percent is not None else -1.0), card.name
    if sort == "state":
        return _SEVERITY[card.state], card.name
    if sort == "health":
        return _ILLNESS[card.health], card.name
    return 0, card.name


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
    number, pages = _page_number(search, len(cards))
    shown = cards[(number - 1) * CARDS_PER_PAGE : number * CARDS_PER_PAGE]
    is_operator = scope.tenant_id is None
    names = {
        card.appliance_id: f"{card.tenant_name} / {card.name}" if is_operator else card.name
        for card in shown
    }
    heat = usage_heat(found.usage, names)
    revision = f"fleet:{controls.range_key}"
    is_empty = not found.cards
    trees = {
        "fleet-totals": _totals(found.totals),
        "fleet-cards": _cards_or_reason(
            found, shown, is_operator=is_operator, search=controls.search
        )
        + _pager(number, pages, controls),
    }
    return trees, (
        heat_figure(heat, span, revision=revision),
        {"minHeight": f"{max(240, 60 + 24 * len(heat.rows))}px"},
        time_figure(found.power, span, revision=revision),
        is_empty,
        is_empty,
    )


def _page_number(search: str, count: int) -> tuple[int, int]:
    pages = max(1, -(-count // CARDS_PER_PAGE))
    asked = parse_qs(search.removeprefix("?")).get("page", ["1"])[-1]
    return min(pages, max(1, int(asked) if asked.isdecimal() else 1)), pages


def _pager(number: int, pages: int, controls: Controls) -> list[Any]:
    if pages == 1:
        return []
    links = [
        dcc.Link(
            str(page),
            href=f"{PREFIX}{controls.search}&{urlencode({'page': page})}",
            className=f"page-link{' active' if page == number else ''}",
        )
        for page in range(1, pages + 1)
    ]
    return [html.Nav(html.Div(links, className="pagination"), className="vdd-pager")]


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


def _cards_or_reason(
    found: Fleet, shown: Sequence[ApplianceCard], *, is_operator: bool, search: str
) -> list[Any]:
    if not found.cards:
        return [
            components.empty_state(
                "No appliance yet",
                "An appliance appears here as soon as its agent has enrolled.",
                label="Add an appliance",
                href="/appliances",
            )
        ]
    if not shown:
        return [html.P("No appliance matches the filter.", className="vdd-muted vdd-empty")]
    if not is_operator:
        return [_grid(shown, search)]
    return [
        html.Section([html.H2(tenant, className="vdd-group"), _grid(list(group), search)])
        for tenant, group in groupby(shown, key=lambda card: card.tenant_name)
    ]


def _grid(cards: Sequence[ApplianceCard], search: str) -> Any:  # noqa: ANN401 - a Dash component
    return html.Div([_card(card, search) for card in cards], className="vdd-cards")


def _card(card: ApplianceCard, search: str) -> Any:  # noqa: ANN401 - a Dash component
    disk = f"{card.disk_mount} is the fullest" if card.disk_mount else ""
    path = appliance_path(card.appliance_id)
    return html.Article(
        [
            html.Div(
                [
                    components.state_dot(card.life),
                    dcc.Link(card.name, href=f"{path}{search}", className="vdd-card-name"),
                    html.Span(card.site, className="vdd-card-site", title=card.appliance_class),
                    html.Span(_badges(card), className="vdd-card-badges"),
                ],
                className="vdd-card-head",
            ),
            meter("CPU", card.cpu_percent),
            meter("Memory", card.memory_percent),
            meter("Disk", card.disk_percent, title=disk),
            meter("GPU", card.gpu_percent, warns=False),
            html.Div(
                [_tile(tile, card.appliance_id, search) for tile in card.gpus],
                className="vdd-tiles",
            )
            if card.gpus
            else html.Div("No GPU", className="vdd-muted vdd-no-gpu"),
        ],
        className=f"vdd-card is-{card.state}",
        key=card.appliance_id,
    )


def _badges(card: ApplianceCard) -> list[Any]:
    badges = [found] if (found := health_badge(card.health)) else []
    if card.life not in {LifeState.ONLINE, LifeState.DRAINED}:
        tone = "danger" if card.life in _WORST else "warning"
        badges.append(badge(card.life.value, tone=tone))
    if card.is_drained:
        badges.append(badge(LifeState.DRAINED.value))
    if card.running_jobs:
        jobs = "1 job" if card.running_jobs == 1 else f"{card.running_jobs} jobs"
        badges.append(badge(jobs, tone="primary"))
    return badges


def _tile(tile: GPUTile, appliance_id: str, search: str) -> Any:  # noqa: ANN401 - a component
    throttled = " is-throttled" if tile.is_throttled else ""
    held = " is-held" if tile.job_id else ""
    health = f" is-{tile.health.value}" if tile.health in TONES else ""
    percent = tile.utilization_percent
    return dcc.Link(
        components.ABSENT if percent is None else f"{percent:.0f}",
        href=f"{gpu_path(appliance_id, tile.index)}{search}",
        className=f"vdd-tile {components.shade(percent)}{throttled}{health}{held}",
        title=_tile_title(tile),
    )


def _tile_title(tile: GPUTile) -> str:
    parts = [
        f"GPU {tile.index}: {percent_text(tile.utilization_percent)}",
        f"memory {percent_text(tile.memory_used_percent)}",
        value_text("_celsius", tile.temperature_celsius),
        value_text("power_watts", tile.power_watts),
    ]
    if tile.is_throttled:
        parts.append("throttled")
    if tile.health in TONES:
        parts.append(f"{tile.health}: {tile.findings}")
    parts.append(f"job {tile.job_name}" if tile.job_id else "no job")
    return " · ".join(parts)
