"""Errors of the agents' door, in the words of who is asking.

Agents read `{code, status, message, errors}`. `/api/v2/` answers as InfluxDB 2 does, whose clients
read `code` and `message` and the header `X-Platform-Error-Code`: there `code` is InfluxDB's word
for the status, and `reason` is ours. `/write` and its neighbours answer as InfluxDB 1 does, with
`error` and the header `X-InfluxDB-Error`.

Source: kit/transport/http/error_handler.go of InfluxDB 2, services/httpd/handler.go of 1.8.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from core.errors import OverloadedError, UnavailableError, VedetteError

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
V1_PATHS = frozenset({"/write", "/ping", "/query"})
V2_PREFIX = "/api/v2/"
# What InfluxDB 2 calls a status.
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
# InfluxDB 1 cuts its header there too.
_MAX_HEADER_CHARACTERS = 1024


class BadRequestError(VedetteError):
    """The request can't be read at all: not JSON, not gzip, a parameter of the wrong kind."""

    status = 400
    default_code = "invalid"


class UnsupportedEncodingError(VedetteError):
    """The body is compressed or written in a way that this door does not know."""

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
    """Return an error in the shape that the address has; `extra` adds keys to it."""
    path = request.url.path
    found: dict[str, str] = dict(headers or {})
    body: dict[str, Any] = {"code": code, "status": status, "message": message}
    body |= {"errors": errors or {}} | extra
    if path.startswith(V2_PREFIX):
        word = _V2_CODES.get(status, "internal error")
        body |= {"code": word, "reason": code}
        found["X-Platform-Error-Code"] = word
    elif path in V1_PATHS:
        body = {"error": message}
        found["X-InfluxDB-Error"] = _as_header(message)
    return JSONResponse(body, status, found)


async def on_vedette_error(request: Request, error: Exception) -> Response:
    """Answer an error that Vedette raised on purpose."""
    assert isinstance(error, VedetteError)  # noqa: S101 - Starlette picks the handler by type
    headers = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    elif error.status == 401:  # noqa: PLR2004 - the status of the challenge below
        headers["WWW-Authenticate"] = _challenge(request)
    return error_response(
        request, code=error.code, status=error.status, message=error.message, errors=error.errors,
        headers=headers,
    )  # fmt: skip


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such address, or another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette picks the handler by type
    sentences = {
        404: ("not_found", "There is nothing at this address."),
        405: ("method_not_allowed", "This address does not take this method."),
    }
    code, message = sentences.get(error.status_code, ("http_error", error.detail))
    return error_response(
        request, code=code, status=error.status_code, message=message, headers=error.headers
    )


async def on_database_error(request: Request, error: Exception) -> Response:
    """Answer while the database is away or too busy: the agent tries again."""
    logger.warning("the database does not answer: %s", error)
    return error_response(
        request,
        code="unavailable",
        status=503,
        message="The database does not answer now. Try again in some seconds.",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """End a request whose sender went away in the middle of its body."""
    return Response(status_code=400)


async def on_bug(request: Request, _error: Exception) -> Response:
    """Answer what nobody foresaw; the server logs the traceback."""
    return error_response(
        request,
        code="internal_error",
        status=500,
        message="Something went wrong here. The portal's log says what.",
    )


Handler = Callable[[Request, Exception], Awaitable[Response]]
HANDLERS: dict[Any, Handler] = {
    VedetteError: on_vedette_error,
    HTTPException: on_http_error,
    OperationalError: on_database_error,
    InterfaceError: on_database_error,
    PoolTimeoutError: on_database_error,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}


def handler_of(error: Exception) -> Handler:
    """Return the handler of the nearest class that has one."""
    return next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)


def _challenge(request: Request) -> str:
    basic = 'Basic realm="vedette", ' if request.url.path in V1_PATHS else ""
    return f'{basic}Bearer realm="vedette", Token realm="vedette"'


def _as_header(text: str) -> str:
    """Return a text as a header may hold it: printable ASCII, and not too long."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain[:_MAX_HEADER_CHARACTERS]
