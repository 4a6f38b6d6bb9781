"""Suspend, close and remove tenants.

A removal exports everything, then deletes it, samples included. An operator requests it; the
scheduler runs it, see `removal_worker`.
"""

from datetime import datetime
from pathlib import Path
from typing import Unpack

from sqlalchemy import delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from tenants.auditing.recording import record
from tenants.fleet.agents import block_tenant
from tenants.lifecycle.removal_worker import record_removal
from tenants.models import (
    LoginSession,
    Membership,
    RemovalState,
    Tenant,
    TenantRemoval,
    TenantState,
)
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant


def set_tenant_state(
    session: Session, scope: Scope, tenant_id: str, state: TenantState, *, now: datetime
) -> Tenant:
    """Suspend, activate or close a tenant; unless it is active, its users and agents are blocked.

    Raises:
        ConflictError: it is closed: it can only be removed.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    if tenant.state is TenantState.CLOSED and state is not TenantState.CLOSED:
        raise ConflictError(
            f"{tenant.name} is closed permanently. Remove it, or add a new tenant.",
            code="tenant_closed",
        )
    if state is TenantState.CLOSED and tenant.closed_at is None:
        tenant.closed_at = now
        for log in (tenant.id, None):
            record(
                session,
                action="tenant.closed",
                target_id=tenant.id,
                target_name=tenant.name,
                tenant_id=log,
                now=now,
            )
    tenant.state = state
    if state is not TenantState.ACTIVE:
        end_sessions_of_tenant(session, tenant.id)
        block_tenant(session, tenant_id=tenant.id)
    session.flush()
    return tenant


def end_sessions_of_tenant(session: Session, tenant_id: str) -> None:
    """Sign out users who belong to this tenant only, and browsers that show it."""
    elsewhere = select(Membership.user_id).where(
        Membership.tenant_id != tenant_id, Membership.is_active
    )
    only_members = select(Membership.user_id).where(
        Membership.tenant_id == tenant_id, Membership.user_id.not_in(elsewhere)
    )
    session.execute(
        delete(LoginSession).where(
            or_(LoginSession.tenant_id == tenant_id, LoginSession.user_id.in_(only_members))
        )
    )


REMOVAL_SORTS: Columns = {
    "requested_at": TenantRemoval.requested_at,
    "finished_at": TenantRemoval.finished_at,
    "tenant_name": TenantRemoval.tenant_name,
    "state": TenantRemoval.state,
}


def request_removal(
    session: Session, scope: Scope, tenant_id: str, *, name: str, by: str, now: datetime
) -> TenantRemoval:
    """Request the removal of a closed tenant, whose name the operator types as a confirmation.

    Raises:
        ConflictError: the tenant is not closed, or is already being removed.
        InvalidInputError: the name does not match.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    if name.strip() != tenant.name:
        error_text = f"Type the tenant's name to confirm: {tenant.name}"
        raise InvalidInputError(error_text, errors={"name": [error_text]})
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
        raise ConflictError(f"{tenant.name} is already being removed.") from error
    record_removal(session, removal, "tenant.removal_requested", now=now)
    return removal


def list_removals(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[TenantRemoval]:
    """Return the removals, newest first by default."""
    scope.require(Permission.MANAGE_TENANTS)
    statement = select(TenantRemoval).order_by(TenantRemoval.id.desc())
    return list_page(session, statement, REMOVAL_SORTS, last=TenantRemoval.id, **paging)


def get_removal(session: Session, scope: Scope, removal_id: str) -> TenantRemoval:
    """Return a removal."""
    scope.require(Permission.MANAGE_TENANTS)
    removal = session.get(TenantRemoval, removal_id)
    if removal is None:
        raise NotFoundError.of("removal", removal_id)
    return removal


def find_removal(session: Session, tenant_id: str) -> TenantRemoval | None:
    """Return the removal of a tenant, if it was requested."""
    return session.scalar(select(TenantRemoval).where(TenantRemoval.tenant_id == tenant_id))


def export_file(
    session: Session,
    scope: Scope,
    removal_id: str,
    *,
    folder: Path,
    now: datetime,
    is_published: bool = False,
) -> Path:
    """Return the path of an export to download, which the audit log records.

    With `is_published`, it may be in the store of data instead, under the same name.

    Raises:
        NotFoundError: it is not finished, was deleted, or is on another host.
    """
    removal = get_removal(session, scope, removal_id)
    path = folder / removal.file_name
    if not removal.has_file or not (is_published or path.is_file()):
        raise NotFoundError(
            f"There is no export of {removal.tenant_name}: it is not finished, was deleted, or is "
            f"in {folder} on the host that runs the scheduler. Exports that are made while "
            "data_url is set are found on all hosts."
        )
    record_removal(session, removal, "tenant.export_downloaded", now=now)
    return path


def get_removed(session: Session, scope: Scope, removal_id: str) -> TenantRemoval:
    """Return a removal that has ended.

    Raises:
        ConflictError: the tenant is still being removed.
    """
    removal = get_removal(session, scope, removal_id)
    if removal.state is not RemovalState.REMOVED:
        raise ConflictError(f"{removal.tenant_name} is still being removed. Wait until it ends.")
    return removal


def discard_export(
    session: Session, scope: Scope, removal_id: str, *, folder: Path, now: datetime
) -> TenantRemoval:
    """Delete the export of a removed tenant from its folder, and note that there is none.

    Raises:
        ConflictError: the tenant is still being removed.
    """
    removal = get_removed(session, scope, removal_id)
    (folder / removal.file_name).unlink(missing_ok=True)
    if removal.discarded_at is None:
        removal.discarded_at = now
        record_removal(session, removal, "tenant.export_discarded", now=now)
    session.flush()
    return removal
