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

from core.errors import UnauthenticatedError
from portal.context import database, now, portal, visitor
from portal.errors import wants_json
from tenants.models import User
from tenants.signin import authenticate, end_session, session_visitor, start_session, token_visitor
from tenants.visitors import Via, Visitor, visitor_of

PUBLIC_ENDPOINTS = frozenset({"static", "session.login", "health.health", "api-docs.openapi_json"})
# The one endpoint that takes email and password by HTTP Basic: programs trade them for a token.
BASIC_ENDPOINT = "Tokens.create_token"
SESSION_KEY = "login"

csrf = CSRFProtect()


def install_lock(app: Flask) -> None:
    """Put the lock before every request of the app."""
    app.config["WTF_CSRF_CHECK_DEFAULT"] = False
    csrf.init_app(app)
    app.before_request(_guard)


def sign_in(*, email: str, password: str) -> User:
    """Check email and password and sign this browser in; what it held before is dropped.

    Raises:
        UnauthenticatedError: wrong pair, locked account or suspended tenant.
    """
    lifetime = timedelta(seconds=portal().settings.session_lifetime_seconds)
    with database() as db:
        user = authenticate(db, email=email, password=password)
        secret = start_session(db, user, now=now(), lifetime=lifetime)
    session.clear()
    session[SESSION_KEY] = secret
    session.permanent = True
    return user


def sign_out() -> None:
    """End this browser's session on both sides."""
    secret = session_secret()
    if secret is not None:
        with database() as db:
            end_session(db, secret)
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
    with database() as db:
        if credentials.type == "bearer" and credentials.token:
            found = token_visitor(db, credentials.token, now=now())
            if found is not None:
                return found
            raise UnauthenticatedError("This API token is unknown or revoked. Make a new one.")
        if credentials.type == "basic" and request.endpoint == BASIC_ENDPOINT:
            email, password = credentials.username or "", credentials.password or ""
            user = authenticate(db, email=email, password=password)
            found = visitor_of(user, via=Via.PASSWORD)
            if found is not None:
                return found
    raise UnauthenticatedError("Send an API token as 'Authorization: Bearer vdt_...'.")


def _visitor_of_cookie() -> Visitor | None:
    secret = session_secret()
    if secret is None:
        return None
    with database() as db:
        return session_visitor(db, secret, now=now())


def _turn_away() -> ResponseReturnValue:
    if wants_json():
        raise UnauthenticatedError("Sign in, or send an API token as 'Authorization: Bearer'.")
    is_page = request.method == "GET" and request.path != "/"
    target = request.full_path.removesuffix("?") if is_page else None
    return redirect(url_for("session.login", next=target))
