"""Sign-in: the password, a code if the account has a second factor, then a browser session.

Every attempt at a secret is counted before the secret is checked. The count is committed in a
transaction of its own, so that a failed attempt does not roll it back; a successful one is forgiven
in the transaction that uses it. No database connection is open while a password is hashed.

Between password and code, a signed cookie remembers the user for a few minutes; it only gives
access to the code form. Programs send the code in a header, with email address and password.
A browser that signed in before is counted by itself: `device_cookies`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flask import request, session, url_for
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, OverloadedError, UnauthenticatedError
from marketplace.sign_ups.service import is_crowded
from portal.auth.device_cookies import known_device, remember_device
from portal.context import (
    actor_signing_in,
    current_principal,
    current_user,
    database,
    now,
    portal,
    principal,
)
from tenants.auditing.recording import set_actor
from tenants.models import User
from tenants.principals import Via
from tenants.users.passwords import change_password
from tenants.users.second_factor import check_code, is_on
from tenants.users.sessions import end_session, start_session
from tenants.users.signin import (
    can_sign_in,
    find_user,
    record_failed_sign_in,
    record_for_user,
    refresh_signed_in_user,
    require_can_sign_in,
    upgraded_hash,
    verify_credentials,
)
from tenants.users.throttling import (
    CountedAttempt,
    count_attempt,
    discard_attempt,
    forgive_attempt,
    network_of,
)

SESSION_KEY = "login"
PENDING_KEY = "second_factor"
CODE_TIMEOUT = timedelta(minutes=5)
OTP_HEADER = "X-Vedette-OTP"
CODE_REQUIRED = "second_factor_required"


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A user who has entered the first factor, and the page to open after the second."""

    user_id: str
    target: str


@dataclass(frozen=True, slots=True)
class _Verified:
    """A user whose password was right; the attempt still counts."""

    user: User
    attempt: CountedAttempt
    new_hash: str | None


def sign_in(*, email: str, password: str, target: str = "/") -> str:
    """Check email and password and sign in; return the path to continue at.

    Raises:
        UnauthenticatedError: wrong credentials, deactivated account or suspended tenant.
        TooManyAttemptsError: there were too many failed attempts.
    """
    verified = _verify(email=email, password=password)
    secret = None
    with database() as db:
        user = refresh_signed_in_user(db, verified.user, new_hash=verified.new_hash)
        if can_sign_in(user) and not is_on(user):
            secret = _new_session(db, user)
        forgive_attempt(db, verified.attempt)
    require_can_sign_in(user)
    if secret is None:
        return _ask_for_code(user, target)
    _set_cookies(user, secret)
    return target


def check_password(*, email: str, password: str) -> User:
    """Return the user with this email address and password.

    Raises:
        UnauthenticatedError: wrong credentials or deactivated account.
        TooManyAttemptsError: there were too many failed attempts.
    """
    verified = _verify(email=email, password=password)
    with database() as db:
        user = refresh_signed_in_user(db, verified.user, new_hash=verified.new_hash)
        forgive_attempt(db, verified.attempt)
    return user


def continue_sign_in(user: User, *, target: str = "/") -> str:
    """Sign in a user who has proved the first factor; return the path to continue at.

    With a second factor that is the code form, and the user is not signed in yet.
    """
    if is_on(user):
        return _ask_for_code(user, target)
    open_session(user)
    return target


def open_session(user: User) -> None:
    """Start a session of this browser in place of its previous one."""
    with database() as db:
        secret = _new_session(db, user)
    _set_cookies(user, secret)


def sign_out() -> None:
    """End this browser's session in the database and in the cookie."""
    secret = session_secret()
    current = principal()
    if secret is not None:
        with database() as db:
            end_session(db, secret)
            if current is not None and current.via is Via.SESSION:
                support = current.support_session
                user = current.user if support is None else support.operator
                record_for_user(db, user, action="session.ended", now=now())
    session.clear()


def session_secret() -> str | None:
    """Return the session secret in this browser's cookie."""
    secret: str | None = session.get(SESSION_KEY)
    return secret


def pending_sign_in() -> PendingSignIn | None:
    """Return who has to enter a code in this browser, unless the time is up."""
    stored = session.get(PENDING_KEY)
    if not stored:
        return None
    if not timedelta(0) <= now() - datetime.fromtimestamp(stored["at"], UTC) < CODE_TIMEOUT:
        session.pop(PENDING_KEY)
        return None
    return PendingSignIn(user_id=stored["user"], target=stored["target"])


def verify_code(user_id: str, code: str) -> User:
    """Check a second-factor code of a user.

    Raises:
        UnauthenticatedError: the code is wrong or was used, or the account is deactivated.
        TooManyAttemptsError: there were too many wrong codes.
    """
    with database() as db:
        # Counted apart from passwords: a known password must not reset the count of codes.
        attempt = _count(db, f"second factor of {user_id}", db.get(User, user_id))
    with _checked(attempt) as db:
        user = db.get(User, user_id)
        if user is None or not user.is_active:
            raise UnauthenticatedError("This account is deactivated. Ask an admin of your tenant.")
        set_actor(db, actor_signing_in(user), clock=portal().clock)
        check_code(db, user, code, box=portal().secrets, now=now())
    return user


