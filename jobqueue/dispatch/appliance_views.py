"""Appliances as placement sees them, from the database; `usable_appliances` says which.

Read as plain columns: a fleet of 10,000 appliances and its jobs is read in each cycle. An
appliance's report is read and parsed again only when it has changed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, Text, or_, select, type_coerce
from sqlalchemy.orm import Session

from jobqueue.executors.abilities import Need
from jobqueue.jobs.settings import settings_of
from jobqueue.partitions.mig import valid_profiles
from jobqueue.partitions.orders import GPU, Policy, placed_layout, policies_of, policy_for
from jobqueue.placement.clusters import ClusterView
from jobqueue.placement.slices import GPUKind
from jobqueue.placement.views import ApplianceView, GPUView, Reach, RunningJob
from protocol.clusters import ClusterReport
from protocol.gangs import NetworkAbilities
from protocol.gpu_slices import MIGProfile, PartitionMode
from protocol.health import ApplianceHealth, GPUHealth, HealthReason, HealthState, advice_for
from tenants.fleet.appliances import MAX_REPORTS, ReportCache
from tenants.fleet.states import in_service
from tenants.models import Appliance

# Appliances with the same value are joined by NVLink.
NVLINK_DOMAIN_LABEL = "nvlink-domain"
# What runs, by appliance.
Running = Mapping[str, list[RunningJob]]


def hosts_of(tenant_id: str) -> list[ColumnElement[bool]]:
    """Return the conditions of a tenant's own appliances that get jobs, connectors included."""
    return [Appliance.tenant_id == tenant_id, *is_host()]


def is_host() -> list[ColumnElement[bool]]:
    """Return the conditions of appliances that get jobs, whoever owns them."""
    return [in_service(), Appliance.fenced_at.is_(None), Appliance.connector_id.is_(None)]


def own_views(
    session: Session,
    tenant_id: str,
    running: Running,
    *,
    only: Collection[str] | None = None,
    now: datetime | None = None,
) -> list[ApplianceView]:
    """Return what `tenant_views` does, with what runs on the appliances."""
    wanted = hosts_of(tenant_id)
    if only is not None:
        wanted.append(or_(Appliance.id.in_(only), Appliance.name.in_(only)))
    rows = session.execute(select(*APPLIANCE_COLUMNS).where(*wanted)).all()
    policies = {tenant_id: policies_of(session, tenant_id)}
    encrypts = settings_of(session, tenant_id).encrypts_gang_networks
    return views_of(session, rows, running, policies, encrypts=encrypts, now=now)


# Of the rows that views are made from.
APPLIANCE_COLUMNS = (
    Appliance.id,
    Appliance.tenant_id,
    Appliance.name,
    Appliance.state,
    Appliance.drained_at,
    Appliance.last_placed_at,
    Appliance.quarantined_at,
    Appliance.quarantine_reason,
    Appliance.probe_at,
    Appliance.report_id,
    Appliance.site,
    type_coerce(Appliance.labels, Text).label("labels"),
)


def views_of(
    session: Session,
    rows: Sequence[Row[*tuple[Any, ...]]],
    running: Running,
    policies: Mapping[str, Sequence[Policy]],
    *,
    encrypts: bool = False,
    now: datetime | None,
) -> list[ApplianceView]:
    """Return the appliances of rows with `APPLIANCE_COLUMNS`.

    Args:
        session: the session.
        rows: the appliances.
        running: what runs on them.
        policies: how their tenants share GPUs, by tenant.
        encrypts: whether the networks of gangs are encrypted within a site.
        now: the time; without it no trial is due on quarantined ones.
    """
    reports = _REPORTS.read(session, {row.id: row.report_id for row in rows})
    views = []
    for row in rows:
        report = reports.get(row.id)
        if report is None:
            continue  # deleted a moment ago
        labels, jobs = label_pairs(row.labels), running.get(row.id, ())
        views.append(
            ApplianceView(
                id=row.id,
                name=row.name,
                state=row.state,
                is_drained=row.drained_at is not None,
                executors=report.executors,
                cpus=report.cpus,
                memory_bytes=report.memory_bytes,
                gpus=_partitioned(report, policies[row.tenant_id], labels),
                failure=report.failure,
                quarantine=row.quarantine_reason if row.quarantined_at else "",
                is_trial_due=_is_trial_due(row, report, jobs, now=now),
                labels=labels,
                running=jobs,
                last_used_at=row.last_placed_at,
                site=row.site,
                nvlink_domain=dict(labels).get(NVLINK_DOMAIN_LABEL, ""),
                missing=report.missing,
                reach=report.reach_encrypted if encrypts else report.reach,
                cluster=report.cluster,
            )
        )
    return views


