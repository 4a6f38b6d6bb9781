"""What the list of appliances is narrowed by, as its address says, and how their events look."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final
from urllib.parse import urlencode

from flask import request, url_for

from core.paging import Page
from portal.pages.paging import chosen, search_text
from portal.showing.display import page_url
from tenants.fleet.appliance_list import SORTS, UNKNOWN, ApplianceFilter, Health
from tenants.fleet.events import EventKind
from tenants.fleet.life import LifeState
from tenants.models import Appliance, ApplianceEvent, HealthState

# Those of the address that are told as tags beside the list, with what people call them.
NARROWINGS: Final = {
    "life": "state", "health": "health", "appliance_class": "class", "gpu_model": "GPU",
    "site": "site", "region": "region", "label": "label", "search": "search",
}  # fmt: skip
_KEPT: Final = (*NARROWINGS, "sort", "page")
_TONES: Final = {
    "online": "good", "stale": "warn", "unreachable": "bad", "lost": "bad", "healthy": "good",
    "degraded": "warn", "failed": "bad",
}  # fmt: skip
_KIND_TONES: Final[Mapping[str, str]] = {
    EventKind.ENROLLED: "good", EventKind.ENROLLED_AGAIN: "good", EventKind.CLOCK: "warn",
    EventKind.REBOOT: "warn", EventKind.RETIRED: "off", EventKind.REVOKED: "bad",
    EventKind.FENCED: "bad", EventKind.REINSTATED: "good", EventKind.FENCE_LIFTED: "good",
    EventKind.LET_IN: "good",
}  # fmt: skip


def chosen_filter() -> ApplianceFilter:
    """Return what the query string narrows the list by; what it does not know it leaves out."""

    def text(name: str) -> str:
        return request.args.get(name, "").strip()

    return ApplianceFilter(
        life=chosen(LifeState, "life"),
        health=_chosen_health(),
        appliance_class=text("appliance_class"),
        site=text("site"),
        region=text("region"),
        label=text("label"),
        gpu_model=text("gpu_model"),
        search=search_text(),
    )


def address_of(endpoint: str) -> str:
    """Return the address of an endpoint with what narrows, sorts and pages the list."""
    kept = {name: request.args[name] for name in _KEPT if request.args.get(name)}
    address = url_for(endpoint)
    return f"{address}?{urlencode(kept)}" if kept else address


def chosen_sort() -> str:
    """Return what the query string sorts by; by name where it says nothing known."""
    sort = request.args.get("sort", "")
    return sort if sort.removeprefix("-") in SORTS else "name"


def narrowings() -> list[tuple[str, str, str]]:
    """Return what narrows the list: its word, its value, and the address without it."""
    return [
        (word, value, page_url(page=None, **{name: None}))
        for name, word in NARROWINGS.items()
        if (value := request.args.get(name, "").strip())
    ]


def live_address(wanted: ApplianceFilter, *, sort: str, page: Page[Appliance]) -> str:
    """Return the address by which the API tells that this page of the list has changed."""
    query = {name: value for name, value in asdict(wanted).items() if value}
    query |= {"sort": sort, "page": page.number, "page_size": page.size, "is_brief": "true"}
    return f"/api/v1/appliances?{urlencode(query)}"


def event_tone(event: ApplianceEvent) -> str:
    """Return the colour word of an event: of what became of the appliance, else of its kind."""
    after = _TONES.get(str(event.details.get("after", "")))
    if event.details.get("missing_gpus"):
        return "bad"
    return after or _KIND_TONES.get(event.kind, "idle")


def _chosen_health() -> Health | None:
    health = request.args.get("health")
    return UNKNOWN if health == UNKNOWN else chosen(HealthState, "health")
