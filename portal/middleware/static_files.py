"""Static files that browsers keep for a year: the address of a file changes with its content."""

from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

from portal.middleware.security import DASH_ASSETS

_KEPT = "public, max-age=31536000, immutable"
# The version of the portal's own files, and that of Dash's.
_VERSIONS = frozenset({"v", "m"})


def install_static_files(app: Flask) -> None:
    """Add versions to the addresses of static files, and let browsers keep these."""
    folder = Path(app.static_folder or "")

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
    is_file = request.endpoint == "static" or request.path.startswith(DASH_ASSETS)
    if is_file and response.status_code < 400 and _VERSIONS & request.args.keys():  # noqa: PLR2004 - no errors
        response.headers["Cache-Control"] = _KEPT
    return response
