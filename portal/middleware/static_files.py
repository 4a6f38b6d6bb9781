"""Static files that browsers keep for a year: the address of a file changes with its content."""

from contextlib import suppress
from functools import cache
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from flask.sessions import SecureCookieSessionInterface, SessionMixin

from portal.middleware.security import DASH_ASSETS, DASH_FILES

_KEPT = "public, max-age=31536000, immutable"
# The version of the portal's own files, and that of the dashboards' files.
_VERSIONS = frozenset({"v", "m"})


class Sessions(SecureCookieSessionInterface):
    """Leaves cookies out of files: a browser would keep one for as long as its cookies only."""

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        """Write the session's cookie."""
        if not response.cache_control.public:
            super().save_session(app, session, response)


def install_static_files(app: Flask) -> None:
    """Add versions to the addresses of static files, and let browsers keep these."""
    folder = Path(app.static_folder or "")
    app.session_interface = Sessions()

    @app.url_defaults
    def add_version(endpoint: str, values: dict[str, Any]) -> None:
        if endpoint == "static":
            path = folder / values["filename"]
            with suppress(OSError):
                values["v"] = _version(path, path.stat().st_mtime_ns)

    app.after_request(_keep)


@cache
def _version(path: Path, _modified_ns: int) -> str:
    return blake2b(path.read_bytes(), digest_size=6).hexdigest()


def _keep(response: Response) -> Response:
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        return response
    is_own = request.endpoint == "static" or request.path.startswith(DASH_ASSETS)
    # Dash's files have their versions in their names.
    is_of_dash = request.path.startswith(DASH_FILES) and response.cache_control.max_age
    if is_of_dash or (is_own and _VERSIONS & request.args.keys()):
        response.headers["Cache-Control"] = _KEPT
    return response
