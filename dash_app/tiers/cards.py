"""The cards of a fleet's appliances with a tile per GPU: filter, order, pages."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from dash_app import components
from dash_app.components import (
    HEALTH_TONES,
    badge,
    health_badge,
    meter,
    percent_text,
    plain,
    value_text,
)
from dash_app.queries.annotations import finding_names
from dash_app.queries.fleet import ApplianceCard
from dash_app.queries.fleet_charts import Metric
from dash_app.queries.gpu_rows import ClusterFigures, GPURow, numbers
from dash_app.queries.telemetry import mean
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.timerange import Controls
from jobqueue.partitions.texts import slots_text
from protocol.health import HealthState
from tenants.fleet.states import EffectiveStatus
from tenants.models import ApplianceState

CARDS_PER_PAGE = 48
NO_MATCH = "No appliance matches the filter."
# Shades of a GPU tile; `assets/fleet.css` has one class for each.
SHADES = 10
STATES = {"all": "All", "online": "Online", "offline": "Not online", "unhealthy": "Unhealthy"}
SORTS = {"name": "Name", "gpu": "GPU use", "state": "State", "health": "Health"}
GROUPS = {"none": "None", "site": "Site", "model": "GPU model"}
MAX_LABEL_GROUPS = 3
_LABEL = "label:"
# Worst first.
_HEALTH_ORDER = (HealthState.FAILED, HealthState.DEGRADED, None, HealthState.HEALTHY)
_STATE_ORDER = (
    ApplianceState.LOST,
    ApplianceState.UNREACHABLE,
    ApplianceState.SILENT,
    ApplianceState.STALE,
    ApplianceState.ENROLLED,
    ApplianceState.REPORTING,
    ApplianceState.ONLINE,
)
PRESENT = frozenset({ApplianceState.ONLINE, ApplianceState.REPORTING})
_WORST = frozenset({EffectiveStatus.LOST, EffectiveStatus.FENCED, EffectiveStatus.QUARANTINED})


@dataclass(frozen=True, slots=True)
class Tile:
    """The metric that GPU tiles show, and the query string of their links."""

    metric: Metric
    search: str


def filtered(
    cards: Sequence[ApplianceCard],
    *,
    text: str = "",
    state: str = "all",
    sort: str = "name",
    grouping: str = "none",
) -> list[ApplianceCard]:
    """Return the matching cards in order, by tenant first, then by group."""
    words = text.casefold().split()
    matching = [card for card in cards if all(word in _search_text(card) for word in words)]
    if state == "unhealthy":
        matching = [card for card in matching if card.health in HEALTH_TONES]
    elif state != "all":
        is_online = state == "online"
        matching = [card for card in matching if (card.state in PRESENT) is is_online]
    return sorted(
        matching,
        key=lambda card: (
            card.tenant_name,
            group_of(card, grouping),
            _rank(card, sort),
            card.name,
        ),
    )


def is_label(grouping: str) -> bool:
    """Return whether a grouping is by a label: `label:rack`."""
    return grouping.startswith(_LABEL) and len(grouping) > len(_LABEL)


def groupings(cards: Sequence[ApplianceCard], *, chosen: str) -> dict[str, str]:
    """Return by what the cards can be grouped: site, model, their most common labels."""
    counts = Counter(key for card in cards for key in card.labels)
    labels = [key for key, _ in counts.most_common(MAX_LABEL_GROUPS)]
    if is_label(chosen) and (key := chosen.removeprefix(_LABEL)) not in labels:
        labels.append(key)
    return GROUPS | {f"{_LABEL}{key}": key for key in labels}


def group_of(card: ApplianceCard, grouping: str) -> str:
    """Return the name of a card's group; empty without a grouping."""
    kind, _, key = grouping.partition(":")
    groups = {
        "site": card.site,
        "model": card.gpu_model or ("" if card.gpus else "no GPU"),
        "label": card.labels.get(key, ""),
    }
    return (groups[kind] or f"no {key or kind}") if kind in groups else ""


def grids(
    cards: Sequence[ApplianceCard], tile: Tile, *, heading: Callable[[ApplianceCard], str]
) -> list[Any]:
    """Return the cards with a heading for each group; cards of a group are neighbors.

    Args:
        cards: in order.
        tile: what its GPU tiles show.
        heading: the name of a card's group, empty for none.
    """
    if not cards:
        return [html.P(NO_MATCH, className="vdd-muted vdd-empty")]
    sections = []
    for name, members in groupby(cards, key=heading):
        group = list(members)
        grid = html.Div([_card(card, tile) for card in group], className="vdd-cards")
        sections.append(html.Section([_group_heading(name, group), grid] if name else [grid]))
    return sections


def _group_heading(name: str, cards: Sequence[ApplianceCard]) -> Any:  # noqa: ANN401 - a component
    gpus = [gpu for card in cards if card.cluster is None for gpu in card.gpus]
    clusters = [card.cluster for card in cards if card.cluster is not None]
    use = mean(numbers(gpus, "utilization_percent"))
    count = len(gpus) + sum(cluster.gpus for cluster in clusters)
    allocated = sum(gpu.allocated for gpu in gpus)
    allocated += sum(cluster.allocated_gpus for cluster in clusters)
    facts = [
        f"{len(cards)} appliance{'s' if len(cards) != 1 else ''}",
        f"{count} GPUs, {allocated:z.{1 if allocated % 1 else 0}f} allocated" if count else "",
        f"{use:z.0f} % used" if use is not None else "",
    ]
    note = html.Span(" · ".join(filter(None, facts)), className="vdd-group-note")
    return html.H2([name, note], className="vdd-group")


