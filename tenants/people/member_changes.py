"""What is done to the people of a tenant: added, locked out, given another role, removed.

No tenant is left without an admin, nor the platform without an operator; nobody does it to
themselves.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.accounts import create_user, get_tenant
from tenants.models import APIToken, LoginSession, Role
from tenants.people.last_admin import keep_an_admin, keep_an_operator
from tenants.people.members import Member, get_user
from tenants.permissions import Permission
from tenants.scope import Scope


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
    """Add a user with a first password, as the operator.

    Raises:
        ForbiddenError: an admin asks. They invite: the answer here tells which addresses have an
            account already, and who sets a password can sign in as its owner.
    """
    scope.require(Permission.MANAGE_USERS)
    if scope.role is not Role.OPERATOR:
        raise ForbiddenError(
            "Only an operator may add a user with a password. Invite the person instead."
        )
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


def set_user_active(
    session: Session,
    scope: Scope,
    user_id: str,
    *,
    is_active: bool,
    tenant_id: str | None = None,
) -> Member:
    """Let a person in, or lock them out and end their sessions.

    A tenant's admin does so for the own tenant, the operator for all of the portal. Whom the
    operator did not lock out, they let in again to the tenant, whose admin did.

    Raises:
        ConflictError: somebody locks themselves out, or the last admin of a tenant.
    """
    member = _other(session, scope, user_id, tenant_id, act="lock yourself out")
    is_of_tenant = scope.tenant_id is not None or (is_active and member.user.is_active)
    membership = member.membership if is_of_tenant else None
    if not is_active:
        lost = [membership] if membership is not None else member.user.memberships
        keep_an_admin(session, member.user, [one.tenant_id for one in lost], act="lock out")
        if membership is None and member.user.is_operator:
            keep_an_operator(session, member.user, act="lock out")
        _end_sessions(session, member.id, scope.tenant_id)
    (membership or member.user).is_active = is_active
    session.flush()
    return member


def set_role(
    session: Session, scope: Scope, user_id: str, role: Role, *, tenant_id: str | None = None
) -> Member:
    """Give a person another role in a tenant.

    Args:
        session: the database session.
        scope: who asks.
        user_id: whose role it is.
        role: what they are from now on; operators are made by invitation.
        tenant_id: in which tenant; for the operator, who has none of their own.

    Raises:
        ConflictError: somebody changes their own role, or that of the last admin.
    """
    member = _other(session, scope, user_id, tenant_id, act="change your own role")
    membership = member.membership
    if role is Role.OPERATOR or membership is None:
        fault = "Operators are made by an invitation and unmade by being removed."
        raise InvalidInputError(fault, errors={"role": [fault]})
    if role is not Role.ADMIN:
        keep_an_admin(session, member.user, [membership.tenant_id], act="demote")
    membership.role = role
    session.flush()
    return member


def remove_user(
    session: Session, scope: Scope, user_id: str, *, tenant_id: str | None = None, now: datetime
) -> Member:
    """Take a person out of a tenant; an operator without a tenant, out of the operators.

    Their browsers are signed out and their tokens there revoked; jobs and rules stay.

    Raises:
        ConflictError: somebody removes themselves, or the last admin of a tenant.
    """
    member = _other(session, scope, user_id, tenant_id, act="remove yourself")
    if member.membership is None:
        return remove_operator(session, scope, user_id, now=now)
    keep_an_admin(session, member.user, [member.membership.tenant_id], act="remove")
    session.delete(member.membership)
    session.flush()
    session.expire(member.user, ["memberships"])
    _end_sessions(session, member.id, member.tenant_id)
    _revoke_tokens(session, member.id, member.tenant_id, now=now)
    return member


def remove_operator(session: Session, scope: Scope, user_id: str, *, now: datetime) -> Member:
    """Take a person out of the operators; what they are in tenants stays.

    Raises:
        NotFoundError: they are no operator.
        ConflictError: somebody removes themselves, or the last operator.
    """
    scope.require(Permission.OPERATE)
    member = _other(session, scope, user_id, act="remove yourself")
    if not member.user.is_operator:
        raise NotFoundError.of("operator", user_id)
    keep_an_operator(session, member.user, act="remove")
    member.user.is_operator = False
    session.flush()
    _end_sessions(session, member.id, None)
    _revoke_tokens(session, member.id, None, now=now)
    return member


def _other(
    session: Session, scope: Scope, user_id: str, tenant_id: str | None = None, *, act: str
) -> Member:
    """Return somebody else whom the scope manages."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    member = get_user(session, scope, user_id, tenant_id=tenant_id)
    if member.id == scope.user_id:
        raise ConflictError(f"You can't {act}. Ask another admin to do it.")
    return member


def _end_sessions(session: Session, user_id: str, tenant_id: str | None) -> None:
    """Sign a person's browsers out; those that look at one tenant, where it is named."""
    ended = delete(LoginSession).where(LoginSession.user_id == user_id)
    if tenant_id is not None:
        ended = ended.where(_may_look_at(tenant_id))
    session.execute(ended.execution_options(synchronize_session=False))


def _revoke_tokens(session: Session, user_id: str, tenant_id: str | None, *, now: datetime) -> None:
    is_here = APIToken.tenant_id.is_(None) if tenant_id is None else APIToken.tenant_id == tenant_id
    statement = select(APIToken).where(
        APIToken.user_id == user_id, is_here, APIToken.revoked_at.is_(None)
    )
    for token in session.scalars(statement):
        token.revoked_at = now
    session.flush()


def _may_look_at(tenant_id: str) -> ColumnElement[bool]:
    return or_(LoginSession.tenant_id == tenant_id, LoginSession.tenant_id.is_(None))
