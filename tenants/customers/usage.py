"""What tenants use: appliances, GPUs, points and bytes, measured by the scheduler.

No store tells how many bytes a tenant has. Points are counted by tenant, and the bytes of the
store's file are shared out by them; of a store that is a server of its own the size is not known,
and a point is reckoned at `RECKONED_BYTES_PER_POINT`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import and_, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.fleet.life import in_service
from tenants.models import Appliance, Tenant, TenantUsage
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, Aggregate, RangeQuery, Series, Store
from timeseries.store_url import parse_store_url

RECKONED_BYTES_PER_POINT = 16
# Days are kept as long as the growth of the platform is looked at.
KEPT_DAYS = 730
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
    """What a tenant's samples take."""

    points: int = 0
    bytes: int = 0


def measure_storage(
    store: Store, *, store_bytes: int | None, now: datetime
) -> dict[str, StorageUse]:
    """Return what each tenant's samples take: one question for each measurement.

    Args:
        store: where the samples are.
        store_bytes: the size of its file; None where that is not known.
        now: the present instant.
    """
    points = count_points(store, start_ns=_EPOCH_NS, end_ns=to_ns(now + _AHEAD))
    total = sum(points.values())
    each = RECKONED_BYTES_PER_POINT if store_bytes is None else store_bytes / max(1, total)
    return {tenant: StorageUse(count, int(count * each)) for tenant, count in points.items()}


def count_points(store: Store, *, start_ns: int, end_ns: int) -> Counter[str]:
    """Return how many points each tenant has in a span."""
    points: Counter[str] = Counter()
    for measurement in store.measurements(tenants=None):
        for tenant, series in values_of(store, measurement, start_ns=start_ns, end_ns=end_ns):
            points[tenant] += int(sum(series.values))
    return points


def values_of(
    store: Store, measurement: str, *, start_ns: int, end_ns: int, step_ns: int | None = None
) -> Iterator[tuple[str, Series]]:
    """Yield each tenant with the counts of a measurement's fullest field: that of its points."""
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
    """Return the size of a store's file; None where the store is a server of its own."""
    path = parse_store_url(store_url).file
    if path is None:
        return None
    files = (path, path.with_name(f"{path.name}.wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def note_usage(session: Session, storage: dict[str, StorageUse], *, now: datetime) -> None:
    """Keep what each tenant uses as the figures of today."""
    counted = {row[0]: row[1:] for row in session.execute(_fleet())}
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)).all():
        appliances, gpus = counted.get(tenant_id, (0, 0))
        used = storage.get(tenant_id, StorageUse())
        values = {
            "measured_at": now, "appliances": appliances, "gpus": int(gpus or 0),
            "points": used.points, "storage_bytes": used.bytes,
        }  # fmt: skip
        _put(session, tenant_id, now.date(), values)


def latest_usage(
    session: Session, tenant_ids: Iterable[str] | None = None
) -> dict[str, TenantUsage]:
    """Return the newest figures of each tenant that has any; `tenant_ids` narrows."""
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
    """Return the figures of every tenant and day from a day on, oldest first."""
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
    """Return a page of the same, of one tenant or all, for operators."""
    scope.require(Permission.OPERATE)
    statement = select(TenantUsage).where(TenantUsage.day >= since)
    if tenant_id is not None:
        statement = statement.where(TenantUsage.tenant_id == tenant_id)
    statement = sorted_by(statement, sort or "day", GROWTH_SORTS, last=TenantUsage.tenant_id)
    # A tenant has one row for each day.
    statement = statement.order_by(TenantUsage.day)
    return paginate(session, statement, number=page, size=page_size)


def _fleet() -> Any:  # noqa: ANN401 - a statement of three columns
    return (
        select(Appliance.tenant_id, func.count(), func.sum(Appliance.gpu_count))
        .where(in_service())
        .group_by(Appliance.tenant_id)
    )


def _put(session: Session, tenant_id: str, day: date, values: dict[str, Any]) -> None:
    here = (TenantUsage.tenant_id == tenant_id, TenantUsage.day == day)
    changed: Any = session.execute(
        update(TenantUsage).where(*here).values(**values),
        execution_options={"synchronize_session": False},
    )
    if changed.rowcount:
        return
    try:
        with session.begin_nested():
            session.add(TenantUsage(tenant_id=tenant_id, day=day, **values))
    except IntegrityError:  # somebody else was first
        return
