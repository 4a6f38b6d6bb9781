"""Password resets: a link by email sets a new password once, within an hour.

Links are signed, so that invalid ones are refused without a database query. Expiry and single use
are checked by the secret that a link contains.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from itsdangerous import BadSignature, URLSafeSerializer
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import changed_one, changed_rows
from core.errors import NotFoundError
from core.ids import hash_secret, new_secret
from tenants.checks import raise_if_invalid
from tenants.models import PasswordReset, User
from tenants.users.passwords import password_errors, set_password
from tenants.users.sessions import end_all_sessions
from tenants.users.signin import find_user, record_for_user
from tenants.users.throttling import reset_account_attempts

RESET_PREFIX = "vdr"
RESET_LIFETIME = timedelta(hours=1)
GONE = "password_link_gone"


def create_reset(session: Session, email: str, *, now: datetime) -> tuple[User, str] | None:
    """Create a reset for the user with this email address; return the user and the link's secret.

    Returns None if no user has the address, or the user has no password or is deactivated. Don't
    reveal to the requester which it was.
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
    record_for_user(session, user, action="user.password_link_sent", now=now)
    return user, secret


def find_reset(session: Session, secret: str, *, now: datetime) -> User:
    """Return the user whose password a link sets.

    Raises:
        NotFoundError: the link is unknown, used or expired.
    """
    reset = session.scalar(
        select(PasswordReset).where(PasswordReset.secret_hash == hash_secret(secret))
    )
    user = None if reset is None else session.get(User, reset.user_id)
    is_valid = reset is not None and reset.used_at is None and reset.expires_at > now
    if not is_valid or user is None or not user.is_active:
        raise _link_error()
    return user


def use_reset(session: Session, secret: str, *, password: str, now: datetime) -> User:
    """Set a new password by a link, which invalidates all links of the user.

    All browsers of the user are signed out; API tokens stay valid.

    Raises:
        InvalidInputError: the password is too short; the link stays valid.
        NotFoundError: the link is used or expired.
    """
    raise_if_invalid({"new": password_errors(password)}, "The password was not changed")
    user = find_reset(session, secret, now=now)
    unused = update(PasswordReset).where(PasswordReset.used_at.is_(None)).values(used_at=now)
    by_secret = unused.where(PasswordReset.secret_hash == hash_secret(secret))
    if not changed_one(session, by_secret, synchronize_session=False):
        raise _link_error()
    changed_rows(session, unused.where(PasswordReset.user_id == user.id), synchronize_session=False)
    set_password(session, user, password)
    end_all_sessions(session, user.id)
    reset_account_attempts(session, user.email)
    record_for_user(session, user, action="user.password_reset", now=now)
    return user


def _link_error() -> NotFoundError:
    return NotFoundError("This link was already used or has expired. Request a new one.", code=GONE)


class Purpose(StrEnum):
    """The purpose of a link; a link is valid for its purpose only."""

    PASSWORD = "password"  # noqa: S105 - a purpose
    INVITATION = "invitation"
    SIGN_UP = "sign-up"


_PATHS = {
    Purpose.PASSWORD: "password/reset",
    Purpose.INVITATION: "invitation",
    Purpose.SIGN_UP: "market/sign-up",
}


def make_link(purpose: Purpose, secret: str, *, key: str, public_url: str) -> str:
    """Return the link for a secret, signed with the portal's `key`."""
    return f"{public_url}/{_PATHS[purpose]}/{_signer(purpose, key).dumps(secret)}"


def read_link(purpose: Purpose, token: str, *, key: str) -> str:
    """Return the secret of a link's last part.

    Raises:
        NotFoundError: this portal did not sign it, or not for this purpose.
    """
    try:
        return str(_signer(purpose, key).loads(token))
    except BadSignature as error:
        raise NotFoundError(
            "This link is incomplete. Copy all of it from the email, or request a new one.",
            code="bad_link",
        ) from error


def _signer(purpose: Purpose, key: str) -> URLSafeSerializer:
    return URLSafeSerializer(key, salt=f"vedette {purpose.value}")
