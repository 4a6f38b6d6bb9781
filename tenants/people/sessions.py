"""A person's browsers: which are signed in, signed out one by one or all, and what they look at."""

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.ids import hash_secret
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.models import LoginSession, Tenant, User
from tenants.people.support import visitor_on_visit
from tenants.scope import Scope, memberships_in_force

SESSION_SORTS: Columns = {
    "last_seen_at": LoginSession.last_seen_at,
    "created_at": LoginSession.created_at,
    "expires_at": LoginSession.expires_at,
}


def list_sessions(
    session: Session,
    user_id: str,
    *,
    now: datetime,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[LoginSession]:
    """Return a user's browsers that are signed in, the one seen last first."""
    statement = (
        select(LoginSession)
        .where(LoginSession.user_id == user_id, LoginSession.expires_at > now)
        .order_by(LoginSession.last_seen_at.desc(), LoginSession.id.desc())
    )
    return paginate(
        session,
        sorted_by(statement, sort, SESSION_SORTS, last=LoginSession.id),
        number=page,
        size=page_size,
    )


def get_session(session: Session, scope: Scope, session_id: str) -> LoginSession:
    """Return one of one's own browsers.

    Raises:
        NotFoundError: it is gone, or somebody else's.
    """
    scope.require_unlimited()
    found = session.get(LoginSession, session_id)
    if found is None or found.user_id != scope.user_id:
        raise NotFoundError.of("session", session_id)
    return found


def end_one_session(session: Session, scope: Scope, session_id: str) -> None:
    """Sign one of one's own browsers out.

    Raises:
        NotFoundError: it is gone, or somebody else's.
    """
    session.delete(get_session(session, scope, session_id))
    session.flush()


def end_all_sessions(session: Session, user_id: str, *, keep: str | None = None) -> None:
    """Sign all browsers of a user out.

    Args:
        session: the database session.
        user_id: whose browsers.
        keep: the secret of the one that stays.
    """
    ended = delete(LoginSession).where(LoginSession.user_id == user_id)
    if keep is not None:
        ended = ended.where(LoginSession.secret_hash != hash_secret(keep))
    session.execute(ended.execution_options(synchronize_session=False))


def switch_tenant(
    session: Session, session_id: str, tenant_id: str | None, *, now: datetime
) -> Tenant | None:
    """Let a browser look at another tenant of its user.

    Args:
        session: the database session.
        session_id: the login session.
        tenant_id: what to look at; None is the operator's view of all.
        now: the present instant.

    Returns:
        The tenant; None for the operator's view.

    Raises:
        NotFoundError: the user does not belong to that tenant, or it is suspended.
        ConflictError: the browser looks at a tenant to support it.
    """
    found = session.get(LoginSession, session_id)
    if found is None:
        raise NotFoundError.of("session", session_id)
    if visitor_on_visit(session, found, now=now) is not None:
        raise ConflictError("You look at a tenant to support it. End that visit first.")
    chosen = _tenant_of(found.user, tenant_id)
    found.tenant_id = tenant_id
    session.flush()
    return chosen


def tenants_to_choose(user: User) -> list[Tenant]:
    """Return the tenants that a user may look at, by name."""
    found = [membership.tenant for membership in memberships_in_force(user)]
    return sorted(found, key=lambda tenant: tenant.name.lower())


def _tenant_of(user: User, tenant_id: str | None) -> Tenant | None:
    if tenant_id is None and user.is_operator:
        return None
    for tenant in tenants_to_choose(user):
        if tenant.id == tenant_id:
            return tenant
    raise NotFoundError.of("tenant", tenant_id or "")