def require_otp_header(user: User) -> None:
    """Check the second-factor code that a program sends with email address and password.

    Raises:
        UnauthenticatedError: the code is missing, wrong or was used.
        TooManyAttemptsError: there were too many wrong codes.
    """
    if not is_on(user):
        return
    code = request.headers.get(OTP_HEADER, "").strip()
    if not code:
        raise UnauthenticatedError(
            f"This account has a second factor. Send its current code in the header {OTP_HEADER}.",
            code=CODE_REQUIRED,
        )
    verify_code(user.id, code)


def change_own_password(*, current: str, new: str) -> None:
    """Change the current user's password; ends their other sessions.

    Raises:
        InvalidInputError: the current password is wrong, or the new one is too short or the same.
        TooManyAttemptsError: there were too many failed attempts.
    """
    user = current_user()
    with counted_attempt(f"current password of {user.id}") as db:
        change_password(db, user, current=current, new=new, keep_session=session_secret())
        changed = db.get_one(User, user.id)
    if current_principal().via is Via.SESSION:
        remember_device(changed)


def count_reset_request(email: str) -> None:
    """Count a request for a reset link, successful or not: each one sends an email.

    Raises:
        TooManyAttemptsError: there were too many requests.
    """
    with database() as db:
        _count(db, f"password of {email}", find_user(db, email))


def count_sign_up(email: str) -> None:
    """Count a request for a link to sign up, successful or not: each one sends an email.

    While many ask, a network address has few requests, so that nobody uses up those of all.

    Raises:
        TooManyAttemptsError: there were too many requests.
    """
    with database() as db:
        if is_crowded(db, now=now()):
            network = f"sign-up from {network_of(request.remote_addr or '')}"
            count_attempt(db, account=network, address=None, now=now())
    with database() as db:
        _count(db, f"sign-up of {email}", None)


def own_account() -> User:
    """Return the current user, if they are signed in by browser themselves.

    Raises:
        ForbiddenError: the request has an API token, or belongs to a support session.
    """
    current = current_principal()
    if current.via is not Via.SESSION or current.support_session is not None:
        raise ForbiddenError(
            "Users change their own second factor, in a browser. Sign in to the web portal."
        )
    return current.user


@contextmanager
def counted_attempt(account: str) -> Iterator[Session]:
    """Count an attempt at a secret of the current user; yield a transaction to check it in.

    If the block ends without an error, the same transaction forgives the attempt. The network
    address does not count: nobody who shares it blocks a user who is signed in.

    Raises:
        TooManyAttemptsError: there were too many failed attempts; the block is not entered.
    """
    device = known_device(current_user())
    with database() as db:
        attempt = count_attempt(db, account=account, address=None, device=device, now=now())
    with _checked(attempt) as db:
        yield db


def _count(db: Session, account: str, user: User | None) -> CountedAttempt:
    address, device = request.remote_addr, known_device(user)
    return count_attempt(db, account=account, address=address, device=device, now=now())


@contextmanager
def _checked(attempt: CountedAttempt) -> Iterator[Session]:
    """Yield a transaction to check a secret in, which forgives the attempt."""
    with _discarded_if_busy(attempt), database() as db:
        yield db
        forgive_attempt(db, attempt)


@contextmanager
def _discarded_if_busy(attempt: CountedAttempt) -> Iterator[None]:
    """Discard an attempt if the portal was too busy to check it."""
    try:
        yield
    except OverloadedError:
        with database() as db:
            discard_attempt(db, attempt)
        raise


def _verify(*, email: str, password: str) -> _Verified:
    with database() as db:
        candidate = find_user(db, email)
        attempt = _count(db, email, candidate)
    try:
        with _discarded_if_busy(attempt):
            user = verify_credentials(candidate, password)
    except UnauthenticatedError:
        with database() as db:
            record_failed_sign_in(db, candidate, email, now=now())
        raise
    return _Verified(user, attempt, upgraded_hash(user, password))


def _new_session(db: Session, user: User) -> str:
    set_actor(db, actor_signing_in(user), clock=portal().clock)
    secret = start_session(
        db,
        user,
        now=now(),
        lifetime=timedelta(seconds=portal().settings.session_lifetime_seconds),
        address=request.remote_addr or "",
        user_agent=request.user_agent.string,
    )
    record_for_user(db, user, action="session.started", now=now())
    return secret


def _set_cookies(user: User, secret: str) -> None:
    session.clear()
    session[SESSION_KEY] = secret
    session.permanent = True
    remember_device(user)


def _ask_for_code(user: User, target: str) -> str:
    session.clear()
    session[PENDING_KEY] = {"user": user.id, "at": now().timestamp(), "target": target}
    return url_for("session.code")
