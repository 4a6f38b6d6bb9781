"""The appliance list's filters, events, health findings and enroll commands."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

from flask import request, url_for

from core.advertised_ca import advertised_ca
from core.paging import Page
from jobqueue.models import Attempt
from portal.context import portal
from portal.presenters.display import page_url
from portal.query_string import chosen, search_text
from protocol.health import ApplianceHealth, HealthFinding, HealthReason, HealthState, advice_for
from tenants.fleet.appliances import SORTS, UNKNOWN, ApplianceFilter, Nodes, read_health
from tenants.fleet.events import EventKind
from tenants.fleet.states import EffectiveStatus
from tenants.models import Appliance, ApplianceEvent

# Query parameters shown as removable filter tags, with their labels.
FILTERS: Final = {
    "status": "status",
    "health": "health",
    "appliance_class": "class",
    "gpu_model": "GPU",
    "site": "site",
    "region": "region",
    "label": "label",
    "search": "search",
    "nodes": "nodes",
    "connector": "cluster",
}
_LIST_PARAMETERS: Final = (*FILTERS, "sort", "page")
_TONES: Final = {
    "online": "good",
    "stale": "warn",
    "unreachable": "bad",
    "lost": "bad",
    "reporting": "good",
    "silent": "bad",
    "healthy": "good",
    "degraded": "warn",
    "failed": "bad",
}
_KIND_TONES: Final[Mapping[str, str]] = {
    EventKind.ENROLLED: "good",
    EventKind.ENROLLED_AGAIN: "good",
    EventKind.REPORTING: "good",
    EventKind.ADDED: "good",
    EventKind.CLOCK: "warn",
    EventKind.REBOOT: "warn",
    EventKind.RETIRED: "off",
    EventKind.REVOKED: "bad",
    EventKind.FENCED: "bad",
    EventKind.QUARANTINED: "bad",
    EventKind.RELEASED: "good",
    EventKind.REINSTATED: "good",
    EventKind.FENCE_LIFTED: "good",
    EventKind.READMITTED: "good",
    EventKind.SAMPLES_REJECTED: "warn",
    EventKind.VERIFICATION: "warn",
}
# They summarize the findings of the GPUs.
_SUMMARIES = frozenset({HealthReason.GPU_FAILED, HealthReason.GPU_DEGRADED})
_ORDER = (HealthState.FAILED, HealthState.DEGRADED, HealthState.HEALTHY)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One health finding; `gpu` is a GPU's index, None for the appliance."""

    gpu: int | None
    state: HealthState
    name: str
    detail: str
    action: str


def chosen_filter() -> ApplianceFilter:
    """Return the filter in the query string, ignoring unknown values."""

    def text(name: str) -> str:
        return request.args.get(name, "").strip()

    health = request.args.get("health")
    # A cluster has hundreds of nodes: they are listed only if they are looked for.
    looks_for_nodes = any(map(text, ("search", "label", "connector")))
    return ApplianceFilter(
        nodes=chosen(Nodes, "nodes") or (Nodes.ALL if looks_for_nodes else Nodes.WITHOUT),
        connector=text("connector"),
        status=chosen(EffectiveStatus, "status"),
        health=UNKNOWN if health == UNKNOWN else chosen(HealthState, "health"),
        appliance_class=text("appliance_class"),
        site=text("site"),
        region=text("region"),
        label=text("label"),
        gpu_model=text("gpu_model"),
        search=search_text(),
    )


def url_with_filters(endpoint: str) -> str:
    """Return an endpoint's URL with the list's filters, sort order and page."""
    query = {name: request.args[name] for name in _LIST_PARAMETERS if request.args.get(name)}
    return f"{url_for(endpoint)}?{urlencode(query)}" if query else url_for(endpoint)


def chosen_sort() -> str:
    """Return the sort key in the query string, by default the name."""
    sort = request.args.get("sort", "")
    return sort if sort.removeprefix("-") in SORTS else "name"


def active_filters(connectors: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return each active filter's label and value, and the URL without it.

    Args:
        connectors: the names of connectors by id.
    """
    return [
        (label, connectors.get(value, value), page_url(page=None, **{name: None}))
        for name, label in FILTERS.items()
        if (value := request.args.get(name, "").strip())
    ]


def live_url(wanted: ApplianceFilter, *, sort: str, page: Page[Appliance]) -> str:
    """Return the API URL that the page polls for changes."""
    query = {name: value for name, value in asdict(wanted).items() if value}
    query |= {"sort": sort, "page": page.number, "page_size": page.size}
    return f"/api/v1/appliances?{urlencode(query)}"


def event_tone(event: ApplianceEvent) -> str:
    """Return the color of an event, by the resulting state if there is one."""
    after = _TONES.get(str(event.details.get("after", "")))
    if event.details.get("missing_gpus"):
        return "bad"
    return after or _KIND_TONES.get(event.kind, "idle")


def finding_rows(health: ApplianceHealth | None) -> list[FindingRow]:
    """Return all findings, most severe first, the appliance's before its GPUs'."""
    if health is None:
        return []
    own = [finding for finding in health.findings if finding.reason not in _SUMMARIES]
    rows = [*_rows(None, own)]
    for gpu in health.gpus:
        rows += _rows(gpu.index, gpu.findings)
    return sorted(rows, key=lambda row: _ORDER.index(row.state))


def gpu_findings(attempt: Attempt | None) -> list[FindingRow]:
    """Return the health findings of the GPUs that an attempt uses."""
    health = read_health(attempt.appliance) if attempt else None
    if attempt is None or health is None:
        return []
    used = [gpu for gpu in health.gpus if gpu.uuid in attempt.gpu_uuids]
    return finding_rows(ApplianceHealth(state=health.state, gpus=used))


def enroll_command(secret: str, *, is_repeated: bool = False) -> str:
    """Return the command that enrolls a host; it pins the portal's CA if it is private."""
    settings = portal().settings
    command = f"vedette agent enroll {settings.resolved_public_url} {secret}"
    authority = advertised_ca(settings)
    if authority is not None:
        command = f"{command} --ca-sha256 {authority.sha256}"
    return f"{command} --again" if is_repeated else command


def _rows(gpu: int | None, findings: Iterable[HealthFinding]) -> Iterator[FindingRow]:
    for finding in findings:
        advice = advice_for(finding.reason)
        yield FindingRow(gpu, finding.state, advice.name, finding.detail, advice.action)
