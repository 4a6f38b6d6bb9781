"""The dashboards in the portal's app, loaded with the first request for one of them.

Dash and Plotly take 25 MiB and most of a second, which a server saves while nobody looks at it.
Flask accepts no routes once it has served a request. Those of Dash are therefore in an app of their
own, whose views run in the requests of the portal's app, behind its guards.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, make_response, request
from flask.typing import ResponseReturnValue
from isal import isal_zlib
from werkzeug.exceptions import HTTPException

from dash_app.routes import PREFIX

# Less fits into a packet or two.
_MIN_BYTES = 2_000
_GZIP, _LEVEL = 31, 1


class LazyDashboards:
    """Serves the dashboards.

    Args:
        load: adds Dash's routes to an app; called once.
    """

    def __init__(self, load: Callable[[Flask], None]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._app: Flask | None = None

    def install(self, server: Flask) -> None:
        """Serve everything below `/dashboards/`."""
        for rule in (PREFIX, f"{PREFIX}<path:path>"):
            server.add_url_rule(rule, "dash", self._respond, methods=["GET", "POST"])

    def _respond(self, **_path: str) -> ResponseReturnValue:
        app = self._loaded()
        endpoint, arguments = app.url_map.bind_to_environ(request.environ).match()
        view = app.ensure_sync(app.view_functions[endpoint])
        try:
            response: ResponseReturnValue = view(**arguments)
        except HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - raises again what Dash has no handler for
            return app.handle_user_exception(error)
        return _compressed(make_response(response))

    def _loaded(self) -> Flask:
        with self._lock:
            if self._app is None:
                app = Flask(__name__, static_folder=None)
                self._load(app)
                for prepare in app.before_request_funcs.get(None, ()):
                    app.ensure_sync(prepare)()
                self._app = app
            return self._app


def _compressed(response: Response) -> Response:
    """Compress a response, if the browser accepts it.

    Refreshes of a fleet have hundreds of kilobytes and Plotly's script megabytes, which a tenth
    and a third are left of.
    """
    response.vary.add("Accept-Encoding")
    # Files are read, not streamed.
    response.direct_passthrough = False
    is_sent_as_it_is = (
        response.status_code != HTTPStatus.OK
        # Its length could give away the page's CSRF token.
        or response.mimetype == "text/html"
        or not request.accept_encodings["gzip"]
    )
    if not is_sent_as_it_is and len(response.get_data()) > _MIN_BYTES:
        response.set_data(isal_zlib.compress(response.get_data(), _LEVEL, wbits=_GZIP))
        response.content_encoding = "gzip"
    return response
