"""The cards of a fleet's appliances, with a tile for each GPU."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from dash_app import components
from dash_app.components import badge, meter, percent_text, value_text
from dash_app.health import TONES, health_badge
from dash_app.queries.fleet import ApplianceCard, Fleet, GPUTile
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.timerange import Controls
from tenants.fleet.life import LifeState

_WORST = frozenset({LifeState.LOST, LifeState.FENCED})


def cards_or_reason(
    found: Fleet, shown: Sequence[ApplianceCard], *, is_operator: bool, search: str
) -> list[Any]:
    """Return the cards, by tenant for the operator, or why there are none."""
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


def pager(number: int, pages: int, controls: Controls) -> list[Any]:
    """Return the links to the pages of cards, where there is more than one."""
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
    return [
        html.Nav(
            html.Div(links, className="pagination"),
            className="vdd-pager",
            **components.labelled("Pages"),
        )
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
