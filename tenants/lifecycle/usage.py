"""Usage of tenants: appliances, GPUs, points, storage, series and names.

The scheduler measures points and storage. Stores don't report bytes by tenant: the size of a store
file is divided in proportion to the points; for a store server, a point counts as
`ESTIMATED_BYTES_PER_POINT`. Each ingest server reports its numbers of active series, measurements
and fields, and limits them by itself, so a quota is compared with the largest number.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, column, delete, func, insert, select, table, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.clock import to_ns
from core.db import changed_one
from core.paging import DEFAULT_PAGE_SIZE, Columns, Page, paginate, sorted_by
from tenants.fleet.states import counted_gpus, in_service
from tenants.models import Appliance, Membership, SeriesCount, Tenant, TenantUsage
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, Aggregate, RangeQuery, Series, Store
from timeseries.store_url import parse_store_url

ESTIMATED_BYTES_PER_POINT = 16
USAGE_RETENTION_DAYS = 730
GROWTH_SORTS: Columns = {
    "day": TenantUsage.day,
    "tenant_id": TenantUsage.tenant_id,
    "points": TenantUsage.points,
    "storage_bytes": TenantUsage.storage_bytes,
}
_EPOCH_NS = 0
_AHEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class StorageUse:
    """The storage that a tenant's samples use."""

    points: int = 0
    bytes: int = 0


def measure_storage(
    store: Store, *, store_bytes: int | None, now: datetime
) -> dict[str, StorageUse]:
    """Return the storage of each tenant, by one query for each measurement.

    `store_bytes` is the size of the store's file; None if it is unknown.
    """
    points = count_points(store, start_ns=_EPOCH_NS, end_ns=to_ns(now + _AHEAD))
    total = sum(points.values())
    each = ESTIMATED_BYTES_PER_POINT if store_bytes is None else store_bytes / max(1, total)
    return {tenant: StorageUse(count, int(count * each)) for tenant, count in points.items()}


def count_points(store: Store, *, start_ns: int, end_ns: int) -> Counter[str]:
    """Return the number of each tenant's points in a time range."""
    points: Counter[str] = Counter()
    for measurement in store.measurements(tenants=None):
        for tenant, series in values_of(store, measurement, start_ns=start_ns, end_ns=end_ns):
            points[tenant] += int(sum(series.values))
    return points


def values_of(
    store: Store, measurement: str, *, start_ns: int, end_ns: int, step_ns: int | None = None
) -> Iterator[tuple[str, Series]]:
    """Yield the point counts of a measurement by tenant, as those of its fullest field."""
    kinds = store.fields(measurement, tenants=None)
    fields = tuple(name for name, kind in kinds.items() if kind != "string")
    if not fields:
        return
    query = RangeQuery(
        measurement=measurement,
        fields=fields,
        start_ns=start_ns,
        end_ns=end_ns,
        aggregate=Aggregate.COUNT,
        step_ns=step_ns,
        tenants=None,
        group_by=(TENANT_TAG,),
    )
    fullest: dict[str, Series] = {}
    for series in store.query_range(query):
        tenant = series.tags.get(TENANT_TAG, "")
        if tenant not in fullest or sum(fullest[tenant].values) < sum(series.values):
            fullest[tenant] = series
    yield from fullest.items()


def file_bytes(store_url: str) -> int | None:
    """Return the size of a store's files; None for a store server."""
    return parse_store_url(store_url).size_bytes


def store_usage(session: Session, storage: dict[str, StorageUse], *, now: datetime) -> None:
    """Store each tenant's usage for today."""
    fleet: Any = (
        select(Appliance.tenant_id, func.count(), func.sum(counted_gpus()))
        .where(in_service())
        .group_by(Appliance.tenant_id)
    )
    counted = {row[0]: row[1:] for row in session.execute(fleet)}
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)).all():
        appliances, gpus = counted.get(tenant_id, (0, 0))
        used = storage.get(tenant_id, StorageUse())
        values = {
            "measured_at": now,
            "appliances": appliances,
            "gpus": int(gpus or 0),
            "points": used.points,
            "storage_bytes": used.bytes,
        }
        _put(session, tenant_id, now.date(), values)


def latest_usage(
    session: Session, tenant_ids: Iterable[str] | None = None
) -> dict[str, TenantUsage]:
    """Return the newest usage by tenant; `tenant_ids` selects."""
    newest = (
        select(TenantUsage.tenant_id, func.max(TenantUsage.day).label("day"))
        .group_by(TenantUsage.tenant_id)
        .subquery()
    )
    is_newest = and_(TenantUsage.tenant_id == newest.c.tenant_id, TenantUsage.day == newest.c.day)
    statement = select(TenantUsage).join(newest, is_newest)
    if tenant_ids is not None:
        statement = statement.where(TenantUsage.tenant_id.in_(list(tenant_ids)))
    return {row.tenant_id: row for row in session.scalars(statement)}


