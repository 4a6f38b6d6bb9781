"""Authentication of every request, by session cookie or API token.

Every endpoint requires authentication unless `PUBLIC_ENDPOINTS` names it: pages redirect to the
login form, the API responds with 401. Requests that rely on the cookie must carry a CSRF token. A
support session is read-only and does not show the user's own secrets and sign-ins.
"""

from urllib.parse import urlsplit

from flask import Flask, redirect, request, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFProtect
from werkzeug.datastructures import Authorization

from core.errors import ForbiddenError, UnauthenticatedError
from core.request_notes import JOB_ID, ROUTE, TENANT_ID, USER_ID, note
from core.zones import zone_key
from portal.auth.sign_in import check_password, require_otp_header, session_secret
from portal.context import database, now, portal, principal, set_principal
from portal.middleware.errors import wants_json
from portal.time_zone import ZONE_COOKIE
from tenants.principals import Principal, Via, principal_of
from tenants.users.sessions import session_principal
from tenants.users.signin import require_can_sign_in
from tenants.users.tokens import token_principal

PUBLIC_ENDPOINTS = frozenset(
    {
        "static",
        "session.login",
        "session.forgot",
        "session.reset",
        "invitations.accept",
        "invitations.join",
        "session.code",
        "oidc.start",
        "oidc.callback",
        "home.health",
        "install.script",
        "install.requirements",
        "install.wheels",
        "install.wheel",
        "openapi_document",
        "market.index",
        "market.show",
        "market.terms",
        "market.status",
        "market.api_reference",
        "sign_up.index",
        "sign_up.confirm",
        "public_openapi_document",
        "Public catalogue.list_offers",
        "Public catalogue.show_offer",
        "Public catalogue.show_capacity",
        "Public catalogue.list_models",
        "Public catalogue.list_regions",
        "Public status.show_status",
        # Editors that complete job files send no credentials.
        "job_schema",
        "dashboard_schema",
    }
)
# The registry and its clients: these check the credentials by themselves.
REGISTRY_ENDPOINTS = frozenset({"registry.token", "registry.notifications"})
# The only other endpoint that accepts HTTP Basic: programs exchange email and password for a token.
BASIC_ENDPOINT = "Tokens.create_token"
# In the ASGI scope of a request: the ids of its user and tenant.
SIGNED_IN = "vedette.signed_in"
API_PATH = "/api/v1/"
# Blueprints whose clients, such as Grafana, may send a token as the password of HTTP Basic.
TOKEN_AS_PASSWORD = frozenset({"prometheus", "influxdb"})
# The one whose clients may also send it as `Token`, or as a parameter of this name.
INFLUXDB, PASSWORD_PARAMETER = "influxdb", "p"
# Endpoints that a support session may change something with.
SUPPORT_ENDPOINTS = frozenset({"users.end_support", "session.logout", "static"})
# Blueprints with the user's secrets, second factor and sign-ins, closed to support sessions.
PERSONAL_BLUEPRINTS = frozenset(
    {"settings", "second_factor", "password", "Tokens", "Sessions", "SecondFactor"}
)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Dashboards read their data by POST.
_DASH_CALLS = "/dashboards/_dash-"

csrf = CSRFProtect()


def install_authentication(app: Flask) -> None:
    """Authenticate every request of the app before its view."""
    app.config["WTF_CSRF_CHECK_DEFAULT"] = False
    csrf.init_app(app)
    app.before_request(_authenticate)


def install_support_sessions(app: Flask) -> None:
    """Restrict support sessions; call it after `install_authentication`."""
    app.before_request(_restrict_support_session)


def request_principal() -> Principal | None:
    """Return who sends the current request, by session or API token; None without a valid one."""
    credentials = request.authorization
    if credentials is None:
        return _principal_of_cookie()
    if credentials.type != "bearer" or not credentials.token:
        return None
    return principal_of_token(credentials.token)


def principal_of_token(secret: str) -> Principal | None:
    """Return the user of an API token, and note its use."""
    with database() as db:
        sender = token_principal(db, secret, now=now())
    if sender is not None:
        _note(sender)
    return sender


