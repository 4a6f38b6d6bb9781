"""The removal of a closed tenant: everything is exported first, then deleted, samples included.

An operator asks for it here; the scheduler works it, see `tenants.customers.removal_work`.
"""

from datetime import datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.accounts import get_tenant
from tenants.customers.removal_work import tell
from tenants.models import RemovalState, TenantRemoval, TenantState
from tenants.permissions import Permission
from tenants.scope import Scope

REMOVAL_SORTS: Columns = {
    "requested_at": TenantRemoval.requested_at,
    "finished_at": TenantRemoval.finished_at,
    "tenant_name": TenantRemoval.tenant_name,
    "state": TenantRemoval.state,
}


def request_removal(
    session: Session, scope: Scope, tenant_id: str, *, name: str, by: str, now: datetime
) -> TenantRemoval:
    """Have a closed tenant removed.

    Args:
        session: the database session.
        scope: the operator's.
        tenant_id: which tenant.
        name: the tenant's name, typed by who asks, so that it is the one that they mean.
        by: who asks, for people.
        now: the present instant.

    Raises:
        ConflictError: the tenant is not closed, or is being removed already.
        InvalidInputError: the name is another.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    if name.strip() != tenant.name:
        fault = f"Type the tenant's name as it is written here: {tenant.name}"
        raise InvalidInputError(fault, errors={"name": [fault]})
    if tenant.state is not TenantState.CLOSED:
        raise ConflictError(
            f"{tenant.name} is {tenant.state.value}. Close it first, then remove it.",
            code="tenant_not_closed",
        )
    removal = TenantRemoval(
        tenant_id=tenant.id,
        tenant_slug=tenant.slug,
        tenant_name=tenant.name,
        state=RemovalState.EXPORTING,
        requested_by=by,
        requested_at=now,
    )
    try:
        with session.begin_nested():
            session.add(removal)
    except IntegrityError as error:
        raise ConflictError(f"{tenant.name} is being removed already.") from error
    tell(session, removal, "tenant.removal_requested", now=now)
    return removal


def list_removals(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[TenantRemoval]:
    """Return the removals, the newest first unless `sort` says otherwise."""
    scope.require(Permission.MANAGE_TENANTS)
    statement = select(TenantRemoval).order_by(TenantRemoval.id.desc())
    return paginate(
        session,
        sorted_by(statement, sort, REMOVAL_SORTS, last=TenantRemoval.id),
        number=page,
        size=page_size,
    )


def get_removal(session: Session, scope: Scope, removal_id: str) -> TenantRemoval:
    """Return a removal."""
    scope.require(Permission.MANAGE_TENANTS)
    found = session.get(TenantRemoval, removal_id)
    if found is None:
        raise NotFoundError.of("removal", removal_id)
    return found


def find_removal(session: Session, tenant_id: str) -> TenantRemoval | None:
    """Return the removal of a tenant, if it was asked for."""
    return session.scalar(select(TenantRemoval).where(TenantRemoval.tenant_id == tenant_id))


def export_file(
    session: Session, scope: Scope, removal_id: str, *, folder: Path, now: datetime
) -> Path:
    """Return the export of a removal, to be handed out; that is told in the audit log.

    Raises:
        NotFoundError: it is not made yet, was discarded, or lies on another host.
    """
    removal = get_removal(session, scope, removal_id)
    path = folder / removal.file_name
    if not removal.has_file or not path.is_file():
        raise NotFoundError(
            f"There is no export of {removal.tenant_name} here: it is not made yet, was discarded, "
            f"or lies in {folder} of the host that runs the scheduler."
        )
    tell(session, removal, "tenant.export_downloaded", now=now)
    return path


def discard_export(
    session: Session, scope: Scope, removal_id: str, *, folder: Path, now: datetime
) -> TenantRemoval:
    """Delete the export of a removed tenant for good.

    Raises:
        ConflictError: the tenant is still being removed.
    """
    removal = get_removal(session, scope, removal_id)
    if removal.state is not RemovalState.REMOVED:
        raise ConflictError(f"{removal.tenant_name} is still being removed. Wait for the end.")
    (folder / removal.file_name).unlink(missing_ok=True)
    if removal.discarded_at is None:
        removal.discarded_at = now
        tell(session, removal, "tenant.export_discarded", now=now)
    session.flush()
    return removal
