"""Who is asking: passwords and browser sessions. API tokens are in `tokens`, a person's browsers
in `sessions`.

Only hashes of secrets are stored; a secret is returned once, by the function that makes it.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.audit import person_chains, record
from tenants.models import PLATFORM_CHAIN, LoginSession, User
from tenants.models.columns import ADDRESS_LENGTH, USER_AGENT_LENGTH
from tenants.people.passwords import hash_password, needs_rehash, verify_password
from tenants.people.support import visitor_on_visit
from tenants.visitors import Via, Visitor, visitor_of

SESSION_PREFIX = "vds"
# That a browser was seen is written down at most so often.
SEEN_EVERY = timedelta(minutes=1)


def authenticate(session: Session, *, email: str, password: str) -> User:
    """Return the user with this email address and password, who may come in.

    Raises:
        UnauthenticatedError: the pair is wrong, the user locked out or the tenant suspended. A
            wrong password and an unknown address get the same answer after the same work.
    """
    user = verify_user(session, email=email, password=password)
    require_entry(user)
    return user


def verify_user(session: Session, *, email: str, password: str) -> User:
    """Return the user with this email address and password, whether or not a tenant lets them in.

    Raises:
        UnauthenticatedError: the pair is wrong, or the user locked out of the portal.
    """
    user = find_user(session, email)
    known_hash = None if user is None else user.password_hash
    if not verify_password(known_hash, password) or user is None:
        raise UnauthenticatedError("The email address or the password is wrong. Try again.")
    if not user.is_active:
        raise UnauthenticatedError("This account is locked. Ask an admin of your tenant.")
    if user.password_hash is not None and needs_rehash(user.password_hash):
        user.password_hash = hash_password(password)
    return user


def find_user(session: Session, email: str) -> User | None:
    """Return the user with this email address, if there is one."""
    address = email.strip().lower()
    user = session.scalar(select(User).where(User.email == address))
    # MySQL compares without accents: somebody else's address may look the same to it.
    return user if user is not None and user.email == address else None


def require_entry(user: User) -> None:
    """Raise `UnauthenticatedError`, saying why, where nothing lets a known user in."""
    if visitor_of(user, via=Via.PASSWORD) is None:
        raise UnauthenticatedError(_why_not(user))


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
    """Sign a browser in; return the secret for its cookie. Drops the user's expired sessions.

    Args:
        session: the database session.
        user: who signs in.
        now: the present instant.
        lifetime: how long the browser stays signed in.
        tenant_id: what it looks at; their first tenant, or the operator's view, if left out.
        address: the browser's network address.
        user_agent: what the browser calls itself.
    """
    session.execute(
        delete(LoginSession).where(LoginSession.user_id == user.id, LoginSession.expires_at <= now)
    )
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


def session_visitor(
    session: Session, secret: str, *, now: datetime, address: str = ""
) -> Visitor | None:
    """Return whose browser this is, or None when nobody (any more) is signed in with it.

    When it was seen, and from where, is written down at most once a minute.
    """
    found = session.scalar(
        select(LoginSession).where(
            LoginSession.secret_hash == hash_secret(secret), LoginSession.expires_at > now
        )
    )
    if found is None:
        return None
    if found.last_seen_at is None or found.last_seen_at <= now - SEEN_EVERY:
        _note_seen(session, found, now=now, address=address)
    return visitor_on_visit(session, found, now=now) or visitor_of(
        found.user, via=Via.SESSION, tenant_id=found.tenant_id, credential_id=found.id
    )


def end_session(session: Session, secret: str) -> None:
    """Sign a browser out; doing it twice is fine."""
    session.execute(delete(LoginSession).where(LoginSession.secret_hash == hash_secret(secret)))


def record_of_person(
    session: Session, user: User, *, action: str, reason: str = "", now: datetime
) -> None:
    """Tell of a person in the audit log of each of their tenants, else in the platform's."""
    for chain in person_chains(session, user.id):
        record(
            session,
            action=action,
            target_kind="user",
            target_id=user.id,
            target_name=user.email,
            tenant_id=None if chain == PLATFORM_CHAIN else chain,
            reason=reason,
            now=now,
        )


def _note_seen(session: Session, found: LoginSession, *, now: datetime, address: str) -> None:
    """Write down that a browser was seen; of several requests at once, one does."""
    is_due = or_(LoginSession.last_seen_at.is_(None), LoginSession.last_seen_at <= now - SEEN_EVERY)
    session.execute(
        update(LoginSession)
        .where(LoginSession.id == found.id, is_due)
        .values(last_seen_at=now, address=address[:ADDRESS_LENGTH] or found.address)
        .execution_options(synchronize_session=False)
    )


def _why_not(user: User) -> str:
    if any(one.is_active for one in user.memberships):
        return "This tenant is suspended. Ask the operator of the portal."
    return "This account belongs to no tenant (any more). Ask an admin of your tenant."
