"""Quotas: the most that a tenant may have, set by the operator and enforced where it is spent.

Appliances and GPUs are spent by enrolling, jobs by submitting, series and storage by sending
samples. Who is about to spend holds the tenant's quota row first and counts only then: of two who
want the last place, the second waits for the first and is refused.

An appliance that is known keeps what it has: a GPU that is plugged in later is counted and shown,
and the next enrolment is refused, but its samples are taken and its jobs run.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from tenants.accounts import get_tenant
from tenants.fleet.life import in_service
from tenants.models import Appliance, TenantQuota
from tenants.permissions import Permission
from tenants.scope import Scope

QUOTA_REACHED = "quota_reached"
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**60
# From this share on it is told that a limit is near.
WARN_RATIO = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most of each thing; None is without a limit."""

    max_appliances: int | None = None
    max_gpus: int | None = None
    max_active_jobs: int | None = None
    max_series: int | None = None
    max_storage_bytes: int | None = None


UNLIMITED = Limits()


def read_limits(session: Session, scope: Scope, tenant_id: str) -> Limits:
    """Return the limits of a tenant that the scope may see."""
    get_tenant(session, scope, tenant_id)
    return limits_of(session, tenant_id)


def limits_of(session: Session, tenant_id: str) -> Limits:
    """Return a tenant's limits."""
    return _limits(session.get(TenantQuota, tenant_id))


def all_limits(session: Session) -> dict[str, Limits]:
    """Return the limits of every tenant that has any."""
    return {row.tenant_id: _limits(row) for row in session.scalars(select(TenantQuota))}


def set_limits(session: Session, scope: Scope, tenant_id: str, limits: Limits) -> Limits:
    """Give a tenant limits; what it has above them already stays.

    Raises:
        InvalidInputError: names every limit that is no sensible number.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    errors = {
        name: [fault] for name, value in asdict(limits).items() if (fault := _fault(name, value))
    }
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
        raise ConflictError("Somebody else set quotas at this moment. Try again.") from error
    return limits


def hold_limits(session: Session, tenant_id: str) -> Limits:
    """Return a tenant's limits, which nobody else may spend until this transaction ends.

    A tenant without limits is not held.
    """
    # A write that changes nothing holds the row on every database; SQLite can't hold by reading.
    held = update(TenantQuota).where(TenantQuota.tenant_id == tenant_id)
    session.execute(
        held.values(tenant_id=TenantQuota.tenant_id),
        execution_options={"synchronize_session": False},
    )
    row = session.scalar(
        select(TenantQuota).where(TenantQuota.tenant_id == tenant_id),
        execution_options={"populate_existing": True},
    )
    return _limits(row)


def refuse_above(limit: int | None, count: Callable[[], int], *, adding: int, what: str) -> None:
    """Refuse to go above a limit.

    Args:
        limit: the most; None is without a limit, and nothing is counted.
        count: tells how many there are now.
        adding: how many more are wanted.
        what: what is counted, in the plural.

    Raises:
        ConflictError: it would be more than the limit.
    """
    if limit is None or adding <= 0:
        return
    used = count()
    if used + adding > limit:
        raise ConflictError(
            f"The tenant has {used} of at most {limit} {what}, and this needs {adding} more. "
            f"Free some, or ask the portal's operator for a higher quota.",
            code=QUOTA_REACHED,
        )


def hold_place_for_appliance(session: Session, tenant_id: str, *, gpus: int) -> None:
    """Refuse an appliance with so many GPUs where the tenant's quotas leave it no room.

    Raises:
        ConflictError: it would be more than a quota.
    """
    limits = hold_limits(session, tenant_id)
    refuse_above(
        limits.max_appliances, lambda: count_appliances(session, tenant_id), adding=1,
        what="appliances",
    )  # fmt: skip
    refuse_above(limits.max_gpus, lambda: count_gpus(session, tenant_id), adding=gpus, what="GPUs")


def count_appliances(session: Session, tenant_id: str) -> int:
    """Return how many appliances of a tenant are in service."""
    counted = select(func.count()).where(Appliance.tenant_id == tenant_id, in_service())
    return session.scalar(counted.select_from(Appliance)) or 0


def count_gpus(session: Session, tenant_id: str) -> int:
    """Return how many GPUs a tenant's appliances in service have."""
    summed = select(func.sum(Appliance.gpu_count))
    return int(session.scalar(summed.where(Appliance.tenant_id == tenant_id, in_service())) or 0)


def _limits(row: TenantQuota | None) -> Limits:
    if row is None:
        return UNLIMITED
    return Limits(**{name: getattr(row, name) for name in Limits.__dataclass_fields__})


def _fault(name: str, value: int | None) -> str:
    most = MAX_BYTES if name.endswith("_bytes") else MAX_COUNT
    if value is None or 0 <= value <= most:
        return ""
    return f"{value} is not from 0 to {most}. Leave it out for no limit."
