"""Browser sessions: start, list and end them, and switch their tenant."""

from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from core.errors import ConflictError, NotFoundError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from tenants.models import LoginSession, Tenant, User
from tenants.models.columns import ADDRESS_LENGTH, USER_AGENT_LENGTH
from tenants.principals import Principal, Via, principal_of
from tenants.scope import Scope, active_memberships
from tenants.users.support import support_principal

SESSION_PREFIX = "vds"


def start_session(
    session: Session,
    user: User,
    *,
    now: datetime,
    lifetime: timedelta,
    tenant_id: str | None = None,
    address: str = "",
    user_agent: str = "",
) -> str:
    """Sign a browser in; return the secret for its cookie. Deletes the user's expired sessions.

    Without a `tenant_id` the browser shows the user's first tenant, or the operator's view.
    """
    # Lock the user before the session is inserted, in the order of those who end sessions:
    # otherwise both could deadlock.
    session.execute(select(User.id).where(User.id == user.id).with_for_update(read=True))
    # Select without a lock first: a DELETE by condition deadlocks with concurrent sign-ins.
    is_expired = (LoginSession.user_id == user.id, LoginSession.expires_at <= now)
    if expired := session.scalars(select(LoginSession.id).where(*is_expired)).all():
        session.execute(delete(LoginSession).where(LoginSession.id.in_(expired)))
    secret = new_secret(SESSION_PREFIX)
    session.add(
        LoginSession(
            user_id=user.id,
            tenant_id=tenant_id,
            secret_hash=hash_secret(secret),
            address=address[:ADDRESS_LENGTH],
            user_agent=user_agent[:USER_AGENT_LENGTH],
            created_at=now,
            last_seen_at=now,
            expires_at=now + lifetime,
        )
    )
    session.flush()
    return secret


def session_principal(session: Session, secret: str, *, now: datetime) -> Principal | None:
    """Return the signed-in user of a browser; None without a valid session."""
    theirs = joinedload(LoginSession.user).joinedload(User.memberships)
    statement = select(LoginSession).where(
        LoginSession.secret_hash == hash_secret(secret), LoginSession.expires_at > now
    )
    login = session.scalars(statement.options(theirs)).unique().one_or_none()
    if login is None:
        return None
    return support_principal(session, login, now=now) or principal_of(
        login.user, via=Via.SESSION, tenant_id=login.tenant_id, credential_id=login.id
    )


def principal_of_session(session: Session, session_id: str, *, now: datetime) -> Principal | None:
    """Return the signed-in user of a browser session by its id; None if it has ended."""
    login = session.get(LoginSession, session_id)
    if login is None or login.expires_at <= now:
        return None
    return support_principal(session, login, now=now) or principal_of(
        login.user, via=Via.SESSION, tenant_id=login.tenant_id, credential_id=login.id
    )


def end_session(session: Session, secret: str) -> None:
    """Sign a browser out, if it is signed in."""
    session.execute(delete(LoginSession).where(LoginSession.secret_hash == hash_secret(secret)))


SESSION_SORTS: Columns = {
    "last_seen_at": LoginSession.last_seen_at,
    "created_at": LoginSession.created_at,
    "expires_at": LoginSession.expires_at,
}


def list_sessions(
    session: Session, user_id: str, *, now: datetime, **paging: Unpack[Paging]
) -> Page[LoginSession]:
    """Return a user's sessions, most recently used first."""
    statement = (
        select(LoginSession)
        .where(LoginSession.user_id == user_id, LoginSession.expires_at > now)
        .order_by(LoginSession.last_seen_at.desc(), LoginSession.id.desc())
    )
    return list_page(session, statement, SESSION_SORTS, last=LoginSession.id, **paging)


def get_session(session: Session, scope: Scope, session_id: str) -> LoginSession:
    """Return one of the user's own sessions.

    Raises:
        NotFoundError: it does not exist, or is another user's.
    """
    scope.require_unlimited()
    login = session.get(LoginSession, session_id)
    if login is None or login.user_id != scope.user_id:
        raise NotFoundError.of("session", session_id)
    return login


def end_one_session(session: Session, scope: Scope, session_id: str) -> None:
    """Sign out one of the user's own browsers; see `get_session`."""
    session.delete(get_session(session, scope, session_id))
    session.flush()


def end_all_sessions(session: Session, user_id: str, *, keep: str | None = None) -> None:
    """Sign a user out of all browsers, except the one with the secret `keep`."""
    ended = delete(LoginSession).where(LoginSession.user_id == user_id)
    if keep is not None:
        ended = ended.where(LoginSession.secret_hash != hash_secret(keep))
    session.execute(ended.execution_options(synchronize_session=False))


def switch_tenant(
    session: Session, session_id: str, tenant_id: str | None, *, now: datetime
) -> Tenant | None:
    """Show another tenant of the user in a browser; None is the operator's view of all tenants.

    Raises:
        NotFoundError: the user does not belong to the tenant, or it is suspended.
        ConflictError: a support session is active in the browser.
    """
    login = session.get(LoginSession, session_id)
    if login is None:
        raise NotFoundError.of("session", session_id)
    if support_principal(session, login, now=now) is not None:
        raise ConflictError("A support session is active in this browser. End it first.")
    tenants = {tenant.id: tenant for tenant in available_tenants(login.user)}
    if tenant_id not in tenants and (tenant_id is not None or not login.user.is_operator):
        raise NotFoundError.of("tenant", tenant_id or "")
    login.tenant_id = tenant_id
    session.flush()
    return None if tenant_id is None else tenants[tenant_id]


def available_tenants(user: User) -> list[Tenant]:
    """Return the tenants that a user may select, by name."""
    tenants = [membership.tenant for membership in active_memberships(user)]
    return sorted(tenants, key=lambda tenant: tenant.name.lower())