def cluster_of(session: Session, appliance_id: str) -> ClusterView | None:
    """Return the cluster of a connector as it was reported last; None without one."""
    report_id = session.scalar(select(Appliance.report_id).where(Appliance.id == appliance_id))
    report = _REPORTS.read(session, {appliance_id: report_id}).get(appliance_id)
    return None if report is None else report.cluster


def models_of(views: Iterable[ApplianceView]) -> set[str]:
    """Return the models of the GPUs of appliances."""
    models: set[str] = set()
    for view in views:
        models.update(gpu.model for gpu in view.gpus)
        models.update(view.cluster.models if view.cluster else ())
    return models


def matching_models(words: Sequence[str], models: Iterable[str]) -> frozenset[str]:
    """Return the models that contain one of the words; the words where there is none."""
    lowered = [word.strip().lower() for word in words]
    matching = {model for model in models if any(word in model.lower() for word in lowered)}
    return frozenset(matching or lowered)


@lru_cache(MAX_REPORTS)
def label_pairs(stored: str) -> frozenset[tuple[str, str]]:
    """Return stored labels."""
    return frozenset(msgspec.json.decode(stored, type=dict[str, str]).items())


class _Report(NamedTuple):
    """The part of an appliance's report that placement needs."""

    executors: tuple[str, ...]
    cpus: float
    memory_bytes: int
    gpus: tuple[GPUView, ...]
    failure: str
    can_probe: bool
    partition_modes: frozenset[str]
    hardware: "Mapping[str, _GPU]"
    missing: Mapping[Need, str]
    reach: Reach
    reach_encrypted: Reach
    cluster: ClusterView | None = None


# A number of a broken agent must not overflow the sums over a fleet.
_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class _GPU(GPU, frozen=True, kw_only=True):
    memory_bytes: _Amount


class _Hardware(msgspec.Struct):
    """An inventory, likewise."""

    cpu_count: _Amount = 1
    memory_bytes: _Amount = 0
    gpus: list[_GPU] = []
    executors: list[str] = []
    can_probe: bool = False
    partition_modes: list[str] = []
    can_stage: bool = False
    network: NetworkAbilities = NetworkAbilities()
    can_keep_results: bool = False
    cluster: ClusterReport | None = None


def _parse(inventory: str, health: str | None) -> _Report:
    """Return a stored report; an invalid inventory has no executors, so it gets no jobs."""
    try:
        hardware = msgspec.json.decode(inventory, type=_Hardware)
    except msgspec.ValidationError:
        hardware = _Hardware()
    try:
        state = msgspec.json.decode(health, type=ApplianceHealth) if health else None
    except msgspec.ValidationError:
        state = None
    return _report(hardware, state)


def _report(inventory: _Hardware, health: ApplianceHealth | None) -> _Report:
    if inventory.cluster is not None:
        return _of_cluster(inventory, ClusterView.of(inventory.cluster))
    has_failed = health is not None and health.state is HealthState.FAILED
    return _Report(
        executors=tuple(inventory.executors),
        cpus=float(inventory.cpu_count),
        memory_bytes=inventory.memory_bytes,
        gpus=_gpu_views(inventory, health),
        failure=(_cause(health) or "failed") if has_failed else "",
        can_probe=inventory.can_probe,
        partition_modes=frozenset(inventory.partition_modes),
        hardware={gpu.uuid: gpu for gpu in inventory.gpus} if inventory.partition_modes else {},
        missing=_missing(inventory),
        reach=_reach_of(inventory.network, encrypts=False),
        reach_encrypted=_reach_of(inventory.network, encrypts=True),
    )


def _of_cluster(inventory: _Hardware, cluster: ClusterView) -> _Report:
    """Return the report of a connector, whose host runs no jobs."""
    return _Report(
        executors=tuple(inventory.executors),
        cpus=float(cluster.cpus[cluster.is_up].sum()),
        memory_bytes=int(cluster.memory_bytes[cluster.is_up].sum()),
        gpus=(),
        failure="",
        can_probe=False,
        partition_modes=frozenset(),
        hardware={},
        missing=_missing(inventory),
        reach=Reach.ALONE,
        reach_encrypted=Reach.ALONE,
        cluster=cluster,
    )


def _missing(inventory: _Hardware) -> Mapping[Need, str]:
    """Return the needs of jobs that an appliance can't meet, and why."""
    missing = dict(_missing_networks(inventory.network))
    if not inventory.can_stage:
        missing[Need.DATASETS] = (
            "its agent fetches no datasets; update it, or set cache_dir in its configuration"
        )
    if not inventory.can_keep_results:
        missing[Need.OUTPUTS] = "its agent keeps no results; update it, or enable [results]"
    return missing


