"""Which appliances of a fleet are shown, in which order, and on which page."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from dash_app.health import TONES
from dash_app.queries.fleet import ApplianceCard
from jobqueue.executors.health import HealthState
from tenants.models import ApplianceState

CARDS_PER_PAGE = 48
STATES = ({"label": "All", "value": "all"}, {"label": "Online", "value": "online"},
          {"label": "Not online", "value": "away"},
          {"label": "Not healthy", "value": "ill"})  # fmt: skip
SORTS = ({"label": "Name", "value": "name"}, {"label": "GPU use", "value": "gpu"},
         {"label": "State", "value": "state"}, {"label": "Health", "value": "health"})  # fmt: skip
_ILLNESS = {HealthState.FAILED: 0, HealthState.DEGRADED: 1, None: 2, HealthState.HEALTHY: 3}
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


def page_number(search: str, count: int) -> tuple[int, int]:
    """Return the page that an address names, within the pages that there are, and their number."""
    pages = max(1, -(-count // CARDS_PER_PAGE))
    asked = parse_qs(search.removeprefix("?")).get("page", ["1"])[-1]
    return min(pages, max(1, int(asked) if asked.isdecimal() else 1)), pages


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
