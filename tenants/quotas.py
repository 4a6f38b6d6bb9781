"""Quotas: the limits of a tenant, set by an operator and enforced where resources are used.

Enrollment uses appliances and GPUs, submission uses jobs, samples use series, names and storage.
The tenant's quota row is locked before the usage is counted: of two concurrent requests for the
last place, the second waits and is refused.

Enrolled appliances are not affected: a GPU added later counts and blocks further enrollments, but
samples are still ingested and jobs still run.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from tenants.fleet.states import counted_gpus, in_service
from tenants.models import Appliance, TenantQuota
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

QUOTA_REACHED = "quota_reached"
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**60
# Pages warn from this share of a limit on.
WARN_RATIO = 0.8
# Users may make these without a quota of their tenant: each costs everybody's scheduler time,
# and rows that everybody's queries pass. Tenants with more keep what they have.
DEFAULTS = {
    "waiting_jobs": 10_000,
    "rules": 1_000,
    "receivers": 200,
    "schedules": 500,
    "dashboards": 1_000,
    "data_bytes": 1024**4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tenant; None is unlimited, or the portal's default where there is one."""

    max_appliances: int | None = None
    max_gpus: int | None = None
    max_active_jobs: int | None = None
    max_series: int | None = None
    max_measurements: int | None = None
    max_fields: int | None = None
    max_storage_bytes: int | None = None
    max_waiting_jobs: int | None = None
    max_rules: int | None = None
    max_receivers: int | None = None
    max_schedules: int | None = None
    max_dashboards: int | None = None
    max_data_bytes: int | None = None

    def limit(self, name: str) -> int | None:
        """Return a limit, which for some has a default."""
        own: int | None = getattr(self, f"max_{name}")
        return DEFAULTS.get(name) if own is None else own


UNLIMITED = Limits()


def read_limits(session: Session, scope: Scope, tenant_id: str) -> Limits:
    """Return the limits of a tenant in the scope."""
    get_tenant(session, scope, tenant_id)
    return limits_of(session, tenant_id)


def limits_of(session: Session, tenant_id: str) -> Limits:
    """Return a tenant's limits."""
    return _limits(session.get(TenantQuota, tenant_id))


def all_limits(session: Session) -> dict[str, Limits]:
    """Return the limits of every tenant that has any."""
    return {row.tenant_id: _limits(row) for row in session.scalars(select(TenantQuota))}


def set_limits(session: Session, scope: Scope, tenant_id: str, limits: Limits) -> Limits:
    """Set a tenant's limits; usage above them remains.

    Raises:
        InvalidInputError: names every invalid limit.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    errors = {}
    for name, value in asdict(limits).items():
        maximum = MAX_BYTES if name.endswith("_bytes") else MAX_COUNT
        if value is not None and not 0 <= value <= maximum:
            errors[name] = [f"{value} is not between 0 and {maximum}. Leave it empty for no limit."]
    if errors:
        raise InvalidInputError(f"The quotas of {tenant.name} were not changed.", errors=errors)
    row = session.get(TenantQuota, tenant.id)
    if row is None:
        row = TenantQuota(tenant_id=tenant.id)
        session.add(row)
    for name, value in asdict(limits).items():
        setattr(row, name, value)
    try:
        session.flush()
    except IntegrityError as error:
        raise ConflictError("The quotas were just changed by someone else. Try again.") from error
    return limits


def lock_limits(session: Session, tenant_id: str) -> Limits:
    """Lock a tenant's limits until the transaction ends, if it has any; return them."""
    # An UPDATE that changes nothing locks the row; SQLite has no SELECT ... FOR UPDATE.
    lock = update(TenantQuota).where(TenantQuota.tenant_id == tenant_id)
    session.execute(
        lock.values(tenant_id=TenantQuota.tenant_id),
        execution_options={"synchronize_session": False},
    )
    row = session.scalar(
        select(TenantQuota).where(TenantQuota.tenant_id == tenant_id),
        execution_options={"populate_existing": True},
    )
    return _limits(row)


def require_within_limit(
    limit: int | None, count: Callable[[], int], *, adding: int, what: str
) -> None:
    """Raise `ConflictError` if `adding` more would exceed a limit; None is unlimited.

    `count` returns the current number, `what` names it in the plural.
    """
    if limit is None or adding <= 0:
        return
    used = count()
    if used + adding > limit:
        raise ConflictError(
            f"The tenant has {used} of at most {limit} {what}, and this needs {adding} more. "
            "Free some, or ask the portal's operator for a higher quota.",
            code=QUOTA_REACHED,
        )


def reserve_quota(
    session: Session, tenant_id: str, name: str, count: Callable[[], int], *, adding: int = 1
) -> None:
    """Raise `ConflictError` if `adding` more exceed a quota, such as `rules`.

    Without a quota of the tenant's own no row is locked, so that concurrent requests may exceed the
    default by a few.
    """
    limit = lock_limits(session, tenant_id).limit(name)
    require_within_limit(limit, count, adding=adding, what=name.replace("_", " "))


def count_rows(session: Session, *conditions: ColumnElement[bool]) -> int:
    """Return how many rows meet conditions on one table."""
    return session.scalar(select(func.count()).where(*conditions)) or 0


def reserve_appliance_quota(session: Session, tenant_id: str, *, gpus: int) -> None:
    """Raise `ConflictError` if an appliance with these GPUs exceeds a quota."""
    limits = lock_limits(session, tenant_id)
    require_within_limit(
        limits.max_appliances,
        lambda: count_appliances(session, tenant_id),
        adding=1,
        what="appliances",
    )
    require_within_limit(
        limits.max_gpus, lambda: count_gpus(session, tenant_id), adding=gpus, what="GPUs"
    )


def count_appliances(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's appliances in service."""
    counted = select(func.count()).where(Appliance.tenant_id == tenant_id, in_service())
    return session.scalar(counted.select_from(Appliance)) or 0


def count_gpus(session: Session, tenant_id: str) -> int:
    """Return the number of GPUs of a tenant's appliances in service."""
    summed = select(func.sum(counted_gpus()))
    return int(session.scalar(summed.where(Appliance.tenant_id == tenant_id, in_service())) or 0)


def _limits(row: TenantQuota | None) -> Limits:
    if row is None:
        return UNLIMITED
    return Limits(**{name: getattr(row, name) for name in Limits.__dataclass_fields__})
