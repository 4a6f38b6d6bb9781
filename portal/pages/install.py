"""`/install`: the script that installs the agent, and the packages that it downloads.

Hosts have no credentials before they are enrolled, so these addresses are public, and serve only
what anybody may have.
"""

from flask import Blueprint, Response, abort, make_response, request, send_from_directory, url_for
from markupsafe import Markup

from portal.context import portal
from portal.installer.script import SCRIPT_PATH, install_script
from portal.installer.wheelhouse import REQUIREMENTS_NAME, wheel_names, wheelhouse_dir

pages = Blueprint("install", __name__, url_prefix=SCRIPT_PATH)

CACHED_SECONDS = 60


@pages.get("")
def script() -> Response:
    """Return the script."""
    response = make_response(install_script())
    response.mimetype = "text/x-shellscript"
    response.add_etag()
    response.make_conditional(request)
    return _cached(response)


@pages.get(f"/{REQUIREMENTS_NAME}")
def requirements() -> Response:
    """Return the list of packages with their hashes."""
    return _file(REQUIREMENTS_NAME)


@pages.get("/wheels/")
def wheels() -> Response:
    """Return links to the wheels, for `pip install --find-links`."""
    links = Markup("").join(
        Markup('<a href="{}">{}</a><br>\n').format(url_for(".wheel", wheel_name=name), name)
        for name in wheel_names(portal().settings)
    )
    page = Markup("<!DOCTYPE html>\n<title>Packages of the Vedette agent</title>\n{}").format(links)
    return _cached(make_response(page))


@pages.get("/wheels/<wheel_name>")
def wheel(wheel_name: str) -> Response:
    """Return a wheel."""
    if wheel_name not in wheel_names(portal().settings):
        abort(404)
    return _file(wheel_name)


def _file(name: str) -> Response:
    folder = wheelhouse_dir(portal().settings).absolute()
    return _cached(send_from_directory(folder, name, max_age=CACHED_SECONDS))


def _cached(response: Response) -> Response:
    response.cache_control.public = True
    response.cache_control.max_age = CACHED_SECONDS
    return response