def growth(session: Session, *, since: date) -> list[TenantUsage]:
    """Return the usage of all tenants since a day, oldest first."""
    statement = select(TenantUsage).where(TenantUsage.day >= since)
    return list(session.scalars(statement.order_by(TenantUsage.day, TenantUsage.tenant_id)))


def list_growth(
    session: Session,
    scope: Scope,
    *,
    since: date,
    tenant_id: str | None = None,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[TenantUsage]:
    """Return a page of the usage since a day, of one tenant or all, for operators."""
    scope.require(Permission.OPERATE)
    statement = select(TenantUsage).where(TenantUsage.day >= since)
    if tenant_id is not None:
        statement = statement.where(TenantUsage.tenant_id == tenant_id)
    statement = sorted_by(statement, sort or "day", GROWTH_SORTS, last=TenantUsage.tenant_id)
    # A tenant has one row for each day.
    statement = statement.order_by(TenantUsage.day)
    return paginate(session, statement, number=page, size=page_size)


def _put(session: Session, tenant_id: str, day: date, values: dict[str, Any]) -> None:
    is_day = (TenantUsage.tenant_id == tenant_id, TenantUsage.day == day)
    statement = update(TenantUsage).where(*is_day).values(**values)
    if changed_one(session, statement, synchronize_session=False):
        return
    try:
        with session.begin_nested():
            session.add(TenantUsage(tenant_id=tenant_id, day=day, **values))
    except IntegrityError:  # inserted concurrently
        return


# A series is active for this long after its last sample.
SERIES_COUNT_LIFETIME = timedelta(hours=1)


class SampleCounts(NamedTuple):
    """The active series, measurements and fields of a tenant."""

    series: int = 0
    measurements: int = 0
    fields: int = 0


def store_sample_counts(
    session: Session, server: str, counts: Mapping[str, SampleCounts], *, now: datetime
) -> None:
    """Replace the counts by tenant that an ingest server reported before."""
    of_server = SeriesCount.server == server
    counted_ids = set(session.scalars(select(SeriesCount.tenant_id).where(of_server)))
    gone = counted_ids - counts.keys()
    if gone:
        session.execute(
            delete(SeriesCount).where(of_server, SeriesCount.tenant_id.in_(gone)),
            execution_options={"synchronize_session": False},
        )
    rows = {
        tenant_id: {
            "tenant_id": tenant_id,
            "server": server,
            **count._asdict(),
            "counted_at": now,
        }
        for tenant_id, count in counts.items()
    }
    changed = [row for tenant_id, row in rows.items() if tenant_id in counted_ids]
    if changed:
        session.execute(update(SeriesCount), changed)
    # A tenant may have been removed meanwhile.
    new = set(session.scalars(select(Tenant.id).where(Tenant.id.in_(rows.keys() - counted_ids))))
    if new:
        session.execute(insert(SeriesCount), [rows[tenant_id] for tenant_id in sorted(new)])


def sample_counts(
    session: Session, tenant_ids: Collection[str] | None = None, *, now: datetime
) -> dict[str, SampleCounts]:
    """Return the counts by tenant, each the highest of all servers; `tenant_ids` selects."""
    highest = [func.max(getattr(SeriesCount, name)) for name in SampleCounts._fields]
    statement = (
        select(SeriesCount.tenant_id, *highest)
        .where(SeriesCount.counted_at > now - SERIES_COUNT_LIFETIME)
        .group_by(SeriesCount.tenant_id)
    )
    if tenant_ids is not None:
        statement = statement.where(SeriesCount.tenant_id.in_(tenant_ids))
    return {row[0]: SampleCounts(*row[1:]) for row in session.execute(statement)}


# The job queue is a higher layer: count its table by name, without its models.
_JOBS = table("jobs", column("tenant_id"))
_TenantColumn = ColumnElement[Any] | InstrumentedAttribute[Any]


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """The numbers of users, appliances and jobs of a tenant."""

    users: int = 0
    appliances: int = 0
    jobs: int = 0


def tenant_counts(
    session: Session, tenant_ids: Sequence[str] | None = None
) -> dict[str, TenantCounts]:
    """Return how many users, appliances and jobs tenants have; `tenant_ids` selects."""
    chosen = list(session.scalars(select(Tenant.id))) if tenant_ids is None else tenant_ids
    users = _count_by_tenant(session, Membership.tenant_id, tenant_ids)
    appliances = _count_by_tenant(session, Appliance.tenant_id, tenant_ids, in_service())
    jobs = _count_by_tenant(session, _JOBS.c.tenant_id, tenant_ids)
    return {
        tenant: TenantCounts(
            users=users.get(tenant, 0),
            appliances=appliances.get(tenant, 0),
            jobs=jobs.get(tenant, 0),
        )
        for tenant in chosen
    }


def _count_by_tenant(
    session: Session,
    tenant: _TenantColumn,
    within: Sequence[str] | None,
    *where: ColumnElement[bool],
) -> dict[str, int]:
    conditions = [tenant.is_not(None) if within is None else tenant.in_(within), *where]
    statement = select(tenant, func.count()).where(*conditions).group_by(tenant)
    return {row[0]: row[1] for row in session.execute(statement)}
