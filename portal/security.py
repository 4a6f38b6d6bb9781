"""Security headers, and the CSRF cookie that the dashboards' own calls send back.

Our pages run no inline script. Dash writes its configuration and plotly its styles inline, so the
policy is wider under `/dashboards/` alone.
"""

from flask import Flask, Response, request
from flask_wtf.csrf import generate_csrf

from portal.context import portal, visitor

DASHBOARDS = "/dashboards/"
CSRF_COOKIE = "_csrf_token"  # the name under which Dash looks for it
_COMMON = (
    "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; "
)
STRICT_POLICY = _COMMON + "script-src 'self'; style-src 'self'"
# The reference viewer writes its styles into elements.
DOCS_POLICY = _COMMON + "script-src 'self'; style-src 'self' 'unsafe-inline'"
DASH_POLICY = (
    _COMMON + "script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "worker-src 'self' blob:"
)
DOCS_PATH = "/api/v1/docs"


def install_security(app: Flask) -> None:
    """Add the headers to every answer of the app."""
    app.after_request(_add_headers)


def _add_headers(response: Response) -> Response:
    is_dashboard = request.path.startswith(DASHBOARDS)
    headers = response.headers
    headers.setdefault("Content-Security-Policy", _policy(request.path))
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
    if portal().settings.resolved_public_url.startswith("https:"):
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    if request.endpoint != "static" and not is_dashboard:
        headers.setdefault("Cache-Control", "private, no-store")
    if is_dashboard and visitor() is not None and response.mimetype == "text/html":
        _set_csrf_cookie(response)
    return response


def _policy(path: str) -> str:
    if path.startswith(DASHBOARDS):
        return DASH_POLICY
    return DOCS_POLICY if path == DOCS_PATH else STRICT_POLICY


def _set_csrf_cookie(response: Response) -> None:
    """Give the page's script the token; unlike the session cookie it may read this one."""
    response.set_cookie(
        CSRF_COOKIE,
        generate_csrf(),
        samesite="Lax",
        secure=portal().settings.resolved_public_url.startswith("https:"),
        path=DASHBOARDS,
    )