def pager(number: int, pages: int, controls: Controls) -> list[Any]:
    """Return links to the pages of cards, where there is more than one."""
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
            **components.labeled("Pages"),
        )
    ]


def _search_text(card: ApplianceCard) -> str:
    jobs = " ".join(job.name for gpu in card.gpus for job in gpu.jobs)
    labels = " ".join(f"{key}={value}" for key, value in card.labels.items())
    cluster = card.cluster.title if card.cluster else ""
    place = (card.name, card.site, card.status, card.tenant_name, cluster)
    parts = (*place, card.gpu_model, labels, jobs)
    return " ".join(parts).casefold()


def _rank(card: ApplianceCard, sort: str) -> float:
    if sort == "gpu":
        return -card.gpu_percent if card.gpu_percent is not None else 1.0
    if sort == "state":
        return _STATE_ORDER.index(card.state)
    return _HEALTH_ORDER.index(card.health) if sort == "health" else 0.0


def _card(card: ApplianceCard, tile: Tile) -> Any:  # noqa: ANN401 - a Dash component
    disk = f"{card.disk_mount} is the fullest file system" if card.disk_mount else ""
    path = appliance_path(card.appliance_id)
    head = [
        components.status_dot(card.status),
        plain(dcc.Link, card.name, href=f"{path}{tile.search}", className="vdd-card-name"),
        plain(html.Span, card.site, className="vdd-card-site", title=card.appliance_class),
        plain(html.Span, _badges(card), className="vdd-card-badges"),
    ]
    tiles = plain(
        html.Div,
        [_tile(gpu, card.appliance_id, tile) for gpu in card.gpus],
        className="vdd-tiles",
    )
    parts = [
        plain(html.Div, head, className="vdd-card-head"),
        meter("CPU", card.cpu_percent),
        meter("Memory", card.memory_percent),
        meter("Disk", card.disk_percent, title=disk),
        _cluster_meter(card.cluster)
        if card.cluster
        else meter("GPU", card.gpu_percent, warns=False),
        tiles
        if card.gpus
        else plain(html.Div, _without_gpus(card), className="vdd-muted vdd-no-gpu"),
    ]
    return plain(html.Article, parts, className=f"vdd-card is-{card.state}")


def _cluster_meter(cluster: ClusterFigures) -> Any:  # noqa: ANN401 - a Dash component
    percent = 100 * cluster.allocated_gpus / cluster.gpus if cluster.gpus else None
    title = f"{cluster.allocated_gpus} of {cluster.gpus} GPUs of the cluster allocated"
    return meter("GPUs", percent, warns=False, title=title)


def _without_gpus(card: ApplianceCard) -> str:
    if (cluster := card.cluster) is None:
        return "No GPU"
    gpus = f", {cluster.allocated_gpus} of {cluster.gpus} GPUs allocated" if cluster.gpus else ""
    return f"{cluster.nodes_up} of {cluster.nodes} nodes up{gpus}, {cluster.waiting_jobs} waiting"


def _badges(card: ApplianceCard) -> list[Any]:
    badges = [health] if (health := health_badge(card.health)) else []
    if card.cluster is not None:
        badges.append(
            badge(card.cluster.title, tone="danger" if card.cluster.problem else "secondary")
        )
    if card.status is EffectiveStatus.REPORTING:
        badges.append(badge(card.status.value))
    elif card.status not in {EffectiveStatus.ONLINE, EffectiveStatus.DRAINED}:
        tone = "danger" if card.status in _WORST else "warning"
        badges.append(badge(card.status.value, tone=tone))
    if card.is_drained:
        badges.append(badge(EffectiveStatus.DRAINED.value))
    if card.running_jobs:
        jobs = "1 job" if card.running_jobs == 1 else f"{card.running_jobs} jobs"
        badges.append(badge(jobs, tone="primary"))
    return badges


def _tile(gpu: GPURow, appliance_id: str, tile: Tile) -> Any:  # noqa: ANN401 - a component
    value = gpu.number(tile.metric.field)
    shade = "none" if value is None else round(tile.metric.share(value) * SHADES)
    throttled = " is-throttled" if gpu.number("throttled") else ""
    health = f" is-{gpu.state.value}" if gpu.state in HEALTH_TONES else ""
    allocated = " is-allocated" if gpu.jobs else ""
    return plain(
        dcc.Link,
        components.ABSENT if value is None else f"{value:z.0f}",
        href=f"{gpu_path(appliance_id, gpu.index)}{tile.search}",
        className=f"vdd-tile vdd-shade-{shade}{throttled}{health}{allocated}",
        title=_tile_title(gpu),
    )


def _tile_title(gpu: GPURow) -> str:
    parts = [
        f"GPU {gpu.index}: {percent_text(gpu.number('utilization_percent'))}",
        f"memory {percent_text(gpu.number('memory_used_percent'))}",
        value_text("_celsius", gpu.number("temperature_celsius")),
        value_text("power_watts", gpu.number("power_watts")),
    ]
    if gpu.number("throttled"):
        parts.append("throttled")
    if gpu.health is not None and gpu.state in HEALTH_TONES:
        parts.append(f"{gpu.state}: {finding_names(gpu.health.findings)}")
    if gpu.occupancy is not None:
        parts.append(slots_text(gpu.occupancy))
    parts += [f"job {job.name}" for job in gpu.jobs] or ["no job"]
    return " · ".join(parts)
