"""Tenants and people: made, listed, suspended; passwords changed. Members are in `members`.

Functions without a scope are for the command line and for code that has checked already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, column, delete, func, or_, select, table
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import ConflictError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.audit import record
from tenants.checks import (
    name_faults,
    normalise_email,
    refuse,
    role_faults,
    slug_faults,
    slug_of,
)
from tenants.entry.roll import shut_out_tenant
from tenants.models import Appliance, LoginSession, Membership, Role, Tenant, TenantState, User
from tenants.people.passwords import hash_password, password_faults, verify_password
from tenants.people.sessions import end_all_sessions
from tenants.permissions import Permission
from tenants.scope import Scope

TENANT_SORTS: Columns = {
    "name": Tenant.name,
    "slug": Tenant.slug,
    "state": Tenant.state,
    "created_at": Tenant.created_at,
}

# The job queue lies above this package: its table is counted by name, without its models.
_JOBS = table("jobs", column("tenant_id"))
_TenantColumn = ColumnElement[Any] | InstrumentedAttribute[Any]


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """How much a tenant has."""

    users: int = 0
    appliances: int = 0
    jobs: int = 0


def create_tenant(session: Session, *, name: str, slug: str | None = None, now: datetime) -> Tenant:
    """Add a tenant; the slug, its short name in addresses, is derived from the name if left out.

    Raises:
        InvalidInputError: the name is empty, or the slug has other characters than a-z, 0-9, -.
        ConflictError: another tenant has the slug.
    """
    name = name.strip()
    slug = slug_of(name) if slug is None else slug.strip()
    errors = {"name": name_faults(name), "slug": slug_faults(slug)}
    refuse(errors, "The tenant can't be added")
    tenant = Tenant(slug=slug, name=name, state=TenantState.ACTIVE, created_at=now)
    taken = f"The slug {slug!r} belongs to another tenant. Choose another slug."
    _insert(session, tenant, taken=taken, field="slug")
    return tenant


def list_tenants(
    session: Session,
    scope: Scope,
    *,
    state: TenantState | None = None,
    search: str = "",
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Tenant]:
    """Return the tenants that the scope may see, by name: the operator's all, or one's own.

    Args:
        session: the database session.
        scope: who asks.
        state: only those in this state.
        search: only those with this text in their name or slug.
        sort: names of `TENANT_SORTS`, see `core.sorting`.
        page: the page's number, from 1.
        page_size: how many on a page.
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
    return paginate(
        session,
        sorted_by(statement, sort, TENANT_SORTS, last=Tenant.id),
        number=page,
        size=page_size,
    )


def get_tenant(session: Session, scope: Scope, tenant_id: str) -> Tenant:
    """Return a tenant; another one than the scope's is as good as missing."""
    scope.require(Permission.VIEW)
    tenant = session.get(Tenant, tenant_id)
    if tenant is None or scope.tenant_id not in {None, tenant.id}:
        raise NotFoundError.of("tenant", tenant_id)
    return tenant


def find_tenant(session: Session, slug: str) -> Tenant | None:
    """Return the tenant with this slug, if there is one."""
    return session.scalar(select(Tenant).where(Tenant.slug == slug))


def set_tenant_state(
    session: Session, scope: Scope, tenant_id: str, state: TenantState, *, now: datetime
) -> Tenant:
    """Suspend a tenant, make it active again, or close it for good.

    Its users are signed out and its agents shut out, unless it becomes active.

    Raises:
        ConflictError: it is closed: all that can be done is to remove it.
    """
    scope.require(Permission.MANAGE_TENANTS)
    tenant = get_tenant(session, scope, tenant_id)
    if tenant.state is TenantState.CLOSED and state is not TenantState.CLOSED:
        raise ConflictError(
            f"{tenant.name} is closed for good. Remove it, or add a new tenant.",
            code="tenant_closed",
        )
    if state is TenantState.CLOSED and tenant.closed_at is None:
        tenant.closed_at = now
        for log in (tenant.id, None):
            record(
                session, action="tenant.closed", target_kind="tenant", target_id=tenant.id,
                target_name=tenant.name, tenant_id=log, now=now,
            )  # fmt: skip
    tenant.state = state
    if state is not TenantState.ACTIVE:
        end_sessions_of_tenant(session, tenant.id)
        shut_out_tenant(session, tenant_id=tenant.id)
    session.flush()
    return tenant


