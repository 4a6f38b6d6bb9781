"""Sign-in with a password. Browser sessions are in `sessions`, API tokens in `tokens`."""

from contextlib import suppress
from datetime import datetime

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.orm.attributes import set_committed_value

from core.db import changed_one
from core.errors import OverloadedError, UnauthenticatedError
from tenants.auditing.recording import record, user_chains
from tenants.models import PLATFORM_CHAIN, User
from tenants.principals import Via, principal_of
from tenants.users.passwords import hash_password, needs_rehash, verify_password


def find_user(session: Session, email: str) -> User | None:
    """Return the user with this email address and their memberships, if there is one."""
    address = email.strip().lower()
    user = session.scalars(_users().where(User.email == address)).unique().one_or_none()
    # MySQL ignores accents when it compares: this may be another address.
    return user if user is not None and user.email == address else None


def verify_credentials(user: User | None, password: str) -> User:
    """Return the user if the password is theirs; `user` was found by email address.

    This is slow and needs no database: don't hold a transaction open meanwhile. A wrong password
    and an unknown address get the same answer after the same work.

    Raises:
        UnauthenticatedError: the pair is wrong, or the user is deactivated.
        OverloadedError: too many concurrent sign-ins.
    """
    known_hash = None if user is None else user.password_hash
    if not verify_password(known_hash, password) or user is None:
        raise UnauthenticatedError("The email address or the password is wrong. Try again.")
    _require_active(user)
    return user


def upgraded_hash(user: User, password: str) -> str | None:
    """Return a new hash if the stored one has outdated parameters."""
    if user.password_hash is None or not needs_rehash(user.password_hash):
        return None
    with suppress(OverloadedError):
        return hash_password(password)
    return None


def refresh_signed_in_user(session: Session, proved: User, *, new_hash: str | None = None) -> User:
    """Return the verified user as now stored; store `new_hash` unless the password changed.

    Raises:
        UnauthenticatedError: the user was removed or deactivated, or the password changed.
    """
    user = session.scalars(_users().where(User.id == proved.id)).unique().one_or_none()
    if user is None:
        raise UnauthenticatedError("This account was removed.")
    _require_active(user)
    if user.password_hash != proved.password_hash:
        raise UnauthenticatedError("The password was just changed. Sign in again.")
    if new_hash is not None:
        # The password is the same: nothing for the audit log.
        same = (User.id == user.id, User.password_hash == proved.password_hash)
        statement = update(User).where(*same).values(password_hash=new_hash)
        if changed_one(session, statement, synchronize_session=False):
            set_committed_value(user, "password_hash", new_hash)
    return user


def can_sign_in(user: User) -> bool:
    """Return whether the user may sign in: to a tenant, or as an operator."""
    return principal_of(user, via=Via.PASSWORD) is not None


def require_can_sign_in(user: User) -> None:
    """Raise `UnauthenticatedError` with the reason if the user may not sign in."""
    if can_sign_in(user):
        return
    if any(membership.is_active for membership in user.memberships):
        raise UnauthenticatedError("This tenant is suspended. Contact the portal's operator.")
    raise UnauthenticatedError(
        "This account belongs to no tenant. Ask an admin of your tenant for an invitation."
    )


def record_failed_sign_in(
    session: Session, user: User | None, email: str, *, now: datetime
) -> None:
    """Record a failed sign-in in the audit log, for unknown addresses too."""
    # Text that is no address may be a password typed into the wrong field.
    address = email if "@" in email else "(not an email address)"
    ident, name = (None, address) if user is None else (user.id, user.email)
    _record(session, ident, name, action="session.failed", now=now)


def record_for_user(session: Session, user: User, *, action: str, now: datetime) -> None:
    """Record an action in the audit log of each of the user's tenants, else the platform's."""
    _record(session, user.id, user.email, action=action, now=now)


def _record(session: Session, ident: str | None, name: str, *, action: str, now: datetime) -> None:
    # Unknown users are looked up as well, so that both cases take as many statements.
    for chain in user_chains(session, ident or ""):
        record(
            session,
            action=action,
            target_kind="user",
            target_id=ident,
            target_name=name,
            tenant_id=None if chain == PLATFORM_CHAIN else chain,
            now=now,
        )


def _users() -> Select[User]:
    """Return the query of users with their memberships and tenants in one statement."""
    return select(User).options(joinedload(User.memberships))


def _require_active(user: User) -> None:
    if not user.is_active:
        raise UnauthenticatedError("This account is deactivated. Ask an admin of your tenant.")
