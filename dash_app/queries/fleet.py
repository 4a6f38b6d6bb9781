"""The fleet tier's figures: every appliance of a scope with its newest readings, and totals.

A GPU is *busy* when a job holds it, or when it is used although no job holds it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from alerting.service import alert_counts
from alerting.states import Severity
from core.clock import NS_PER_SECOND
from dash_app.charts import Chart, HeatMap, HeatRow, Line
from dash_app.queries.health import health_of, names_of
from dash_app.queries.telemetry import Answer, Telemetry, by_index, mean, number
from dash_app.timerange import Span
from jobqueue.executors.health import GPUHealth, HealthState
from jobqueue.models import Attempt, Job
from jobqueue.service import gpu_holders, job_counts
from jobqueue.states import HOLDING, JobState
from tenants.fleet.life import LifeState, in_service, life_of
from tenants.models import Appliance, ApplianceState
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Latest, Store

BUSY_PERCENT = 5.0
# An appliance's power counts on for this long after its last sample, so that a total has no teeth.
_CARRIED_SECONDS = 90
_GPU_FIELDS = ("utilization_percent", "memory_used_percent", "temperature_celsius", "power_watts",
               "throttled")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUTile:
    """One GPU of a card; readings that are not fresh are None, and so is unknown health.

    `findings` names what is wrong with it, for people.
    """

    index: str
    utilization_percent: float | None = None
    memory_used_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    is_throttled: bool = False
    health: HealthState | None = None
    findings: str = ""
    job_id: str = ""
    job_name: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether somebody uses it."""
        return bool(self.job_id) or (self.utilization_percent or 0.0) >= BUSY_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceCard:
    """One appliance as the fleet shows it. `disk_mount` names the fullest file system."""

    appliance_id: str
    name: str
    tenant_name: str
    site: str
    state: ApplianceState
    life: LifeState
    is_drained: bool
    health: HealthState | None = None
    appliance_class: str = ""
    cpu_percent: float | None = None
    memory_percent: float | None = None
    disk_percent: float | None = None
    disk_mount: str = ""
    gpus: tuple[GPUTile, ...] = ()
    running_jobs: int = 0

    @property
    def gpu_percent(self) -> float | None:
        """Mean utilisation of its GPUs."""
        return mean([g.utilization_percent for g in self.gpus if g.utilization_percent is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The summary row."""

    appliances: int = 0
    online: int = 0
    degraded: int = 0
    failed: int = 0
    failed_gpus: int = 0
    gpus: int = 0
    busy_gpus: int = 0
    gpu_percent: float | None = None
    power_watts: float | None = None
    running_jobs: int = 0
    queued_jobs: int = 0
    alerts: Mapping[Severity, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything of one refresh of the fleet tier."""

    totals: FleetTotals
    cards: tuple[ApplianceCard, ...]
    power: Chart
    usage: Answer
    problem: str


@dataclass(frozen=True, slots=True)
class _Readings:
    cpu: Mapping[str, Mapping[str, Any]]
    memory: Mapping[str, Mapping[str, Any]]
    disks: Mapping[str, Sequence[Latest]]
    gpus: Mapping[str, Sequence[Latest]]
    holders: Mapping[str, Job]
    running: Mapping[str, int]


def fleet(session: Session, store: Store, scope: Scope, *, span: Span) -> Fleet:
    """Return the fleet of a scope: one question per measurement, whatever the fleet's size."""
    statement = select(Appliance).where(in_service()).order_by(Appliance.name)
    appliances = session.scalars(scope.select(statement, Appliance)).unique().all()
    telemetry = Telemetry(store, scope, span)
    readings = _readings(session, telemetry, scope)
    usage = telemetry.over_time(
        "gpu", ("utilization_percent", "power_watts"), group_by=(APPLIANCE_TAG,)
    )
    cards = tuple(_card(appliance, readings) for appliance in appliances)
    return Fleet(
        totals=_totals(session, scope, cards),
        cards=cards,
        power=total_power(usage, {card.appliance_id: len(card.gpus) for card in cards}, span=span),
        usage=usage,
        problem=telemetry.problem,
    )


def usage_heat(usage: Answer, names: Mapping[str, str]) -> HeatMap:
    """Return GPU utilisation of the named appliances (id to name), in the mapping's order."""
    found = {s.tags.get(APPLIANCE_TAG, ""): s for s in usage.of("utilization_percent")}
    rows = tuple(
        HeatRow(name=name, times_ns=found[ident].times_ns, values=found[ident].values)
        for ident, name in names.items()
        if ident in found
    )
    return HeatMap(rows=rows, problem=usage.problem)


def total_power(usage: Answer, gpu_counts: Mapping[str, int], *, span: Span) -> Chart:
    """Return the fleet's GPU power: each appliance's mean per GPU times its number of GPUs."""
    carried = max(1, _CARRIED_SECONDS * NS_PER_SECOND // span.step_ns)
    totals: dict[int, float] = defaultdict(float)
    seen: set[int] = set()
    for series in usage.of("power_watts"):
        count = gpu_counts.get(series.tags.get(APPLIANCE_TAG, ""), 0)
        seen.update(series.times_ns)
        ends = [*series.times_ns[1:], span.end_ns]
        for time_ns, value, next_ns in zip(series.times_ns, series.values, ends, strict=True):
            until_ns = min(next_ns, time_ns + (carried + 1) * span.step_ns)
            for at_ns in range(time_ns, until_ns, span.step_ns):
                totals[at_ns] += value * count
    times_ns = sorted(seen)
    line = Line(
        name="GPU power", times_ns=times_ns, values=[totals[at_ns] for at_ns in times_ns], color=1
    )
    return Chart(field="power_watts", lines=(line,), problem=usage.problem)


def _readings(session: Session, telemetry: Telemetry, scope: Scope) -> _Readings:
    by_appliance = (APPLIANCE_TAG,)
    cpu = telemetry.latest("cpu", ("usage_percent",), group_by=by_appliance)
    memory = telemetry.latest("memory", ("used_percent",), group_by=by_appliance)
    disks = telemetry.latest("disk", ("used_percent",), group_by=(APPLIANCE_TAG, "mount"))
    gpus = telemetry.latest("gpu", _GPU_FIELDS, group_by=(APPLIANCE_TAG, "gpu", "uuid"))
    return _Readings(
        cpu={row.tags[APPLIANCE_TAG]: row.values for row in cpu},
        memory={row.tags[APPLIANCE_TAG]: row.values for row in memory},
        disks=_grouped(disks),
        gpus=_grouped(gpus),
        holders=gpu_holders(session, scope),
        running=_running_jobs(session, scope),
    )


def _grouped(rows: Sequence[Latest]) -> dict[str, list[Latest]]:
    groups: dict[str, list[Latest]] = defaultdict(list)
    for row in rows:
        groups[row.tags[APPLIANCE_TAG]].append(row)
    return groups


def _running_jobs(session: Session, scope: Scope) -> dict[str, int]:
    statement: Any = (
        select(Attempt.appliance_id, func.count())
        .where(Attempt.state.in_(HOLDING))
        .group_by(Attempt.appliance_id)
    )
    rows = session.execute(scope.select(statement, Attempt))
    return {appliance_id: count for appliance_id, count in rows}  # noqa: C416 - rows, not pairs


def _card(appliance: Appliance, readings: _Readings) -> ApplianceCard:
    ident, health = appliance.id, health_of(appliance)
    fullest = max(
        readings.disks.get(ident, ()),
        key=lambda row: number(row.values, "used_percent") or 0.0,
        default=None,
    )
    return ApplianceCard(
        appliance_id=ident,
        name=appliance.name,
        tenant_name=appliance.tenant.name,
        site=appliance.site,
        state=appliance.state,
        life=life_of(appliance),
        is_drained=appliance.drained_at is not None,
        health=health.told.state if health.told else None,
        appliance_class=health.told.appliance_class if health.told else "",
        cpu_percent=number(readings.cpu.get(ident, {}), "usage_percent"),
        memory_percent=number(readings.memory.get(ident, {}), "used_percent"),
        disk_percent=number(fullest.values, "used_percent") if fullest else None,
        disk_mount=fullest.tags.get("mount", "") if fullest else "",
        gpus=_tiles(appliance, readings, health.by_uuid),
        running_jobs=readings.running.get(ident, 0),
    )


def _tiles(
    appliance: Appliance, readings: _Readings, judged: Mapping[str, GPUHealth]
) -> tuple[GPUTile, ...]:
    rows = {row.tags["gpu"]: row for row in readings.gpus.get(appliance.id, ())}
    uuids = {str(gpu.index): gpu.uuid for gpu in judged.values() if gpu.index >= 0}
    uuids |= {index: row.tags.get("uuid", "") for index, row in rows.items()}
    uuids |= {str(gpu["index"]): str(gpu["uuid"]) for gpu in appliance.inventory.get("gpus", [])}
    return tuple(
        _tile(
            index,
            rows.get(index),
            readings.holders.get(uuids[index]),
            judged.get(uuids[index]),
        )
        for index in sorted(uuids, key=by_index)
    )


def _tile(index: str, row: Latest | None, job: Job | None, judged: GPUHealth | None) -> GPUTile:
    values = row.values if row else {}
    return GPUTile(
        index=index,
        utilization_percent=number(values, "utilization_percent"),
        memory_used_percent=number(values, "memory_used_percent"),
        temperature_celsius=number(values, "temperature_celsius"),
        power_watts=number(values, "power_watts"),
        is_throttled=bool(number(values, "throttled")),
        health=judged.state if judged else None,
        findings=names_of(judged.findings) if judged else "",
        job_id=job.id if job else "",
        job_name=job.name if job else "",
    )


def _totals(session: Session, scope: Scope, cards: Sequence[ApplianceCard]) -> FleetTotals:
    tiles = [tile for card in cards for tile in card.gpus]
    states = Counter(card.state for card in cards)
    healths = Counter(card.health for card in cards)
    jobs = job_counts(session, scope)
    powers = [tile.power_watts for tile in tiles if tile.power_watts is not None]
    return FleetTotals(
        appliances=len(cards),
        online=states[ApplianceState.ONLINE],
        degraded=healths[HealthState.DEGRADED],
        failed=healths[HealthState.FAILED],
        failed_gpus=sum(tile.health is HealthState.FAILED for tile in tiles),
        gpus=len(tiles),
        busy_gpus=sum(tile.is_busy for tile in tiles),
        gpu_percent=mean(
            [t.utilization_percent for t in tiles if t.utilization_percent is not None]
        ),
        power_watts=sum(powers) if powers else None,
        running_jobs=jobs.get(JobState.RUNNING, 0) + jobs.get(JobState.STARTING, 0),
        queued_jobs=jobs.get(JobState.QUEUED, 0) + jobs.get(JobState.SUBMITTED, 0),
        alerts=alert_counts(session, scope),
    )