def _missing_networks(network: NetworkAbilities) -> Mapping[Need, str]:
    """Return the needs of jobs' networks that an appliance can't meet, and why."""
    missing = {}
    if not network.can_make_networks:
        why = network.problem.rstrip(".") or "its agent is of an earlier version, update it"
        missing[Need.GANG_NETWORK] = f"makes no private networks for gangs: {why}"
    if not network.can_use_host:
        missing[Need.HOST_NETWORK] = "its agent gives no job the host's network; update the agent"
    if not (network.can_use_host and network.rdma_devices):
        missing[Need.RDMA] = "has no RDMA devices"
    return missing


def _reach_of(network: NetworkAbilities, *, encrypts: bool) -> Reach:
    """Return how far a private network reaches from an appliance.

    `encrypts` is the tenant's setting for packets within a site.
    """
    if not network.can_make_networks:
        return Reach.NONE
    has_tunnel = bool(network.wireguard_public_key)
    if not network.address or (encrypts and not has_tunnel):
        return Reach.ALONE
    return Reach.ANYWHERE if has_tunnel and network.public_address else Reach.SITE


def _is_trial_due(
    row: Row[*tuple[Any, ...]],
    report: _Report,
    running: Sequence[RunningJob],
    *,
    now: datetime | None,
) -> bool:
    """Return whether a job may try a quarantined appliance, whose agent can't run probes."""
    if row.quarantined_at is None or report.can_probe or now is None:
        return False
    is_due = row.probe_at is None or row.probe_at <= now
    return is_due and all((job.assigned_at or now) <= row.quarantined_at for job in running)


_REPORTS = ReportCache(_parse)


def _gpu_views(inventory: _Hardware, health: ApplianceHealth | None) -> tuple[GPUView, ...]:
    """Return the GPUs of the inventory, and missing ones as failed.

    A missing GPU comes back after a repair, so it counts towards the appliance's totals, with the
    memory of the largest GPU that is left.
    """
    reported = {gpu.uuid: gpu for gpu in health.gpus} if health else {}
    listed = {gpu.uuid: (gpu.memory_bytes, gpu.model) for gpu in inventory.gpus}
    largest = max(listed.values(), default=(0, ""))
    missing = [
        uuid
        for uuid, gpu in reported.items()
        if uuid not in listed and gpu.state is HealthState.FAILED
    ]
    views = []
    for uuid, (memory_bytes, model) in (listed | dict.fromkeys(missing, largest)).items():
        gpu_health = reported.get(uuid)
        state = gpu_health.state if gpu_health else HealthState.HEALTHY
        view = GPUView(
            uuid,
            memory_bytes,
            state,
            _cause(gpu_health),
            model=model,
            is_used_outside=_outside(gpu_health),
        )
        views.append(view)
    return tuple(views)


def _partitioned(
    report: _Report, policies: Sequence[Policy], labels: frozenset[tuple[str, str]]
) -> Sequence[GPUView]:
    """Return the GPUs of an appliance as the tenant's policies share them."""
    has_mig = any(gpu.is_mig_enabled for gpu in report.hardware.values())
    if not (policies or has_mig):
        return report.gpus
    views = []
    for gpu in report.gpus:
        hardware = report.hardware.get(gpu.uuid)
        policy = policy_for(policies, gpu.model, labels)
        views.append(gpu if hardware is None else _shared(gpu, hardware, policy, report))
    return views


def _shared(gpu: GPUView, hardware: _GPU, policy: Policy, report: _Report) -> GPUView:
    is_mig = policy.mode is PartitionMode.MIG
    can = policy.mode in report.partition_modes and (hardware.is_mig_capable or not is_mig)
    kind = _kind(policy, gpu.memory_bytes, valid_profiles(hardware.mig_profiles)) if can else None
    is_switching = hardware.is_mig_enabled != (can and is_mig)
    return replace(gpu, kind=kind, is_switching=is_switching)


@lru_cache(1000)
def _kind(policy: Policy, memory_bytes: int, profiles: tuple[MIGProfile, ...]) -> GPUKind | None:
    if policy.mode is PartitionMode.WHOLE:
        return None
    if policy.mode is not PartitionMode.MIG:
        return GPUKind(mode=policy.mode, memory_bytes=memory_bytes, shares=policy.shares)
    return GPUKind(
        mode=policy.mode,
        memory_bytes=memory_bytes,
        profiles=profiles,
        layout=placed_layout(policy, profiles),
        may_change_layout=policy.may_change_layout,
    )


def _outside(health: GPUHealth | None) -> bool:
    """Return whether the agent sees programs on the GPU that belong to no job."""
    findings = health.findings if health else []
    return any(finding.reason == HealthReason.EXTERNAL_PROCESS for finding in findings)


def _cause(health: ApplianceHealth | GPUHealth | None) -> str:
    """Return the name of the first finding that explains the state, if any."""
    findings = health.findings if health else []
    return next(
        (
            advice_for(finding.reason).name
            for finding in findings
            if health and finding.state is health.state
        ),
        "",
    )
