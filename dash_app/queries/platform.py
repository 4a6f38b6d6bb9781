"""The platform's figures, across tenants: what there is, who uses how much, how it grows.

*GPU-hours* are hours for which jobs held GPUs. *Utilisation* is what the GPUs' own readings say.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import UnavailableError
from jobqueue.models import Attempt, Job
from jobqueue.states import JobState
from tenants.customers.quotas import UNLIMITED, WARN_RATIO, Limits, all_limits
from tenants.customers.series import series_counts
from tenants.customers.usage import count_points, latest_usage
from tenants.fleet.life import LifeState, in_service, life_is
from tenants.models import Appliance, Membership, Tenant, TenantState
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, RangeQuery, Store

GPU_HOURS_OVER = timedelta(days=30)
UTILIZATION_OVER = timedelta(days=1)
INGEST_OVER = timedelta(minutes=15)
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant; what was not measured is None."""

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

    @property
    def tightest_ratio(self) -> float:
        """How full the fullest of its quotas is; 0 where it has none."""
        pairs = (
            (self.appliances, self.limits.max_appliances),
            (self.gpus, self.limits.max_gpus),
            (self.active_jobs, self.limits.max_active_jobs),
            (self.storage_bytes or 0, self.limits.max_storage_bytes),
            (self.series or 0, self.limits.max_series),
        )
        return max((ratio_of(used, most) for used, most in pairs if most is not None), default=0.0)

    @property
    def is_near_a_quota(self) -> bool:
        """Whether one of its quotas is nearly reached."""
        return self.tightest_ratio >= WARN_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFigures:
    """Everything of the console; `problem` says why readings are missing."""

    at: datetime
    by_life: Mapping[LifeState, int]
    by_class: Mapping[str, int]
    tenants: Sequence[TenantFigures]
    problem: str = ""

    @property
    def appliances(self) -> int:
        """How many appliances are in service."""
        return sum(count for life, count in self.by_life.items() if life.is_in_service)

    @property
    def gpus(self) -> int:
        """How many GPUs they have."""
        return sum(one.gpus for one in self.tenants)

    @property
    def gpu_hours(self) -> float:
        """Hours for which jobs held GPUs in the last 30 days."""
        return sum(one.gpu_hours for one in self.tenants)

    @property
    def utilization_percent(self) -> float | None:
        """Mean utilisation of the last day, each tenant weighed by its GPUs."""
        known = [
            (one.utilization_percent, one.gpus)
            for one in self.tenants
            if one.utilization_percent is not None and one.gpus
        ]
        weight = sum(gpus for _, gpus in known)
        return sum(percent * gpus for percent, gpus in known) / weight if weight else None

    @property
    def points_per_second(self) -> float | None:
        """How many points come in."""
        known = [one.points_per_second for one in self.tenants if one.points_per_second is not None]
        return sum(known) if known else None

    @property
    def storage_bytes(self) -> int | None:
        """What all samples take; None before the first measurement."""
        known = [one.storage_bytes for one in self.tenants if one.storage_bytes is not None]
        return sum(known) if known else None

    @property
    def active_jobs(self) -> int:
        """How many jobs have not ended."""
        return sum(one.active_jobs for one in self.tenants)


def platform_figures(
    session: Session, store: Store, scope: Scope, *, now: datetime
) -> PlatformFigures:
    """Return what there is now; the store's readings are left out where it does not answer."""
    scope.require(Permission.OPERATE)
    rows = _tenants(session, now=now)
    problem = ""
    try:
        rows = _with_readings(store, rows, now=now)
    except UnavailableError as error:
        problem = error.message
    return PlatformFigures(
        at=now,
        by_life=_by_life(session),
        by_class=_by_class(session),
        tenants=tuple(sorted(rows, key=lambda one: (-one.gpu_hours, -one.gpus, one.name))),
        problem=problem,
    )


def gpu_hours_by_tenant(session: Session, *, since: datetime, now: datetime) -> dict[str, float]:
    """Return the hours for which jobs of each tenant held GPUs since an instant."""
    hours: dict[str, float] = defaultdict(float)
    for tenant, start_at, end_at, gpus in gpu_holdings(session, since=since, now=now):
        hours[tenant] += hours_between(start_at, end_at) * gpus
    return hours


def ratio_of(used: float, most: float) -> float:
    """Return which share of a limit is used; of a limit of nothing all is."""
    return used / most if most else 1.0


def _tenants(session: Session, *, now: datetime) -> list[TenantFigures]:
    fleet = _counted(
        session,
        select(Appliance.tenant_id, func.count(), func.sum(Appliance.gpu_count))
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
    hours = gpu_hours_by_tenant(session, since=now - GPU_HOURS_OVER, now=now)
    limits, usage = all_limits(session), latest_usage(session)
    series = series_counts(session, now=now)
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
            series=series.get(tenant.id),
        )
        for tenant in session.scalars(select(Tenant))
    ]


def _with_readings(
    store: Store, rows: Sequence[TenantFigures], *, now: datetime
) -> list[TenantFigures]:
    end_ns = to_ns(now)
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        start_ns=to_ns(now - UTILIZATION_OVER),
        end_ns=end_ns,
        tenants=None,
        group_by=(TENANT_TAG,),
    )
    use = {one.tags.get(TENANT_TAG): one.values[-1] for one in store.query_range(query)}
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


def _by_life(session: Session) -> dict[LifeState, int]:
    counts = session.execute(
        select(*(func.sum(case((life_is(life), 1), else_=0)) for life in LifeState)).select_from(
            Appliance
        )
    ).one()
    return {life: int(count or 0) for life, count in zip(LifeState, counts, strict=True)}


def _by_class(session: Session) -> dict[str, int]:
    statement = (
        select(Appliance.appliance_class, func.count())
        .where(in_service())
        .group_by(Appliance.appliance_class)
        .order_by(func.count().desc(), Appliance.appliance_class)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def _counted(session: Session, statement: Any) -> dict[str, Sequence[Any]]:  # noqa: ANN401 - any columns
    return {row[0]: row[1:] for row in session.execute(statement)}


def gpu_holdings(
    session: Session, *, since: datetime, now: datetime
) -> Iterator[tuple[str, datetime, datetime, int]]:
    """Yield who held how many GPUs, from when to when, within the time that is asked for."""
    statement = select(
        Attempt.tenant_id, Attempt.started_at, Attempt.finished_at, Attempt.gpu_uuids
    ).where(
        Attempt.started_at < now,
        or_(Attempt.finished_at.is_(None), Attempt.finished_at > since),
    )
    for tenant, started_at, finished_at, uuids in session.execute(statement):
        if uuids and started_at is not None:
            yield tenant, max(started_at, since), min(finished_at or now, now), len(uuids)


def hours_between(start_at: datetime, end_at: datetime) -> float:
    """Return how many hours lie between two instants."""
    return max(0.0, (end_at - start_at).total_seconds()) / _SECONDS_PER_HOUR
