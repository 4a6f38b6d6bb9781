"""The platform's totals by tenant: appliances, GPUs, jobs, utilization, ingest, storage.

*GPU-hours* are those that were allocated, the current hour included; *utilization* is the mean of
what the GPUs report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import UnavailableError
from jobqueue.models import Job
from jobqueue.states import JobState
from jobqueue.usage.ledger import floor_hour
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import UsageBy, usage_groups
from tenants.fleet.states import (
    EffectiveStatus,
    counted_gpus,
    has_effective_status,
    has_no_connector,
    in_service,
)
from tenants.lifecycle.usage import count_points, latest_usage, sample_counts
from tenants.models import Appliance, Membership, Tenant, TenantState
from tenants.permissions import Permission
from tenants.quotas import UNLIMITED, WARN_RATIO, Limits, all_limits
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, RangeQuery, Store

GPU_HOURS_OVER = timedelta(days=30)
UTILIZATION_OVER = timedelta(days=1)
INGEST_OVER = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant; values that were not measured are None."""

    id: str
    name: str
    slug: str
    state: TenantState
    limits: Limits = UNLIMITED
    users: int = 0
    appliances: int = 0
    gpus: int = 0
    active_jobs: int = 0
    gpu_hours: float = 0.0
    utilization_percent: float | None = None
    points_per_second: float | None = None
    storage_bytes: int | None = None
    series: int | None = None
    measurements: int | None = None
    fields: int | None = None

    @property
    def tightest_ratio(self) -> float:
        """The largest usage of a quota as a share of it; 0 without quotas."""
        pairs = (
            (self.appliances, self.limits.max_appliances),
            (self.gpus, self.limits.max_gpus),
            (self.active_jobs, self.limits.max_active_jobs),
            (self.storage_bytes or 0, self.limits.max_storage_bytes),
            (self.series or 0, self.limits.max_series),
            (self.measurements or 0, self.limits.max_measurements),
            (self.fields or 0, self.limits.max_fields),
        )
        return max(
            (ratio_of(used, limit) for used, limit in pairs if limit is not None), default=0.0
        )

    @property
    def is_near_a_quota(self) -> bool:
        """Return whether usage of a quota is above the warning level."""
        return self.tightest_ratio >= WARN_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFigures:
    """Totals of the platform; `problem` says why values from the store are missing.

    `utilization_percent` is the mean of all samples of the last day, as that of a tenant is of its
    own.
    """

    at: datetime
    by_status: Mapping[EffectiveStatus, int]
    by_class: Mapping[str, int]
    tenants: Sequence[TenantFigures]
    utilization_percent: float | None = None
    problem: str = ""

    @property
    def appliances(self) -> int:
        """Number of appliances in service."""
        return sum(count for status, count in self.by_status.items() if status.is_in_service)

    @property
    def gpus(self) -> int:
        """Number of their GPUs."""
        return sum(tenant.gpus for tenant in self.tenants)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the last 30 days."""
        return sum(tenant.gpu_hours for tenant in self.tenants)

    @property
    def points_per_second(self) -> float | None:
        """Ingest rate."""
        rates = [
            tenant.points_per_second
            for tenant in self.tenants
            if tenant.points_per_second is not None
        ]
        return sum(rates) if rates else None

    @property
    def storage_bytes(self) -> int | None:
        """Storage of all samples; None before the first measurement."""
        sizes = [
            tenant.storage_bytes for tenant in self.tenants if tenant.storage_bytes is not None
        ]
        return sum(sizes) if sizes else None

    @property
    def active_jobs(self) -> int:
        """Number of jobs that have not ended."""
        return sum(tenant.active_jobs for tenant in self.tenants)


def platform_figures(
    session: Session, store: Store, scope: Scope, *, now: datetime
) -> PlatformFigures:
    """Return the totals, without values from the store when it is unavailable."""
    scope.require(Permission.OPERATE)
    rows = _tenants(session, scope, now=now)
    problem, utilization = "", None
    try:
        rows = _with_readings(store, rows, now=now)
        utilization = _utilization(store, now=now).get("")
    except UnavailableError as error:
        problem = error.message
    return PlatformFigures(
        at=now,
        by_status=_by_status(session),
        by_class=_by_class(session),
        tenants=tuple(
            sorted(rows, key=lambda tenant: (-tenant.gpu_hours, -tenant.gpus, tenant.name))
        ),
        utilization_percent=utilization,
        problem=problem,
    )


def ratio_of(used: float, limit: float) -> float:
    """Return usage as a share of a limit; a limit of 0 is fully used."""
    return used / limit if limit else 1.0


def _tenants(session: Session, scope: Scope, *, now: datetime) -> list[TenantFigures]:
    fleet = _counted(
        session,
        select(Appliance.tenant_id, func.count(), func.sum(counted_gpus()))
        .where(in_service())
        .group_by(Appliance.tenant_id),
    )
    users = _counted(
        session, select(Membership.tenant_id, func.count()).group_by(Membership.tenant_id)
    )
    active = [state for state in JobState if not state.is_final]
    jobs = _counted(
        session,
        select(Job.tenant_id, func.count()).where(Job.state.in_(active)).group_by(Job.tenant_id),
    )
    hours = _gpu_hours(session, scope, now=now)
    limits, usage = all_limits(session), latest_usage(session)
    counts = sample_counts(session, now=now)
    return [
        TenantFigures(
            id=tenant.id,
            name=tenant.name,
            slug=tenant.slug,
            state=tenant.state,
            limits=limits.get(tenant.id, UNLIMITED),
            users=users.get(tenant.id, (0,))[0],
            appliances=fleet.get(tenant.id, (0, 0))[0],
            gpus=int(fleet.get(tenant.id, (0, 0))[1] or 0),
            active_jobs=jobs.get(tenant.id, (0,))[0],
            gpu_hours=hours.get(tenant.id, 0.0),
            storage_bytes=usage[tenant.id].storage_bytes if tenant.id in usage else None,
            **(counts[tenant.id]._asdict() if tenant.id in counts else {}),
        )
        for tenant in session.scalars(select(Tenant))
    ]


def _gpu_hours(session: Session, scope: Scope, *, now: datetime) -> dict[str, float]:
    """Return the GPU-hours by tenant."""
    period = Period(floor_hour(now) - GPU_HOURS_OVER, now)
    live = live_use(session, None, scope, period, now=now)
    count = session.scalar(select(func.count()).select_from(Tenant)) or 0
    groups = usage_groups(session, scope, period, by=UsageBy.TENANT, live=live, limit=count)
    return {tenant.key: tenant.allocated_gpu_hours for tenant in groups}


def _with_readings(
    store: Store, rows: Sequence[TenantFigures], *, now: datetime
) -> list[TenantFigures]:
    end_ns = to_ns(now)
    use = _utilization(store, now=now, group_by=(TENANT_TAG,))
    points = count_points(store, start_ns=to_ns(now - INGEST_OVER), end_ns=end_ns)
    seconds = INGEST_OVER.total_seconds()
    return [
        replace(
            row,
            utilization_percent=use.get(row.id),
            points_per_second=points[row.id] / seconds,
        )
        for row in rows
    ]


def _utilization(
    store: Store, *, now: datetime, group_by: tuple[str, ...] = ()
) -> dict[str, float]:
    """Return the mean GPU utilization of the last day, by the value of a tag."""
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        start_ns=to_ns(now - UTILIZATION_OVER),
        end_ns=to_ns(now),
        tenants=None,
        group_by=group_by,
    )
    return {"".join(series.tags.values()): series.values[-1] for series in store.query_range(query)}


def _by_status(session: Session) -> dict[EffectiveStatus, int]:
    columns = [
        func.sum(case((has_effective_status(status), 1), else_=0)) for status in EffectiveStatus
    ]
    counts = session.execute(select(*columns).where(has_no_connector())).one()
    return {status: int(count or 0) for status, count in zip(EffectiveStatus, counts, strict=True)}


def _by_class(session: Session) -> dict[str, int]:
    statement = (
        select(Appliance.appliance_class, func.count())
        .where(in_service(), has_no_connector())
        .group_by(Appliance.appliance_class)
        .order_by(func.count().desc(), Appliance.appliance_class)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def _counted(session: Session, statement: Any) -> dict[str, Sequence[Any]]:  # noqa: ANN401 - any columns
    return {row[0]: row[1:] for row in session.execute(statement)}