def safe_next(target: str | None) -> str:
    """Return a path of this portal to continue at; other addresses become `/`."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    if any(character in target for character in "\\\r\n\t"):
        return "/"
    parts = urlsplit(target)
    return "/" if parts.scheme or parts.netloc else target


def _authenticate() -> ResponseReturnValue | None:
    set_principal(None)
    note(ROUTE, request.url_rule.rule if request.url_rule else "")
    note(JOB_ID, (request.view_args or {}).get("job_id", ""))
    if request.endpoint in REGISTRY_ENDPOINTS:
        return None
    is_public = request.endpoint in PUBLIC_ENDPOINTS
    credentials = request.authorization or _password_parameter()
    if credentials is not None and not is_public:
        set_principal(_principal_of_header(credentials))
        return None
    if request.endpoint != "static":
        set_principal(_principal_of_cookie())
    if principal() is None and not is_public:
        return _require_sign_in()
    csrf.protect()
    return None


def _password_parameter() -> Authorization | None:
    """Return the credentials of InfluxDB's clients that send them as parameters."""
    if request.blueprint != INFLUXDB or PASSWORD_PARAMETER not in request.values:
        return None
    return Authorization("token", token=request.values[PASSWORD_PARAMETER])


def _principal_of_header(credentials: Authorization) -> Principal:
    sender = None
    token = credentials.token if credentials.type == "bearer" else None
    if credentials.type == "basic" and request.blueprint in TOKEN_AS_PASSWORD:
        token = credentials.password
    if credentials.type == "token" and request.blueprint == INFLUXDB:
        token = credentials.token
    if token:
        sender = principal_of_token(token)
        if sender is None:
            raise UnauthenticatedError(
                "The API token is invalid, revoked or expired. Create a new one in the settings."
            )
        if sender.scope.token_scopes and not request.path.startswith(API_PATH):
            raise ForbiddenError(
                f"API tokens that are limited to scopes only work for {API_PATH}.",
                code="token_scope",
            )
    if credentials.type == "basic" and request.endpoint == BASIC_ENDPOINT:
        email, password = credentials.username or "", credentials.password or ""
        user = check_password(email=email, password=password)
        require_can_sign_in(user)
        require_otp_header(user)
        sender = principal_of(user, via=Via.PASSWORD)
    if sender is None:
        raise UnauthenticatedError("Send an API token as 'Authorization: Bearer vdt_...'.")
    return sender


def _principal_of_cookie() -> Principal | None:
    secret = session_secret()
    if secret is None:
        return None
    with database() as db:
        sender = session_principal(db, secret, now=now())
    if sender is not None:
        _note(sender, browser_zone=zone_key(request.cookies.get(ZONE_COOKIE, "")))
    return sender


def _note(sender: Principal, *, browser_zone: str = "") -> None:
    asgi_scope = request.environ.get("asgi.scope")
    if asgi_scope is not None:
        asgi_scope[SIGNED_IN] = (sender.user.id, sender.tenant.id if sender.tenant else "")
    note(USER_ID, sender.user.id)
    note(TENANT_ID, sender.tenant.id if sender.tenant else "")
    address = request.remote_addr or ""
    portal().sightings.note(sender, at=now(), address=address, browser_zone=browser_zone)


def _require_sign_in() -> ResponseReturnValue:
    if wants_json():
        raise UnauthenticatedError("Sign in, or send an API token as 'Authorization: Bearer'.")
    is_page = request.method == "GET" and request.path != "/"
    target = request.full_path.removesuffix("?") if is_page else None
    return redirect(url_for("session.login", next=target))


def _restrict_support_session() -> None:
    current = principal()
    if current is None or current.support_session is None or request.endpoint in SUPPORT_ENDPOINTS:
        return
    if request.blueprint in PERSONAL_BLUEPRINTS:
        raise ForbiddenError(
            "Support sessions can't open the user's personal settings. Go back, or end the "
            "support session.",
            code="support_session",
        )
    if request.method not in _SAFE_METHODS and not request.path.startswith(_DASH_CALLS):
        raise ForbiddenError(
            "Support sessions are read-only. End the support session to make changes as yourself.",
            code="support_session",
        )
