"""Errors of the agents' door, all in one shape: `{code, status, message, errors}`.

Influx clients read `code` and `message`, so the same shape serves the write endpoint too.
"""

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ExceptionHandler

from core.errors import OverloadedError, UnavailableError, VedetteError

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5


class BadRequestError(VedetteError):
    """The request can't be read at all: not JSON, not gzip, a parameter of the wrong kind."""

    status = 400
    default_code = "invalid"


class UnsupportedEncodingError(VedetteError):
    """The body is compressed in a way that this door does not know."""

    status = 415
    default_code = "unsupported_encoding"


def error_response(
    *,
    code: str,
    status: int,
    message: str,
    errors: object = None,
    headers: Mapping[str, str] | None = None,
    **extra: object,
) -> JSONResponse:
    """Return an error in the one shape; `extra` adds keys to it."""
    body: dict[str, Any] = {"code": code, "status": status, "message": message}
    return JSONResponse(body | {"errors": errors or {}} | extra, status, headers)


async def on_vedette_error(_request: Request, error: Exception) -> Response:
    """Answer an error that Vedette raised on purpose."""
    assert isinstance(error, VedetteError)  # noqa: S101 - Starlette picks the handler by type
    headers = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    elif error.status == 401:  # noqa: PLR2004 - the status of the challenge below
        headers["WWW-Authenticate"] = 'Bearer realm="vedette", Token realm="vedette"'
    return error_response(
        code=error.code, status=error.status, message=error.message, errors=error.errors,
        headers=headers,
    )  # fmt: skip


async def on_http_error(_request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such address, or another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - Starlette picks the handler by type
    sentences = {
        404: ("not_found", "There is nothing at this address."),
        405: ("method_not_allowed", "This address does not take this method."),
    }
    code, message = sentences.get(error.status_code, ("http_error", error.detail))
    return error_response(
        code=code, status=error.status_code, message=message, headers=error.headers
    )


async def on_database_error(_request: Request, error: Exception) -> Response:
    """Answer while the database is away or too busy: the agent tries again."""
    logger.warning("the database does not answer: %s", error)
    return error_response(
        code="unavailable",
        status=503,
        message="The database does not answer now. Try again in some seconds.",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


async def on_disconnect(_request: Request, _error: Exception) -> Response:
    """End a request whose sender went away in the middle of its body."""
    return Response(status_code=400)


async def on_bug(_request: Request, _error: Exception) -> Response:
    """Answer what nobody foresaw; the server logs the traceback."""
    return error_response(
        code="internal_error",
        status=500,
        message="Something went wrong here. The portal's log says what.",
    )


HANDLERS: dict[Any, ExceptionHandler] = {
    VedetteError: on_vedette_error,
    HTTPException: on_http_error,
    OperationalError: on_database_error,
    InterfaceError: on_database_error,
    PoolTimeoutError: on_database_error,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}
