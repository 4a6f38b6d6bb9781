"""Security headers, and the CSRF cookie for the requests of the dashboards.

Inline scripts are forbidden except for the line that starts Dash, which the policy allows by its
hash. `eval` is forbidden: plotly uses it for WebGL traces only, which no dashboard has. Inline
styles are allowed where Dash, plotly and Swagger UI write them into the page.
"""

from collections.abc import Sequence

from flask import Flask, Response, current_app, request
from flask_wtf.csrf import generate_csrf

from core.settings import ServerSettings
from portal.context import portal, principal

DASHBOARDS = "/dashboards/"
DASH_ASSETS = f"{DASHBOARDS}assets/"
DASH_FILES = (f"{DASHBOARDS}_dash-component-suites/", DASH_ASSETS)
DOCS_PATH = "/api/v1/docs"
PUBLIC_DOCS_PATH = "/market/api"
CSRF_COOKIE = "_csrf_token"  # the name that Dash reads
_COMMON = (
    "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
)
STRICT_POLICY = _COMMON + "script-src 'self'; style-src 'self'"
# Swagger UI writes inline styles.
DOCS_POLICY = _COMMON + "script-src 'self'; style-src 'self' 'unsafe-inline'"
_DASH_POLICY = "vedette-dash-policy"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def install_security(app: Flask) -> None:
    """Add the headers to every response of the app."""
    app.after_request(_add_headers)


def allow_inline_scripts(app: Flask, hashes: Sequence[str]) -> None:
    """Allow the dashboards the inline scripts with these hashes (`'sha256-...'`) only."""
    app.extensions[_DASH_POLICY] = policy_with_scripts(hashes)


def policy_with_scripts(hashes: Sequence[str]) -> str:
    """Return a policy that allows the inline scripts with these hashes, inline styles, workers."""
    scripts = " ".join(["'self'", *hashes])
    styles = "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:"
    return f"{_COMMON}script-src {scripts}; {styles}"


def session_cookie_name(settings: ServerSettings) -> str:
    """Return the cookie's name; browsers bind the prefix `__Host-` to this host and HTTPS."""
    return "__Host-vedette" if is_https(settings) else "vedette"


def is_https(settings: ServerSettings) -> bool:
    """Return whether the portal's public URL is HTTPS."""
    return settings.resolved_public_url.startswith("https:")


def _add_headers(response: Response) -> Response:
    is_dashboard = request.path.startswith(DASHBOARDS)
    headers = response.headers
    policy = _policy(request.path)
    if is_dashboard and "embed" in request.args:
        # Our own pages show this dashboard in a frame.
        headers.setdefault("X-Frame-Options", "SAMEORIGIN")
        policy = policy.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
    headers.setdefault("Content-Security-Policy", policy)
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if is_https(portal().settings):
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    if request.endpoint != "static" and not request.path.startswith(DASH_FILES):
        headers.setdefault("Cache-Control", "private, no-store")
    if is_dashboard and principal() is not None and response.mimetype == "text/html":
        _set_csrf_cookie(response)
    return response


def _policy(path: str) -> str:
    if path.startswith(DASHBOARDS):
        # Nothing of Dash is loaded while only visitors who aren't signed in ask for it.
        policy: str = current_app.extensions.get(_DASH_POLICY, STRICT_POLICY)
        return policy
    return DOCS_POLICY if path in {DOCS_PATH, PUBLIC_DOCS_PATH} else STRICT_POLICY


def _set_csrf_cookie(response: Response) -> None:
    """Set the CSRF token in a cookie that the page's script can read."""
    response.set_cookie(
        CSRF_COOKIE,
        generate_csrf(),
        samesite="Lax",
        secure=is_https(portal().settings),
        path=DASHBOARDS,
    )
