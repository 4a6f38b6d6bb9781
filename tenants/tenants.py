"""Tenants: add, list and find them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Unpack

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from tenants.checks import name_errors, raise_if_invalid, slug_errors, slug_of
from tenants.models import Tenant, TenantState, User
from tenants.permissions import Permission
from tenants.scope import Scope

TENANT_SORTS: Columns = {
    "name": Tenant.name,
    "slug": Tenant.slug,
    "state": Tenant.state,
    "created_at": Tenant.created_at,
}


def create_tenant(session: Session, *, name: str, slug: str | None = None, now: datetime) -> Tenant:
    """Create a tenant; without a slug, one is derived from the name.

    Raises:
        InvalidInputError: the name or the slug is invalid.
        ConflictError: the slug is taken.
    """
    name = name.strip()
    slug = slug_of(name) if slug is None else slug.strip()
    errors = {"name": name_errors(name), "slug": slug_errors(slug)}
    raise_if_invalid(errors, "The tenant can't be added")
    tenant = Tenant(slug=slug, name=name, state=TenantState.ACTIVE, created_at=now)
    taken = f"The slug {slug!r} belongs to another tenant. Choose another slug."
    insert_unique(session, tenant, taken=taken, field="slug")
    return tenant


def list_tenants(
    session: Session,
    scope: Scope,
    *,
    state: TenantState | None = None,
    search: str = "",
    **paging: Unpack[Paging],
) -> Page[Tenant]:
    """Return the tenants in the scope, by name: all for operators, else the own one.

    `search` matches parts of names and slugs.
    """
    scope.require(Permission.VIEW)
    statement = select(Tenant).order_by(Tenant.name, Tenant.id)
    if state is not None:
        statement = statement.where(Tenant.state == state)
    if search:
        texts = (Tenant.name, Tenant.slug)
        statement = statement.where(or_(*(c.icontains(search, autoescape=True) for c in texts)))
    if scope.tenant_id is not None:
        statement = statement.where(Tenant.id == scope.tenant_id)
    return list_page(session, statement, TENANT_SORTS, last=Tenant.id, **paging)


def tenant_names(session: Session, tenant_ids: Iterable[str]) -> dict[str, str]:
    """Return the names of tenants by id; deleted ones are missing."""
    rows = session.execute(select(Tenant.id, Tenant.name).where(Tenant.id.in_(set(tenant_ids))))
    return {row[0]: row[1] for row in rows}


def get_tenant(session: Session, scope: Scope, tenant_id: str) -> Tenant:
    """Return a tenant in the scope; raise `NotFoundError` for others."""
    scope.require(Permission.VIEW)
    tenant = session.get(Tenant, tenant_id)
    if tenant is None or scope.tenant_id not in {None, tenant.id}:
        raise NotFoundError.of("tenant", tenant_id)
    return tenant


def find_tenant(session: Session, slug: str) -> Tenant | None:
    """Return the tenant with this slug, if there is one."""
    return session.scalar(select(Tenant).where(Tenant.slug == slug))


def insert_unique(session: Session, row: Tenant | User, *, taken: str, field: str) -> None:
    """Insert a row; raise `ConflictError` with the message `taken` if `field` is not unique."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise ConflictError(taken, code=f"{field}_taken", errors={field: [taken]}) from error
