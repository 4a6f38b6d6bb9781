"""Security headers, and the CSRF cookie that the dashboards' own calls send back.

No page runs inline script, but for the one line that starts Dash, which the policy names by its
hash. Nothing may evaluate text as script: plotly does so for WebGL traces alone, which no dashboard
has. Styles may be inline where Dash, plotly and the reference viewer write them into the page.
"""

from collections.abc import Sequence

from flask import Flask, Response, current_app, request
from flask_wtf.csrf import generate_csrf

from core.settings import ServerSettings
from portal.context import portal, visitor

DASHBOARDS = "/dashboards/"
DASH_FILES = (f"{DASHBOARDS}_dash-component-suites/", f"{DASHBOARDS}assets/")
DOCS_PATH = "/api/v1/docs"
CSRF_COOKIE = "_csrf_token"  # the name under which Dash looks for it
_COMMON = (
    "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
)
STRICT_POLICY = _COMMON + "script-src 'self'; style-src 'self'"
# The reference viewer writes its styles into elements.
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
    """Add the headers to every answer of the app."""
    app.after_request(_add_headers)


def allow_inline_scripts(app: Flask, hashes: Sequence[str]) -> None:
    """Let dashboards run the inline scripts of these hashes (`'sha256-...'`), and no other."""
    scripts = " ".join(["'self'", *hashes])
    styles = "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:"
    app.extensions[_DASH_POLICY] = f"{_COMMON}script-src {scripts}; {styles}"


def session_cookie_name(settings: ServerSettings) -> str:
    """Return the cookie's name; browsers take `__Host-` from this very host by https alone."""
    return "__Host-vedette" if is_https(settings) else "vedette"


def is_https(settings: ServerSettings) -> bool:
    """Return whether users open the portal by https."""
    return settings.resolved_public_url.startswith("https:")


def _add_headers(response: Response) -> Response:
    is_dashboard = request.path.startswith(DASHBOARDS)
    headers = response.headers
    headers.setdefault("Content-Security-Policy", _policy(request.path))
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if is_https(portal().settings):
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    if request.endpoint != "static" and not request.path.startswith(DASH_FILES):
        headers.setdefault("Cache-Control", "private, no-store")
    if is_dashboard and visitor() is not None and response.mimetype == "text/html":
        _set_csrf_cookie(response)
    return response


def _policy(path: str) -> str:
    if path.startswith(DASHBOARDS):
        policy: str = current_app.extensions[_DASH_POLICY]
        return policy
    return DOCS_POLICY if path == DOCS_PATH else STRICT_POLICY


def _set_csrf_cookie(response: Response) -> None:
    """Give the page's script the token; unlike the session cookie it may read this one."""
    response.set_cookie(
        CSRF_COOKIE,
        generate_csrf(),
        samesite="Lax",
        secure=is_https(portal().settings),
        path=DASHBOARDS,
    )
