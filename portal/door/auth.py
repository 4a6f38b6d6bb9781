"""The portal's lock: nobody passes without a session cookie or an API token.

Every address is closed unless its endpoint is named in `PUBLIC_ENDPOINTS`; pages send strangers to
the login form, the API answers 401. Requests that rely on the cookie must carry a CSRF token.
"""

from urllib.parse import urlsplit

from flask import Flask, g, redirect, request, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFProtect
from werkzeug.datastructures import Authorization

from core.errors import ForbiddenError, UnauthenticatedError
from portal.answering.errors import wants_json
from portal.context import database, now, visitor
from portal.door.entering import check_password, session_secret
from portal.door.second_factor import require_code_of_header
from tenants.people.signin import require_entry, session_visitor
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
API_PATH = "/api/v1/"

csrf = CSRFProtect()


def install_lock(app: Flask) -> None:
    """Put the lock before every request of the app."""
    app.config["WTF_CSRF_CHECK_DEFAULT"] = False
    csrf.init_app(app)
    app.before_request(_guard)


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


def _turn_away() -> ResponseReturnValue:
    if wants_json():
        raise UnauthenticatedError("Sign in, or send an API token as 'Authorization: Bearer'.")
    is_page = request.method == "GET" and request.path != "/"
    target = request.full_path.removesuffix("?") if is_page else None
    return redirect(url_for("session.login", next=target))
