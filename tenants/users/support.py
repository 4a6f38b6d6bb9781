"""Support sessions: an operator views a tenant as one of its users, for a limited time.

A support session is read-only: operators make changes in the console, under their own name. The
reason is recorded in the audit logs of the tenant and the platform before anything is shown.
"""

from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.auditing.recording import record
from tenants.models import PLATFORM_CHAIN, LoginSession, SupportSession, User
from tenants.permissions import Permission
from tenants.principals import Principal, Via, principal_of

DURATION = timedelta(minutes=30)
MIN_REASON_LENGTH = 10
MAX_REASON_LENGTH = 500


def start_support_session(
    session: Session,
    principal: Principal,
    *,
    tenant_id: str,
    user_id: str,
    reason: str,
    now: datetime,
) -> SupportSession:
    """Start a support session in the operator's browser.

    Raises:
        NotFoundError: the user does not belong to the tenant.
        InvalidInputError: the reason is too short or too long.
        ConflictError: the user can't sign in to the tenant.
    """
    principal.scope.require(Permission.OPERATE)
    user = find_user_to_support(session, principal, tenant_id=tenant_id, user_id=user_id)
    reason = _checked(reason)
    login = None
    if principal.via is Via.SESSION:
        login = session.get(LoginSession, principal.credential_id)
    if login is None:
        raise ForbiddenError("Support sessions need a browser. Sign in to the portal.")
    support = SupportSession(
        operator_id=principal.user.id,
        tenant_id=tenant_id,
        as_user_id=user.id,
        reason=reason,
        started_at=now,
        expires_at=now + DURATION,
    )
    if _as_user(user, support, login) is None:
        raise ConflictError(
            f"{user.email} can't sign in to this tenant: the user or the tenant is not active. "
            "Activate it first."
        )
    session.add(support)
    session.flush()
    login.support_session_id = support.id
    session.refresh(support, ["tenant"])
    _record(session, support, user, "started", now=now)
    return support


def end_support_session(session: Session, principal: Principal, *, now: datetime) -> None:
    """End the support session of this browser, if there is one."""
    if principal.support_session is None:
        return
    support = session.get_one(SupportSession, principal.support_session.id)
    session.execute(
        update(LoginSession)
        .where(LoginSession.support_session_id == support.id)
        .values(support_session_id=None)
    )
    if support.ended_at is None:
        support.ended_at = now
        _record(session, support, support.as_user, "ended", now=now)


def support_principal(session: Session, login: LoginSession, *, now: datetime) -> Principal | None:
    """Return the supported user as a principal; None without an active support session."""
    if login.support_session_id is None:
        return None
    support = session.get(SupportSession, login.support_session_id)
    if support is None or support.ended_at is not None or support.expires_at <= now:
        return None
    if support.operator_id != login.user_id or not (
        login.user.is_operator and login.user.is_active
    ):
        return None
    return _as_user(support.as_user, support, login)


def find_user_to_support(
    session: Session, principal: Principal, *, tenant_id: str, user_id: str
) -> User:
    """Return the user of a tenant that an operator wants to support."""
    principal.scope.require(Permission.OPERATE)
    user = session.get(User, user_id)
    if user is None or all(membership.tenant_id != tenant_id for membership in user.memberships):
        raise NotFoundError.of("user", user_id)
    return user


def _as_user(user: User, support: SupportSession, login: LoginSession) -> Principal | None:
    principal = principal_of(
        user,
        via=Via.SESSION,
        tenant_id=support.tenant_id,
        credential_id=login.id,
        support_session=support,
    )
    # The reason covers this tenant only: don't fall back to another tenant of the same user.
    if principal is None or principal.tenant is None or principal.tenant.id != support.tenant_id:
        return None
    return principal


def _checked(reason: str) -> str:
    reason = " ".join(reason.split())
    if MIN_REASON_LENGTH <= len(reason) <= MAX_REASON_LENGTH:
        return reason
    error = (
        f"Enter a reason of {MIN_REASON_LENGTH} to {MAX_REASON_LENGTH} characters, such as the "
        "ticket number and the request. The tenant's admins can read it."
    )
    raise InvalidInputError(error, errors={"reason": [error]})


def _record(
    session: Session, support: SupportSession, user: User, verb: str, *, now: datetime
) -> None:
    session.flush()
    for chain in (support.tenant_id, PLATFORM_CHAIN):
        record(
            session,
            action=f"support_session.{verb}",
            target_kind="user",
            target_id=user.id,
            target_name=user.email,
            tenant_id=chain,
            after={"tenant": support.tenant.name, "expires_at": support.expires_at.isoformat()},
            reason=support.reason,
            now=now,
        )
