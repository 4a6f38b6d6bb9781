"""InfluxDB's API for reading in InfluxQL, at `/api/v1/influxdb`: for Grafana, and `influx`.

Answers and errors have its form. The tenant is that of the API token, which may also be the
password of HTTP Basic or the parameter `p`. The name of the database is not looked at.
"""

from http import HTTPStatus

import msgspec
from flask import Blueprint, Response, request
from werkzeug.exceptions import HTTPException

from core.clock import to_ns
from core.errors import OverloadedError, UnavailableError, VedetteError
from portal.context import current_scope, now
from portal.sample_sources import admitted_source
from tenants.permissions import Permission
from timeseries.influxql.queries import answers
from timeseries.influxql.results import EPOCHS
from timeseries.influxql.syntax import InfluxQLError

VERSION = "1.8.10"
"""The version whose language this is: clients choose what they ask for by it."""
_RETRY_SECONDS = 5

pages = Blueprint("influxdb", __name__, url_prefix="/api/v1/influxdb")


@pages.get("/ping")
def ping() -> Response:
    """Return nothing: clients look for the version among the headers."""
    current_scope().require(Permission.VIEW)
    return Response(status=HTTPStatus.NO_CONTENT)


@pages.route("/query", methods=["GET", "POST"])
def query() -> Response:
    """Return the answers of statements in InfluxQL."""
    with admitted_source() as source:
        text, epoch = request.values.get("q", ""), request.values.get("epoch", "")
        if not text.strip():
            raise InfluxQLError('missing required parameter "q"')
        if epoch not in EPOCHS and epoch:
            raise InfluxQLError(f"Unknown epoch {epoch[:20]!r}. Use one of {', '.join(EPOCHS)}.")
        results = list(answers(source, text, now_ns=to_ns(now()), epoch=epoch))
    return _json({"results": results})


@pages.after_request
def _add_version(response: Response) -> Response:
    response.headers["X-Influxdb-Version"] = VERSION
    return response


@pages.errorhandler(VedetteError)
def _on_error(error: VedetteError) -> Response:
    retry_after_seconds = error.retry_after_seconds
    if isinstance(error, UnavailableError | OverloadedError):
        retry_after_seconds = retry_after_seconds or _RETRY_SECONDS
    response = _json({"error": error.message}, status=error.status)
    if retry_after_seconds:
        response.headers["Retry-After"] = f"{retry_after_seconds:.0f}"
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Basic realm="Vedette"'
    return response


@pages.errorhandler(HTTPException)
def _on_http_error(error: HTTPException) -> Response:
    return _json({"error": error.description or ""}, status=error.code or 500)


def _json(body: object, *, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(body), status=status, content_type="application/json")
