"""The fleet tier's data: every appliance of a scope with its latest values, and totals."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from alerting.rules.service import alert_counts
from alerting.states import Severity
from dash_app.queries.gpu_rows import REPORTS, ClusterFigures, GPURow, Report, gpu_rows, numbers
from dash_app.queries.telemetry import Telemetry, fullest_disk, mean, number, single
from dash_app.timerange import Span
from jobqueue.models import Attempt
from jobqueue.partitions.allocations import (
    GPUAllocations,
    GPUSite,
    SegmentKind,
    read_gpu_allocations,
)
from jobqueue.queue.service import job_counts
from jobqueue.rentals import on_appliances_of
from jobqueue.states import ALLOCATED_STATES, JobState
from protocol.health import HealthState
from tenants.fleet.states import EffectiveStatus, effective_status_of, has_no_connector, in_service
from tenants.models import Appliance, ApplianceState, Tenant
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Latest, Store

# The latest values on a card: measurement to fields, and the tags that tell devices apart.
_CARD_QUERIES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cpu": (("usage_percent",), ()),
    "memory": (("used_percent",), ()),
    "disk": (("used_percent",), ("mount",)),
    "gpu": (
        (
            "utilization_percent",
            "memory_used_percent",
            "temperature_celsius",
            "power_watts",
            "power_limit_watts",
            "throttled",
        ),
        ("gpu", "uuid"),
    ),
}


# Rows of columns are read in a quarter of the time of objects.
_COLUMNS = (
    Appliance.id,
    Appliance.tenant_id,
    Appliance.name,
    Tenant.name.label("tenant_name"),
    Appliance.site,
    Appliance.state,
    Appliance.drained_at,
    Appliance.quarantined_at,
    Appliance.fenced_at,
    Appliance.retired_at,
    Appliance.revoked_at,
    Appliance.gpu_model,
    Appliance.labels,
    Appliance.report_id,
)


@dataclass(slots=True, kw_only=True)
class ApplianceCard:
    """One appliance; `disk_mount` is its fullest file system.

    That of a connector stands for its cluster, whose nodes have no cards.
    """

    appliance_id: str
    name: str
    tenant_name: str
    site: str
    state: ApplianceState
    status: EffectiveStatus
    is_drained: bool
    health: HealthState | None = None
    appliance_class: str = ""
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_percent: float | None = None
    memory_percent: float | None = None
    disk_percent: float | None = None
    disk_mount: str = ""
    gpus: tuple[GPURow, ...] = ()
    running_jobs: int = 0
    cluster: ClusterFigures | None = None

    @property
    def gpu_percent(self) -> float | None:
        """Mean utilization of its GPUs."""
        return mean(numbers(self.gpus, "utilization_percent"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The summary row; without `queued_jobs` if it is that of some appliances only.

    `slices` are those of jobs; `free_slots` can be had by others.
    """

    appliances: int = 0
    online: int = 0
    degraded: int = 0
    failed: int = 0
    failed_gpus: int = 0
    gpus: int = 0
    allocated_gpus: float = 0.0
    slices: int = 0
    free_slots: int = 0
    busy_gpus: int = 0
    gpu_percent: float | None = None
    power_watts: float | None = None
    running_jobs: int = 0
    queued_jobs: int | None = None
    alerts: Mapping[Severity, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The appliances at one refresh."""

    cards: tuple[ApplianceCard, ...]
    problem: str


def fleet(session: Session, store: Store, scope: Scope, *, span: Span) -> Fleet:
    """Return the fleet of a scope, with one query per measurement."""
    statement: Any = select(*_COLUMNS).join(Tenant, Appliance.tenant_id == Tenant.id)
    statement = scope.select(statement.where(in_service(), has_no_connector()), Appliance)
    appliances = session.execute(statement.order_by(Appliance.name)).all()
    reports = REPORTS.read(session, {appliance.id: appliance.report_id for appliance in appliances})
    telemetry = Telemetry(store, scope, span)
    latest: dict[tuple[str, str], list[Latest]] = defaultdict(list)
    for measurement, (fields, tags) in _CARD_QUERIES.items():
        for row in telemetry.latest(measurement, fields, group_by=(APPLIANCE_TAG, *tags)):
            latest[measurement, row.tags[APPLIANCE_TAG]].append(row)
    allocations, running = read_gpu_allocations(session, scope), _running_jobs(session, scope)
    cards = tuple(
        _card(appliance, report, latest, allocations, running_jobs=running.get(appliance.id, 0))
        for appliance in appliances
        if (report := reports.get(appliance.id))  # else deleted a moment ago
    )
    return Fleet(cards=cards, problem=telemetry.problem)


def _running_jobs(session: Session, scope: Scope) -> dict[str, int]:
    statement: Any = (
        select(Attempt.appliance_id, func.count())
        .where(Attempt.state.in_(ALLOCATED_STATES), on_appliances_of(scope))
        .group_by(Attempt.appliance_id)
    )
    rows = session.execute(statement)
    return {appliance_id: count for appliance_id, count in rows}  # noqa: C416 - rows, not pairs


def _card(
    appliance: Row[Any],
    report: Report,
    latest: Mapping[tuple[str, str], Sequence[Latest]],
    allocations: GPUAllocations,
    *,
    running_jobs: int,
) -> ApplianceCard:
    ident, health = appliance.id, report.health
    site = GPUSite(appliance.tenant_id, appliance.labels, report.modes)
    disk, mount = fullest_disk(latest.get(("disk", ident), ()))
    return ApplianceCard(
        appliance_id=ident,
        name=appliance.name,
        tenant_name=appliance.tenant_name,
        site=appliance.site,
        state=appliance.state,
        status=effective_status_of(appliance),
        is_drained=appliance.drained_at is not None,
        health=health.state if health else None,
        appliance_class=health.appliance_class if health else "",
        gpu_model=appliance.gpu_model,
        labels=appliance.labels,
        cpu_percent=number(single(latest.get(("cpu", ident), ())), "usage_percent"),
        memory_percent=number(single(latest.get(("memory", ident), ())), "used_percent"),
        disk_percent=disk,
        disk_mount=mount,
        gpus=gpu_rows(report, latest.get(("gpu", ident), ()), allocations, site),
        running_jobs=running_jobs,
        cluster=report.cluster,
    )


def fleet_totals(
    session: Session, scope: Scope, cards: Sequence[ApplianceCard], *, is_filtered: bool
) -> FleetTotals:
    """Return the totals of the whole fleet, or of the appliances that match a filter."""
    gpus = [gpu for card in cards for gpu in card.gpus]
    clusters = [card.cluster for card in cards if card.cluster is not None]
    # A cluster may run jobs on the host of its connector: its GPUs are among those of the nodes.
    own = [gpu for card in cards if card.cluster is None for gpu in card.gpus]
    states = Counter(card.state for card in cards)
    healths = Counter(card.health for card in cards)
    jobs = {} if is_filtered else job_counts(session, scope)
    powers = numbers(gpus, "power_watts")
    shown = {card.appliance_id for card in cards} if is_filtered else None
    return FleetTotals(
        appliances=len(cards),
        online=states[ApplianceState.ONLINE] + states[ApplianceState.REPORTING],
        degraded=healths[HealthState.DEGRADED],
        failed=healths[HealthState.FAILED],
        failed_gpus=sum(gpu.state is HealthState.FAILED for gpu in gpus),
        gpus=len(own) + sum(cluster.gpus for cluster in clusters),
        allocated_gpus=round(sum(gpu.allocated for gpu in own), 2)
        + sum(cluster.allocated_gpus for cluster in clusters),
        slices=sum(len(gpu.sharing) for gpu in gpus),
        free_slots=sum(
            gpu.occupancy.slots_with(SegmentKind.FREE, SegmentKind.IDLE)
            for gpu in gpus
            if gpu.occupancy and not gpu.is_out_of_service
        ),
        busy_gpus=sum(gpu.is_busy for gpu in gpus),
        gpu_percent=mean(numbers(gpus, "utilization_percent")),
        power_watts=sum(powers) if powers else None,
        running_jobs=sum(card.running_jobs for card in cards)
        if is_filtered
        else jobs.get(JobState.RUNNING, 0) + jobs.get(JobState.STARTING, 0),
        queued_jobs=None
        if is_filtered
        else jobs.get(JobState.QUEUED, 0) + jobs.get(JobState.SUBMITTED, 0),
        alerts=alert_counts(session, scope, appliances=shown),
    )
