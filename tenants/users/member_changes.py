"""Changes of members: add, deactivate, change the role, remove. Users can't do it to themselves."""

from datetime import datetime

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import APIToken, LoginSession, Role
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant
from tenants.users.members import (
    Member,
    create_user,
    get_user,
    require_another_admin,
    require_another_operator,
)


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
    """Add a user with a first password, as an operator.

    Raises:
        ForbiddenError: the caller is an admin. The answer here reveals which addresses have
            accounts, and whoever sets a password can sign in as that user: admins invite.
    """
    scope.require(Permission.MANAGE_USERS)
    if scope.role is not Role.OPERATOR:
        raise ForbiddenError(
            "Only an operator may add a user with a password. Invite the person instead."
        )
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    user = create_user(
        session, tenant_id=tenant_id, email=email, name=name, role=role, password=password, now=now
    )
    return Member(user, user.memberships[0] if user.memberships else None)


def set_user_active(
    session: Session, scope: Scope, user_id: str, *, is_active: bool, tenant_id: str | None = None
) -> Member:
    """Activate a user, or deactivate them and end their sessions.

    An admin does so for the own tenant, an operator for the whole portal. An operator also
    activates the membership of an active user that an admin deactivated.

    Raises:
        ConflictError: it is the caller, or the last admin of a tenant.
    """
    member = _other(session, scope, user_id, tenant_id, act="deactivate yourself")
    is_of_tenant = scope.tenant_id is not None or (is_active and member.user.is_active)
    membership = member.membership if is_of_tenant else None
    if not is_active:
        lost = [membership] if membership is not None else member.user.memberships
        require_another_admin(
            session,
            member.user,
            [lost_membership.tenant_id for lost_membership in lost],
            act="deactivate",
        )
        if membership is None and member.user.is_operator:
            require_another_operator(session, member.user, act="deactivate")
        _end_sessions(session, member.id, scope.tenant_id)
    (membership or member.user).is_active = is_active
    session.flush()
    return member


def set_role(
    session: Session, scope: Scope, user_id: str, role: Role, *, tenant_id: str | None = None
) -> Member:
    """Change a user's role in a tenant.

    Raises:
        ConflictError: it is the caller, or the last admin of the tenant.
        InvalidInputError: the role is operator, or the user is one.
    """
    member = _other(session, scope, user_id, tenant_id, act="change your own role")
    membership = member.membership
    if role is Role.OPERATOR or membership is None:
        error = "Invite operators, or remove them; this role can't be set here."
        raise InvalidInputError(error, errors={"role": [error]})
    if role is not Role.ADMIN:
        require_another_admin(session, member.user, [membership.tenant_id], act="demote")
    membership.role = role
    session.flush()
    return member


def remove_user(
    session: Session, scope: Scope, user_id: str, *, tenant_id: str | None = None, now: datetime
) -> Member:
    """Remove a user from a tenant; an operator without a tenant, from the operators.

    Their browsers are signed out and their tokens for the tenant revoked; jobs and rules stay.

    Raises:
        ConflictError: it is the caller, or the last admin of the tenant.
    """
    member = _other(session, scope, user_id, tenant_id, act="remove yourself")
    if member.membership is None:
        return remove_operator(session, scope, user_id, now=now)
    require_another_admin(session, member.user, [member.membership.tenant_id], act="remove")
    session.delete(member.membership)
    session.flush()
    session.expire(member.user, ["memberships"])
    _end_sessions(session, member.id, member.tenant_id)
    _revoke_tokens(session, member.id, member.tenant_id, now=now)
    return member


def remove_operator(session: Session, scope: Scope, user_id: str, *, now: datetime) -> Member:
    """Remove a user from the operators; memberships stay.

    Raises:
        NotFoundError: the user is no operator.
        ConflictError: it is the caller, or the last operator.
    """
    scope.require(Permission.OPERATE)
    member = _other(session, scope, user_id, act="remove yourself")
    if not member.user.is_operator:
        raise NotFoundError.of("operator", user_id)
    require_another_operator(session, member.user, act="remove")
    member.user.is_operator = False
    session.flush()
    _end_sessions(session, member.id, None)
    _revoke_tokens(session, member.id, None, now=now)
    return member


def _other(
    session: Session, scope: Scope, user_id: str, tenant_id: str | None = None, *, act: str
) -> Member:
    """Return a user that the scope manages and who is not the caller."""
    scope.require(Permission.MANAGE_USERS)
    if tenant_id is not None:
        get_tenant(session, scope, tenant_id)
    member = get_user(session, scope, user_id, tenant_id=tenant_id)
    if member.id == scope.user_id:
        raise ConflictError(f"You can't {act}. Ask another admin to do it.")
    return member


def _end_sessions(session: Session, user_id: str, tenant_id: str | None) -> None:
    """Sign a user out of all browsers, or of those that may show one tenant."""
    ended = delete(LoginSession).where(LoginSession.user_id == user_id)
    if tenant_id is not None:
        ended = ended.where(
            or_(LoginSession.tenant_id == tenant_id, LoginSession.tenant_id.is_(None))
        )
    session.execute(ended.execution_options(synchronize_session=False))


def _revoke_tokens(session: Session, user_id: str, tenant_id: str | None, *, now: datetime) -> None:
    statement = select(APIToken).where(
        APIToken.user_id == user_id,
        APIToken.tenant_id == tenant_id,  # None becomes IS NULL
        APIToken.revoked_at.is_(None),
    )
    for token in session.scalars(statement):
        token.revoked_at = now
    session.flush()
