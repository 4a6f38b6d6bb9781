"""The people of a tenant: added, listed, locked out. A person may belong to several tenants."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate_rows
from tenants.accounts import create_user, get_tenant
from tenants.models import LoginSession, Membership, Role, Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True)
class Member:
    """A person in one tenant, or an operator, who has none."""

    user: User
    membership: Membership | None

    @property
    def id(self) -> str:
        """The user's id."""
        return self.user.id

    @property
    def email(self) -> str:
        """The user's email address."""
        return self.user.email

    @property
    def name(self) -> str:
        """The user's name."""
        return self.user.name

    @property
    def created_at(self) -> datetime:
        """Since when they belong here."""
        return self.user.created_at if self.membership is None else self.membership.created_at

    @property
    def role(self) -> Role:
        """What they are here."""
        return Role.OPERATOR if self.membership is None else self.membership.role

    @property
    def is_active(self) -> bool:
        """Whether they may sign in here."""
        return self.user.is_active and (self.membership is None or self.membership.is_active)

    @property
    def tenant_id(self) -> str | None:
        """The tenant's id; None for operators."""
        return None if self.membership is None else self.membership.tenant_id

    @property
    def tenant(self) -> Tenant | None:
        """The tenant; None for operators."""
        return None if self.membership is None else self.membership.tenant


def member_of(user: User, tenant_id: str | None) -> Member:
    """Return a user as what they are in a tenant, or without one."""
    found = [one for one in user.memberships if one.tenant_id == tenant_id]
    return Member(user, found[0] if found else None)


def add_user(
    session: Session,
    scope: Scope,
    *,
    tenant_id: str | None,
    email: str,
    name: str,
    role: Role,
    password: str,
    now: datetime,
) -> Member:
    """Add a user on somebody's behalf: the operator to any tenant, an admin to the own one."""
    scope.require(Permission.MANAGE_USERS)
    if scope.role is not Role.OPERATOR and role is Role.OPERATOR:
        raise ForbiddenError("Only an operator may add an operator. Choose another role.")
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    user = create_user(
        session,
        tenant_id=tenant_id,
        email=email,
        name=name,
        role=role,
        password=password,
        now=now,
    )
    return Member(user, user.memberships[0] if user.memberships else None)


def list_users(
    session: Session,
    scope: Scope,
    *,
    tenant_id: str | None = None,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Member]:
    """Return the people that the scope manages, by email; `tenant_id` narrows to one tenant."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    statement = _members(scope.tenant_id or tenant_id).order_by(User.email, Membership.id)
    found = paginate_rows(session, statement, number=page, size=page_size)
    return found.of([Member(user, membership) for user, membership in found.items])


def get_user(
    session: Session, scope: Scope, user_id: str, *, tenant_id: str | None = None
) -> Member:
    """Return a person: oneself, or one that the scope manages.

    Args:
        session: the database session.
        scope: who asks.
        user_id: whom they ask for.
        tenant_id: in which tenant; the operator's first answer where it is left out.
    """
    if user_id != scope.user_id:
        scope.require(Permission.MANAGE_USERS)
    statement = _members(scope.tenant_id or tenant_id).where(User.id == user_id)
    row = session.execute(statement.order_by(Membership.created_at)).first()
    if row is None:
        raise NotFoundError.of("user", user_id)
    return Member(row[0], row[1])


def set_user_active(session: Session, scope: Scope, user_id: str, *, is_active: bool) -> Member:
    """Let a person in, or lock them out and end their sessions.

    A tenant's admin does so for the own tenant, the operator for all of the portal.

    Raises:
        ConflictError: somebody locks themselves out.
    """
    scope.require(Permission.MANAGE_USERS)
    member = get_user(session, scope, user_id)
    if member.id == scope.user_id and not is_active:
        raise ConflictError("You can't lock yourself out. Ask another admin to do it.")
    ended = delete(LoginSession).where(LoginSession.user_id == member.id)
    if scope.tenant_id is None or member.membership is None:
        member.user.is_active = is_active
    else:
        member.membership.is_active = is_active
        ended = ended.where(_may_look_at(scope.tenant_id))
    if not is_active:
        session.execute(ended)
    session.flush()
    return member


def _members(tenant_id: str | None) -> Select[User, Membership]:
    """Return the people of one tenant; of every tenant and the operators without one."""
    if tenant_id is not None:
        joined = select(User, Membership).join(Membership, Membership.user_id == User.id)
        return joined.where(Membership.tenant_id == tenant_id)
    every = select(User, Membership).outerjoin(Membership, Membership.user_id == User.id)
    return every.where(or_(Membership.id.is_not(None), User.is_operator))


def _may_look_at(tenant_id: str) -> ColumnElement[bool]:
    return or_(LoginSession.tenant_id == tenant_id, LoginSession.tenant_id.is_(None))
