"""The people of a tenant, as they are listed. A person may belong to several tenants."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate_rows
from core.sorting import Columns, sorted_by
from tenants.accounts import get_tenant
from tenants.models import Membership, Role, Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope

USER_SORTS: Columns = {
    "email": User.email,
    "name": User.name,
    "role": Membership.role,
    "created_at": Membership.created_at,
}


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


def list_users(
    session: Session,
    scope: Scope,
    *,
    tenant_id: str | None = None,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Member]:
    """Return the people that the scope manages, by email; `tenant_id` narrows to one tenant."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    statement = _members(scope.tenant_id or tenant_id).order_by(User.email, Membership.id)
    statement = sorted_by(statement, sort, USER_SORTS, last=Membership.id)
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


def _members(tenant_id: str | None) -> Select[User, Membership]:
    """Return the people of one tenant; of every tenant and the operators without one."""
    if tenant_id is not None:
        joined = select(User, Membership).join(Membership, Membership.user_id == User.id)
        return joined.where(Membership.tenant_id == tenant_id)
    every = select(User, Membership).outerjoin(Membership, Membership.user_id == User.id)
    return every.where(or_(Membership.id.is_not(None), User.is_operator))