def create_user(
    session: Session,
    *,
    tenant_id: str | None,
    email: str,
    name: str,
    role: Role,
    password: str,
    now: datetime,
) -> User:
    """Add a user; the operator's users have no tenant, all others have one.

    Raises:
        InvalidInputError: names every faulty field.
        NotFoundError: there is no such tenant.
        ConflictError: the email address is taken.
    """
    email, email_faults = normalise_email(email)
    errors = {
        "email": email_faults,
        "name": name_faults(name.strip()),
        "role": role_faults(role, tenant_id),
        "password": password_faults(password),
    }
    refuse(errors, "The user can't be added")
    tenant = None if tenant_id is None else session.get(Tenant, tenant_id)
    if tenant_id is not None and tenant is None:
        raise NotFoundError.of("tenant", tenant_id)
    user = User(
        email=email,
        name=name.strip(),
        password_hash=hash_password(password),
        is_operator=role is Role.OPERATOR,
        is_active=True,
        created_at=now,
    )
    if tenant is not None:
        user.memberships.append(Membership(tenant=tenant, role=role, created_at=now))
    taken = f"The email address {email!r} belongs to another user. Use another address."
    _insert(session, user, taken=taken, field="email")
    return user


def change_password(
    session: Session, user: User, *, current: str, new: str, keep_session: str | None = None
) -> None:
    """Change a user's own password and sign them out everywhere else.

    Args:
        session: the database session.
        user: whose password it is.
        current: the password until now.
        new: the password from now on.
        keep_session: the secret of the login session that asks; it alone stays signed in.

    Raises:
        InvalidInputError: the current password is wrong, or the new one is too short or the same.
    """
    faults = password_faults(new)
    if not faults and new == current:
        faults = ["The new password is the current one. Choose another."]
    right = verify_password(user.password_hash, current)
    errors = {"current": [] if right else ["This is not your current password."], "new": faults}
    refuse(errors, "The password was not changed")
    set_password(session, session.merge(user, load=True), new)
    end_all_sessions(session, user.id, keep=keep_session)


def set_password(session: Session, user: User, password: str) -> None:
    """Give a user another password, which was checked already."""
    user.password_hash = hash_password(password)
    session.flush()


def end_sessions_of_tenant(session: Session, tenant_id: str) -> None:
    """Sign out everybody who has no other way in than this tenant, and who looks at it now."""
    elsewhere = select(Membership.user_id).where(
        Membership.tenant_id != tenant_id, Membership.is_active
    )
    only_here = select(Membership.user_id).where(
        Membership.tenant_id == tenant_id, Membership.user_id.not_in(elsewhere)
    )
    session.execute(
        delete(LoginSession).where(
            or_(LoginSession.tenant_id == tenant_id, LoginSession.user_id.in_(only_here))
        )
    )


def tenant_counts(
    session: Session, tenant_ids: Sequence[str] | None = None
) -> dict[str, TenantCounts]:
    """Return how many users, appliances and jobs tenants have: those named, or all."""
    chosen = list(session.scalars(select(Tenant.id))) if tenant_ids is None else tenant_ids
    is_in_service = (Appliance.revoked_at.is_(None), Appliance.retired_at.is_(None))
    users = _count_by_tenant(session, Membership.tenant_id, tenant_ids)
    appliances = _count_by_tenant(session, Appliance.tenant_id, tenant_ids, *is_in_service)
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


def _insert(session: Session, row: Tenant | User, *, taken: str, field: str) -> None:
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise ConflictError(taken, code=f"{field}_taken", errors={field: [taken]}) from error
