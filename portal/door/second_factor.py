"""Between password and code: who waits in this browser for the second factor.

The waiting is a few minutes long and kept in the signed cookie; it opens nothing but the form that
takes the code. Programs send the code in a header, beside their email address and password.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flask import request, session

from core.errors import ForbiddenError, UnauthenticatedError
from portal.context import current_visitor, now, portal
from portal.door.actors import signing_in
from portal.door.tries import counted_try
from tenants.audit import set_actor
from tenants.models import User
from tenants.people.second_factor import check_code, is_on
from tenants.visitors import Via

HEADER = "X-Vedette-OTP"
REQUIRED = "second_factor_required"
PATIENCE = timedelta(minutes=5)
WAITING_KEY = "second_factor"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody who has shown one factor, and where they want to go."""

    user_id: str
    target: str


def wait_for_code(user: User, target: str) -> None:
    """Keep in this browser that the user has shown the first factor; drop what it held before."""
    session.clear()
    session[WAITING_KEY] = {"user": user.id, "at": now().timestamp(), "target": target}


def waiting() -> Waiting | None:
    """Return who waits in this browser, unless it has been too long."""
    kept = session.get(WAITING_KEY)
    if not kept:
        return None
    since_at = datetime.fromtimestamp(kept["at"], UTC)
    if not timedelta(0) <= now() - since_at < PATIENCE:
        session.pop(WAITING_KEY)
        return None
    return Waiting(user_id=kept["user"], target=kept["target"])


def take_code(user_id: str, code: str) -> User:
    """Check a code of the user who waits.

    Raises:
        UnauthenticatedError: the code is wrong or was used, or the account is locked by now.
        TooManyTriesError: there were too many wrong codes of late.
    """
    # Counted apart from passwords: who knows the password must not make the count start anew.
    with counted_try(f"second factor of {user_id}") as db:
        user = db.get(User, user_id)
        if user is None or not user.is_active:
            raise UnauthenticatedError("This account is locked. Ask an admin of your tenant.")
        set_actor(db, signing_in(user), clock=portal().clock)
        check_code(db, user, code, box=portal().secrets, now=now())
    return user


def require_code_of_header(user: User) -> None:
    """Check the code that a program sends with email address and password.

    Raises:
        UnauthenticatedError: it is missing, wrong or was used.
        TooManyTriesError: there were too many wrong codes of late.
    """
    if not is_on(user):
        return
    code = request.headers.get(HEADER, "").strip()
    if not code:
        raise UnauthenticatedError(
            f"This account has a second factor. Send its code of now in the header {HEADER}.",
            code=REQUIRED,
        )
    take_code(user.id, code)


def own_account() -> User:
    """Return the user, where they themselves sit at the browser.

    Raises:
        ForbiddenError: it is a program with a token, or an operator who helps.
    """
    here = current_visitor()
    if here.via is not Via.SESSION or here.visit is not None:
        raise ForbiddenError("Only the person can change their own second factor, by browser.")
    return here.user
