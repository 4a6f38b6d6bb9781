"""The portal's lock: nobody passes without a session cookie or an API token.

Every address is closed unless its endpoint is named in `PUBLIC_ENDPOINTS`; pages send strangers to
the login form, the API answers 401. Requests that rely on the cookie must carry a CSRF token.
"""

from datetime import timedelta
from urllib.parse import urlsplit

from flask import Flask, g, redirect, request, session, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFProtect
from werkzeug.datastructures import Authorization

from core.errors import ForbiddenError, UnauthenticatedError
from portal.answering.errors import wants_json
from portal.context import database, now, portal, visitor
from portal.door.actors import signing_in
from portal.door.second_factor import require_code_of_header, wait_for_code
from portal.door.tries import counted_try
from tenants.audit import record, set_actor
from tenants.models import User
from tenants.people.second_factor import is_on
from tenants.people.signin import (
    end_session,
    find_user,
    record_of_person,
    require_entry,
    session_visitor,
    start_session,
    verify_user,
)
from tenants.people.tokens import token_visitor
from tenants.visitors import Via, Visitor, visitor_of

PUBLIC_ENDPOINTS = frozenset(
    {
        "static",
        "session.login",
        "password.forgot",
        "password.reset",
        "invitations.accept",
        "invitations.join",
        "second_factor.challenge",
        "oidc.start",
        "oidc.callback",
        "health.health",
        "api-docs.openapi_json",
    }
)
# The one endpoint that takes email and password by HTTP Basic: programs trade them for a token.
BASIC_ENDPOINT = "Tokens.create_token"
SESSION_KEY = "login"
API_PATH = "/api/v1/"

csrf = CSRFProtect()


def install_lock(app: Flask) -> None:
    """Put the lock before every request of the app."""
    app.config["WTF_CSRF_CHECK_DEFAULT"] = False
    csrf.init_app(app)
    app.before_request(_guard)


def sign_in(*, email: str, password: str, target: str = "/") -> str:
    """Check email and password and go on as `enter` does; return where to.

    Raises:
        UnauthenticatedError: wrong pair, locked account or suspended tenant.
        TooManyTriesError: there were too many wrong tries of late.
    """
    user = check_password(email=email, password=password)
    require_entry(user)
    return enter(user, target=target)


def check_password(*, email: str, password: str) -> User:
    """Return the user of this email address and password; tries are counted and told.

    Raises:
        UnauthenticatedError: wrong pair, or locked account.
        TooManyTriesError: there were too many wrong tries of late.
    """
    try:
        with counted_try(email), database() as db:
            return verify_user(db, email=email, password=password)
    except UnauthenticatedError:
        _tell_of_failure(email)
        raise


def enter(user: User, *, target: str = "/") -> str:
    """Let a user in who has proved who they are by one factor; return where to go on.

    Where they have a second factor that is the form for its code, and they are not in yet.
    """
    if is_on(user):
        wait_for_code(user, target)
        return url_for("second_factor.challenge")
    open_session(user)
    return target


def open_session(user: User) -> None:
    """Sign this browser in; what it held before is dropped."""
    lifetime = timedelta(seconds=portal().settings.session_lifetime_seconds)
    with database() as db:
        set_actor(db, signing_in(user), clock=portal().clock)
        secret = start_session(
            db,
            user,
            now=now(),
            lifetime=lifetime,
            address=request.remote_addr or "",
            user_agent=request.user_agent.string,
        )
        record_of_person(db, user, action="session.started", now=now())
    session.clear()
    session[SESSION_KEY] = secret
    session.permanent = True


def sign_out() -> None:
    """End this browser's session on both sides."""
    secret = session_secret()
    here = visitor()
    if secret is not None:
        with database() as db:
            end_session(db, secret)
            if here is not None and here.via is Via.SESSION:
                person = here.user if here.visit is None else here.visit.operator
                record_of_person(db, person, action="session.ended", now=now())
    session.clear()


def session_secret() -> str | None:
    """Return the secret that this browser's cookie holds."""
    secret: str | None = session.get(SESSION_KEY)
    return secret


def safe_next(target: str | None) -> str:
    """Return a path of this portal to go on to; anything that could leave it becomes `/`."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    if any(character in target for character in "\\\r\n\t"):
        return "/"
    parts = urlsplit(target)
    return "/" if parts.scheme or parts.netloc else target


def _guard() -> ResponseReturnValue | None:
    is_public = request.endpoint in PUBLIC_ENDPOINTS
    credentials = request.authorization
    if credentials is not None and not is_public:
        g.visitor = _visitor_of_header(credentials)
        return None
    if request.endpoint != "static":
        g.visitor = _visitor_of_cookie()
    if visitor() is None and not is_public:
        return _turn_away()
    csrf.protect()
    return None


def _visitor_of_header(credentials: Authorization) -> Visitor:
    found = None
    if credentials.type == "bearer" and credentials.token:
        with database() as db:
            found = token_visitor(
                db, credentials.token, now=now(), address=request.remote_addr or ""
            )
        if found is None:
            raise UnauthenticatedError("This API token is unknown, revoked or expired.")
        if found.scope.token_scopes and not request.path.startswith(API_PATH):
            raise ForbiddenError(
                "An API token that is limited to scopes is for the API alone: /api/v1/...",
                code="token_scope",
            )
    if credentials.type == "basic" and request.endpoint == BASIC_ENDPOINT:
        email, password = credentials.username or "", credentials.password or ""
        user = check_password(email=email, password=password)
        require_entry(user)
        require_code_of_header(user)
        found = visitor_of(user, via=Via.PASSWORD)
    if found is None:
        raise UnauthenticatedError("Send an API token as 'Authorization: Bearer vdt_...'.")
    return found


def _visitor_of_cookie() -> Visitor | None:
    secret = session_secret()
    if secret is None:
        return None
    with database() as db:
        return session_visitor(db, secret, now=now(), address=request.remote_addr or "")


def _tell_of_failure(email: str) -> None:
    with database() as db:
        user = find_user(db, email)
        if user is not None:
            record_of_person(db, user, action="session.failed", now=now())
            return
        record(
            db,
            action="session.failed",
            target_kind="user",
            target_id=None,
            # What is no address may be a password, typed into the wrong field.
            target_name=email if "@" in email else "(not an email address)",
            tenant_id=None,
            now=now(),
        )


def _turn_away() -> ResponseReturnValue:
    if wants_json():
        raise UnauthenticatedError("Sign in, or send an API token as 'Authorization: Bearer'.")
    is_page = request.method == "GET" and request.path != "/"
    target = request.full_path.removesuffix("?") if is_page else None
    return redirect(url_for("session.login", next=target))
