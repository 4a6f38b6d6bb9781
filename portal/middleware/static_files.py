"""Static files that browsers keep for a year: the address of a file changes with its content.

During an upgrade of several portals, a page of one may ask another for its files: what has another
version there is not kept.
"""

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

    def keep(response: Response) -> Response:
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return response
        # Dash's files have their versions in their names.
        is_of_dash = request.path.startswith(DASH_FILES) and response.cache_control.max_age
        if is_of_dash or _is_own_version(folder, response):
            response.headers["Cache-Control"] = _KEPT
        return response

    app.after_request(keep)


@cache
def _version(path: Path, _modified_ns: int) -> str:
    return blake2b(path.read_bytes(), digest_size=6).hexdigest()


def _is_own_version(folder: Path, response: Response) -> bool:
    """Return whether the address has the version of the file that this portal has."""
    if request.endpoint == "static":
        path = folder / (request.view_args or {})["filename"]
        return request.args.get("v") == _version(path, path.stat().st_mtime_ns)
    # Dash's version of a file of ours is when it was changed, in seconds with a fraction.
    changed_at = response.last_modified
    version = request.args.get("m", "").partition(".")[0]
    return (
        request.path.startswith(DASH_ASSETS)
        and changed_at is not None
        and version == str(int(changed_at.timestamp()))
    )
