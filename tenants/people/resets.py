"""Passwords that were forgotten: a link by email sets a new one, once and within the hour."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.ids import hash_secret, new_secret
from tenants.accounts import set_password
from tenants.checks import refuse
from tenants.models import PasswordReset, User
from tenants.people.passwords import password_faults
from tenants.people.sessions import end_all_sessions
from tenants.people.signin import find_user, record_of_person
from tenants.people.throttling import forgive_account

RESET_PREFIX = "vdr"
RESET_LIFETIME = timedelta(hours=1)
GONE = "password_link_gone"


def create_reset(session: Session, email: str, *, now: datetime) -> tuple[User, str] | None:
    """Make a link's secret for the user with this email address.

    Returns:
        The user and the secret; None where nobody has the address, or they sign in otherwise or
        not at all. The one who asked must not be told which it was.
    """
    user = find_user(session, email)
    if user is None or not user.is_active or user.password_hash is None:
        return None
    secret = new_secret(RESET_PREFIX)
    session.add(
        PasswordReset(
            user_id=user.id,
            secret_hash=hash_secret(secret),
            created_at=now,
            expires_at=now + RESET_LIFETIME,
        )
    )
    session.flush()
    record_of_person(session, user, action="user.password_link_sent", now=now)
    return user, secret


def find_reset(session: Session, secret: str, *, now: datetime) -> User:
    """Return whose password a link sets.

    Raises:
        NotFoundError: it was never made, was used, or its hour is over.
    """
    reset = session.scalar(
        select(PasswordReset).where(PasswordReset.secret_hash == hash_secret(secret))
    )
    user = None if reset is None else session.get(User, reset.user_id)
    if reset is None or reset.used_at is not None or reset.expires_at <= now:
        raise _gone()
    if user is None or not user.is_active:
        raise _gone()
    return user


def use_reset(session: Session, secret: str, *, password: str, now: datetime) -> User:
    """Set a new password by a link, which is used up with all others of the user.

    Every browser of the user is signed out; API tokens stay.

    Raises:
        InvalidInputError: the password is too short; the link is still good.
        NotFoundError: the link was used, or its hour is over.
    """
    refuse({"new": password_faults(password)}, "The password was not changed")
    user = find_reset(session, secret, now=now)
    unused = update(PasswordReset).where(PasswordReset.used_at.is_(None)).values(used_at=now)
    unused = unused.execution_options(synchronize_session=False)
    # An UPDATE gives a CursorResult.
    used: Any = session.execute(unused.where(PasswordReset.secret_hash == hash_secret(secret)))
    if not used.rowcount:
        raise _gone()
    session.execute(unused.where(PasswordReset.user_id == user.id))
    set_password(session, user, password)
    end_all_sessions(session, user.id)
    forgive_account(session, user.email)
    record_of_person(session, user, action="user.password_reset", now=now)
    return user


def _gone() -> NotFoundError:
    return NotFoundError(
        "This link was used already, or its time is over. Ask for a new one.", code=GONE
    )
