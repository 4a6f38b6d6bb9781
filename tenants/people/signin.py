"""Who is asking: passwords and browser sessions. API tokens are in `tokens`, a person's browsers
in `sessions`.

Only hashes of secrets are stored; a secret is returned once, by the function that makes it.
"""

from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import Select, delete, or_, select, update
from sqlalchemy.orm import Session, joinedload

from core.errors import OverloadedError, UnauthenticatedError
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


def find_user(session: Session, email: str) -> User | None:
    """Return the user with this email address, if there is one, with their memberships."""
    address = email.strip().lower()
    user = session.scalars(_people().where(User.email == address)).unique().one_or_none()
    # MySQL compares without accents: somebody else's address may look the same to it.
    return user if user is not None and user.email == address else None


def prove(user: User | None, password: str) -> User:
    """Return the user that was found by email address, whose password this is.

    It takes a while and needs no database: hold no transaction open meanwhile.

    Raises:
        UnauthenticatedError: the pair is wrong, or the user locked out of the portal. A wrong
            password and an unknown address get the same answer after the same work.
        OverloadedError: too many sign in at this moment.
    """
    known_hash = None if user is None else user.password_hash
    if not verify_password(known_hash, password) or user is None:
        raise UnauthenticatedError("The email address or the password is wrong. Try again.")
    _require_active(user)
    return user


def better_hash(user: User, password: str) -> str | None:
    """Return the hash to keep in place of one that was made with other parameters than today's."""
    if user.password_hash is None or not needs_rehash(user.password_hash):
        return None
    with suppress(OverloadedError):
        return hash_password(password)
    return None


def proved_user(session: Session, proved: User, *, new_hash: str | None = None) -> User:
    """Return who has proved to be a user, as the database knows them by now.

    Args:
        session: the database session.
        proved: the user as `prove` returned them.
        new_hash: kept in place of the old hash, unless the password was changed meanwhile.

    Raises:
        UnauthenticatedError: they were removed or locked out since, or their password was changed.
    """
    user = session.scalars(_people().where(User.id == proved.id)).unique().one_or_none()
    if user is None:
        raise UnauthenticatedError("This account was removed.")
    _require_active(user)
    if user.password_hash != proved.password_hash:
        raise UnauthenticatedError("The password was changed a moment ago. Sign in again.")
    if new_hash is not None:
        # No change of the password, so nothing for the audit log.
        session.execute(
            update(User)
            .where(User.id == user.id, User.password_hash == proved.password_hash)
            .values(password_hash=new_hash)
            .execution_options(synchronize_session=False)
        )
    return user


def may_enter(user: User) -> bool:
    """Whether a known user is let in: to a tenant, or as the operator."""
    return visitor_of(user, via=Via.PASSWORD) is not None


def require_entry(user: User) -> None:
    """Raise `UnauthenticatedError`, saying why, where nothing lets a known user in."""
    if not may_enter(user):
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
    # Who ends a person's sessions holds the person: whoever adds one must not wait for the person
    # with the new session in hand.
    session.execute(select(User.id).where(User.id == user.id).with_for_update(read=True))
    _drop_expired(session, user, now=now)
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
    theirs = joinedload(LoginSession.user).joinedload(User.memberships)
    statement = select(LoginSession).where(
        LoginSession.secret_hash == hash_secret(secret), LoginSession.expires_at > now
    )
    found = session.scalars(statement.options(theirs)).unique().one_or_none()
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


def _people() -> Select[User]:
    """Return what reads people with memberships and tenants in one statement."""
    return select(User).options(joinedload(User.memberships))


def _require_active(user: User) -> None:
    if not user.is_active:
        raise UnauthenticatedError("This account is locked. Ask an admin of your tenant.")


def _drop_expired(session: Session, user: User, *, now: datetime) -> None:
    # Looked for without a lock: to delete by what is looked for is to wait for sign-ins of the same
    # user, and they for this one.
    expired = select(LoginSession.id).where(
        LoginSession.user_id == user.id, LoginSession.expires_at <= now
    )
    found = session.scalars(expired).all()
    if found:
        session.execute(delete(LoginSession).where(LoginSession.id.in_(found)))


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
