"""Support visits: an operator looks at a tenant as one of its users, for a while and for a reason.

A visit only looks. What somebody else's hand changed in a user's name could not be told from what
the user did, and an operator who has to change something has the console for it, under the own
name. The reason goes into the tenant's log and the platform's before anything is shown.
"""

from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.audit import record
from tenants.models import PLATFORM_CHAIN, LoginSession, SupportVisit, Tenant, User
from tenants.permissions import Permission
from tenants.visitors import Via, Visitor, visitor_of

DURATION = timedelta(minutes=30)
MIN_REASON_LENGTH = 10
MAX_REASON_LENGTH = 500


def start_visit(
    session: Session, visitor: Visitor, *, tenant_id: str, user_id: str, reason: str, now: datetime
) -> SupportVisit:
    """Let an operator's browser look at a tenant as one of its users does.

    Raises:
        NotFoundError: the user does not belong to the tenant.
        InvalidInputError: the reason says too little or too much.
        ConflictError: the user could not sign in to the tenant now.
    """
    visitor.scope.require(Permission.OPERATE)
    user = find_visited(session, visitor, tenant_id=tenant_id, user_id=user_id)
    reason = _checked(reason)
    login = _login_of(session, visitor)
    visit = SupportVisit(
        operator_id=visitor.user.id,
        tenant_id=tenant_id,
        as_user_id=user.id,
        reason=reason,
        started_at=now,
        expires_at=now + DURATION,
    )
    if _as_user(user, visit, login) is None:
        raise ConflictError(
            f"{user.email} can't sign in to this tenant now: one of the two is suspended or locked "
            "out. Make it active first."
        )
    session.add(visit)
    session.flush()
    login.support_visit_id = visit.id
    _tell(session, visit, user, "started", now=now)
    session.flush()
    return visit


def end_visit(session: Session, visitor: Visitor, *, now: datetime) -> None:
    """Give an operator's browser its own rights back; without a visit nothing happens."""
    if visitor.visit is None:
        return
    visit = session.get_one(SupportVisit, visitor.visit.id)
    session.execute(
        update(LoginSession)
        .where(LoginSession.support_visit_id == visit.id)
        .values(support_visit_id=None)
    )
    if visit.ended_at is None:
        visit.ended_at = now
        _tell(session, visit, visit.as_user, "ended", now=now)
    session.flush()


def visitor_on_visit(session: Session, login: LoginSession, *, now: datetime) -> Visitor | None:
    """Return as whom a browser looks, or None where no visit of it is under way."""
    if login.support_visit_id is None:
        return None
    visit = session.get(SupportVisit, login.support_visit_id)
    if visit is None or visit.ended_at is not None or visit.expires_at <= now:
        return None
    if visit.operator_id != login.user_id or not (login.user.is_operator and login.user.is_active):
        return None
    return _as_user(visit.as_user, visit, login)


def find_visited(session: Session, visitor: Visitor, *, tenant_id: str, user_id: str) -> User:
    """Return a user of a tenant as the one to be visited."""
    visitor.scope.require(Permission.OPERATE)
    user = session.get(User, user_id)
    if user is None or all(one.tenant_id != tenant_id for one in user.memberships):
        raise NotFoundError.of("user", user_id)
    return user


def _as_user(user: User, visit: SupportVisit, login: LoginSession) -> Visitor | None:
    found = visitor_of(
        user, via=Via.SESSION, tenant_id=visit.tenant_id, credential_id=login.id, visit=visit
    )
    # Another tenant of the same user is not what the reason was given for.
    if found is None or found.tenant is None or found.tenant.id != visit.tenant_id:
        return None
    return found


def _login_of(session: Session, visitor: Visitor) -> LoginSession:
    login = None
    if visitor.via is Via.SESSION and visitor.credential_id is not None:
        login = session.get(LoginSession, visitor.credential_id)
    if login is None:
        raise ForbiddenError("Only a browser can make a support visit. Sign in to the portal.")
    return login


def _checked(reason: str) -> str:
    reason = " ".join(reason.split())
    if MIN_REASON_LENGTH <= len(reason) <= MAX_REASON_LENGTH:
        return reason
    fault = (
        f"Give a reason of {MIN_REASON_LENGTH} to {MAX_REASON_LENGTH} characters, such as the "
        "ticket's number and what was asked. The tenant's admins read it."
    )
    raise InvalidInputError(fault, errors={"reason": [fault]})


def _tell(session: Session, visit: SupportVisit, user: User, verb: str, *, now: datetime) -> None:
    tenant = session.get_one(Tenant, visit.tenant_id)
    for chain in (visit.tenant_id, PLATFORM_CHAIN):
        record(
            session,
            action=f"support_visit.{verb}",
            target_kind="user",
            target_id=user.id,
            target_name=user.email,
            tenant_id=chain,
            after={"tenant": tenant.name, "expires_at": visit.expires_at.isoformat()},
            reason=visit.reason,
            now=now,
        )
