"""Members: the users of a tenant. A user may belong to several tenants.

No tenant loses its last admin, and the platform not its last operator. Before an admin is
removed, the tenant's row is locked and the admins are counted: of two admins who demote each other
concurrently, the second waits and is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from sqlalchemy import Select, or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from tenants.checks import name_errors, normalize_email, raise_if_invalid, role_errors
from tenants.models import Membership, Role, Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant, insert_unique
from tenants.users.passwords import hash_password, password_errors

USER_SORTS: Columns = {
    "email": User.email,
    "name": User.name,
    "role": Membership.role,
    "created_at": Membership.created_at,
}


@dataclass(frozen=True, slots=True)
class Member:
    """A user in one tenant, or an operator, who has none."""

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
        """The time when the user joined."""
        return self.user.created_at if self.membership is None else self.membership.created_at

    @property
    def role(self) -> Role:
        """The user's role in the tenant."""
        return Role.OPERATOR if self.membership is None else self.membership.role

    @property
    def is_active(self) -> bool:
        """Return whether the user may sign in to the tenant."""
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
    """Return a user as a member of a tenant, or without one."""
    memberships = [
        membership for membership in user.memberships if membership.tenant_id == tenant_id
    ]
    return Member(user, memberships[0] if memberships else None)


def list_users(
    session: Session, scope: Scope, *, tenant_id: str | None = None, **paging: Unpack[Paging]
) -> Page[Member]:
    """Return the users that the scope manages, by email; `tenant_id` selects one tenant."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    statement = _members(scope.tenant_id or tenant_id).order_by(User.email, Membership.id)
    page = list_page(session, statement, USER_SORTS, last=Membership.id, **paging)
    return page.of([Member(user, membership) for user, membership in page.items])


def get_user(
    session: Session, scope: Scope, user_id: str, *, tenant_id: str | None = None
) -> Member:
    """Return a user: oneself, or one that the scope manages.

    `tenant_id` selects a membership; by default it is the oldest.
    """
    if user_id != scope.user_id:
        scope.require(Permission.MANAGE_USERS)
    statement = _members(scope.tenant_id or tenant_id).where(User.id == user_id)
    row = session.execute(statement.order_by(Membership.created_at)).first()
    if row is None:
        raise NotFoundError.of("user", user_id)
    return Member(row[0], row[1])


def _members(tenant_id: str | None) -> Select[User, Membership]:
    """Return the members of one tenant, or of all tenants and the operators."""
    if tenant_id is not None:
        joined = select(User, Membership).join(Membership, Membership.user_id == User.id)
        return joined.where(Membership.tenant_id == tenant_id)
    every = select(User, Membership).outerjoin(Membership, Membership.user_id == User.id)
    return every.where(or_(Membership.id.is_not(None), User.is_operator))


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
    """Create a user; operators have no tenant, all others have one.

    Raises:
        InvalidInputError: names every invalid field.
        NotFoundError: there is no such tenant.
        ConflictError: the email address is taken.
    """
    email, email_errors = normalize_email(email)
    errors = {
        "email": email_errors,
        "name": name_errors(name.strip()),
        "role": role_errors(role, tenant_id),
        "password": password_errors(password),
    }
    raise_if_invalid(errors, "The user can't be added")
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
    insert_unique(session, user, taken=taken, field="email")
    return user


LAST_ADMIN = "last_admin"
LAST_OPERATOR = "last_operator"


def require_another_admin(
    session: Session, user: User, tenant_ids: Iterable[str], *, act: str
) -> None:
    """Raise `ConflictError` if the user is the last admin of one of these tenants.

    The tenants stay locked until the transaction ends. `act` completes the sentence "you can't".
    """
    # An UPDATE that changes nothing locks the row; SQLite has no SELECT ... FOR UPDATE.
    for tenant_id in sorted(set(tenant_ids)):
        lock = update(Tenant).where(Tenant.id == tenant_id).values(slug=Tenant.slug)
        session.execute(lock.execution_options(synchronize_session=False))
        admins = (
            select(User.id)
            .join(Membership, User.id == Membership.user_id)
            .where(Membership.tenant_id == tenant_id, Membership.role == Role.ADMIN)
            .where(Membership.is_active, User.is_active)
        )
        if session.scalars(admins).all() == [user.id]:
            name = session.scalar(select(Tenant.name).where(Tenant.id == tenant_id))
            raise ConflictError(
                f"{user.name} is the last admin of {name}, and you can't {act} them. "
                "Make another user an admin first.",
                code=LAST_ADMIN,
            )


def require_another_operator(session: Session, user: User, *, act: str) -> None:
    """Raise `ConflictError` if the user is the last operator."""
    lock = update(User).where(User.is_operator).values(is_operator=User.is_operator)
    session.execute(lock.execution_options(synchronize_session=False))
    operator_ids = session.scalars(select(User.id).where(User.is_operator, User.is_active))
    if operator_ids.all() == [user.id]:
        raise ConflictError(
            f"{user.name} is the last operator, and you can't {act} them. Invite another first.",
            code=LAST_OPERATOR,
        )
