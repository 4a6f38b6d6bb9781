"""`/docs/`: the documentation of this version, which `make docs` builds as a site."""

from functools import cache
from pathlib import Path

import msgspec
from flask import Blueprint, Response, redirect, send_from_directory, url_for
from flask.typing import ResponseReturnValue

from core.errors import NotFoundError
from portal.middleware.security import policy_with_scripts

pages = Blueprint("documentation", __name__, url_prefix="/docs")

SITE = Path(__file__).parents[1] / "site"
# The hashes of the pages' inline scripts, which the build writes.
SCRIPTS_NAME = "inline-scripts.json"
CACHED_SECONDS = 300


@pages.get("", strict_slashes=False)
def index() -> ResponseReturnValue:
    """Redirect to the first page; links of pages are relative to their folder."""
    return redirect(url_for(".page", name="index.html"))


@pages.get("/<path:name>")
def page(name: str) -> Response:
    """Return a page or a file of the site."""
    if not has_documentation():
        raise NotFoundError(
            "This installation has no documentation. In a checkout, `make docs` builds it."
        )
    response = send_from_directory(SITE, name, max_age=CACHED_SECONDS)
    response.headers["Content-Security-Policy"] = _policy((SITE / SCRIPTS_NAME).stat().st_mtime_ns)
    # Flask marks what may be cached as public, and shared caches follow that.
    response.cache_control.public, response.cache_control.private = False, True
    return response


@pages.app_template_global()
def has_documentation() -> bool:
    """Return whether this installation has the site."""
    return (SITE / "index.html").exists()


@cache
def _policy(_modified_ns: int) -> str:
    hashes = msgspec.json.decode((SITE / SCRIPTS_NAME).read_bytes(), type=list[str])
    return policy_with_scripts(hashes)
