"""Error responses of the agent API, in the format of each client.

Agents read `{code, status, message, errors}`. Clients of InfluxDB 2 read `code`, `message` and the
header `X-Platform-Error-Code`: below `/api/v2/`, `code` is InfluxDB's name of the status, and
`reason` is our code. Clients of InfluxDB 1 read `error` and the header `X-InfluxDB-Error`.

Source: kit/transport/http/error_handler.go of InfluxDB 2, services/httpd/handler.go of 1.8.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from core.errors import VedetteError

V1_PATHS = frozenset({"/write", "/ping", "/query"})
V2_PREFIX = "/api/v2/"
# InfluxDB 2's names of statuses.
_V2_CODES = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    413: "request too large",
    415: "unsupported media type",
    422: "unprocessable entity",
    429: "too many requests",
    503: "unavailable",
}
# InfluxDB 1 has the same limit.
_MAX_HEADER_CHARACTERS = 1024


class BadRequestError(VedetteError):
    """The request can't be parsed: not JSON, not gzip, an invalid parameter."""

    status = 400
    default_code = "invalid"


class UnsupportedEncodingError(VedetteError):
    """The body has an unsupported compression or media type."""

    status = 415
    default_code = "unsupported_encoding"


def error_response(
    request: Request,
    *,
    code: str,
    status: int,
    message: str,
    errors: object = None,
    headers: Mapping[str, str] | None = None,
    **extra: object,
) -> JSONResponse:
    """Return an error in the format of the path; `extra` adds keys to it."""
    path = request.url.path
    all_headers: dict[str, str] = dict(headers or {})
    body: dict[str, Any] = {"code": code, "status": status, "message": message}
    body |= {"errors": errors or {}} | extra
    if path.startswith(V2_PREFIX):
        word = _V2_CODES.get(status, "internal error")
        body |= {"code": word, "reason": code}
        all_headers["X-Platform-Error-Code"] = word
    elif path in V1_PATHS:
        body = {"error": message}
        plain = "".join(c if " " <= c <= "~" else "?" for c in message)
        all_headers["X-InfluxDB-Error"] = plain[:_MAX_HEADER_CHARACTERS]
    return JSONResponse(body, status, all_headers)


async def on_vedette_error(request: Request, error: Exception) -> Response:
    """Answer a `VedetteError`."""
    assert isinstance(error, VedetteError)  # noqa: S101 - Starlette picks the handler by type
    headers = {}
    if error.retry_after_seconds:
        headers["Retry-After"] = f"{error.retry_after_seconds:.0f}"
    elif error.status == 401:  # noqa: PLR2004 - the status of a challenge
        basic = 'Basic realm="vedette", ' if request.url.path in V1_PATHS else ""
        headers["WWW-Authenticate"] = f'{basic}Bearer realm="vedette", Token realm="vedette"'
    return error_response(
        request,
        code=error.code,
        status=error.status,
        message=error.message,
        errors=error.errors,
        headers=headers,
    )


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette picks the handler by type
    sentences = {
        404: ("not_found", "There is no such address."),
        405: ("method_not_allowed", "This address does not support this method."),
    }
    code, message = sentences.get(error.status_code, ("http_error", error.detail))
    return error_response(
        request, code=code, status=error.status_code, message=message, headers=error.headers
    )


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """End a request whose client disconnected before the end of its body."""
    return Response(status_code=400)


async def on_bug(request: Request, _error: Exception) -> Response:
    """Answer an unexpected exception; the server logs the traceback."""
    return error_response(
        request,
        code="internal_error",
        status=500,
        message="Internal error. See the portal's log.",
    )


Handler = Callable[[Request, Exception], Awaitable[Response]]
HANDLERS: dict[Any, Handler] = {
    VedetteError: on_vedette_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}
