"""One format for every error: `{code, status, message, errors, reason}`, as JSON or as a page.

*code* is a stable identifier, *status* the HTTP status and *reason* its phrase, *message* says what
is wrong and what to do, and *errors* has the validation errors by field.
"""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, g, jsonify, make_response, render_template, request
from flask_wtf.csrf import CSRFError
from sqlalchemy.exc import IntegrityError
from werkzeug.exceptions import HTTPException

from core.errors import DatabaseUnavailableError, VedetteError
from portal.context import set_principal

log = logging.getLogger(__name__)

MESSAGES = {
    400: "The request is malformed. Check its body and parameters.",
    403: "You don't have permission to do this.",
    404: "Page not found. Check the address, or use the navigation.",
    405: "This address does not support the request method.",
    412: "The object has changed since you read it. Read it again, or omit 'If-Match'.",
    413: "The request is too large. Send less data at once.",
    415: "Send the body as JSON with 'Content-Type: application/json'.",
    422: "Some fields are missing or invalid. See 'errors'.",
    500: "Internal error. It was logged; try again in a moment.",
}


def install_error_handlers(app: Flask) -> None:
    """Handle every error of the app."""
    app.register_error_handler(VedetteError, _on_vedette_error)
    app.register_error_handler(CSRFError, _on_csrf_error)
    app.register_error_handler(HTTPException, _on_http_error)
    app.register_error_handler(IntegrityError, _on_concurrent_change)
    app.register_error_handler(Exception, _on_crash)


def wants_json() -> bool:
    """Return whether the client expects JSON: API and Dash calls, or by its Accept header."""
    if request.path.startswith(("/api/", "/dashboards/_")):
        return True
    accepted = request.accept_mimetypes
    return accepted.best == "application/json" or (
        accepted.accept_json and not accepted.accept_html
    )


def error_payload(
    *, code: str, status: int, message: str, errors: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """Return the body of an error."""
    return {
        "code": code,
        "status": status,
        "message": message,
        "errors": dict(errors or {}),
        "reason": HTTPStatus(status).phrase,
    }


def flatten_errors(messages: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return nested validation messages (by location and field) as errors by dotted field."""
    errors_by_field: dict[str, list[str]] = {}
    for location, errors in messages.items():
        if isinstance(errors, Mapping):
            _flatten(errors, "", errors_by_field)
        else:
            errors_by_field.setdefault(str(location), []).extend(str(error) for error in errors)
    return errors_by_field


def _flatten(node: Mapping[Any, Any], prefix: str, errors_by_field: dict[str, list[str]]) -> None:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(value, f"{name}.", errors_by_field)
        else:
            errors_by_field.setdefault(name, []).extend(str(error) for error in value)


def _on_vedette_error(error: VedetteError) -> Response:
    # `core.db.transaction` has logged why the database is unavailable.
    is_logged = isinstance(error, DatabaseUnavailableError)
    if is_logged:
        # The layout for users reads the database.
        set_principal(None)
    elif error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s: %s", request.method, request.path, error.message)
    response = _answer(error.code, error.status, error.message, error.errors)
    if error.retry_after_seconds:
        response.headers["Retry-After"] = f"{error.retry_after_seconds:.0f}"
    return response


def _on_csrf_error(error: CSRFError) -> Response:
    message = f"{error.description} Reload the page and try again."
    return _answer("csrf_failed", HTTPStatus.BAD_REQUEST, message)


def _on_http_error(error: HTTPException) -> Response:
    if error.response is not None or error.code is None:
        return make_response(error.get_response())
    if error.code < HTTPStatus.BAD_REQUEST:
        return make_response(error.get_response())
    data: dict[str, Any] = getattr(error, "data", None) or {}
    errors = flatten_errors(data.get("messages") or data.get("errors") or {})
    status = HTTPStatus(error.code)
    message = str(data.get("message") or MESSAGES.get(status, error.description or status.phrase))
    code = "invalid_input" if errors else status.phrase.lower().replace(" ", "_")
    response = _answer(code, status, message, errors)
    for name, value in error.get_headers():
        if name in {"Allow", "Retry-After"}:
            response.headers[name] = value
    return response


def _on_concurrent_change(error: IntegrityError) -> Response:
    """Answer a request whose checks passed, but another one was saved in between."""
    log.warning("%s %s: a constraint failed", request.method, request.path, exc_info=error)
    message = "Someone else saved a change at the same moment. Reload and try again."
    return _answer("conflict", HTTPStatus.CONFLICT, message)


def _on_crash(error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return _answer("internal_error", HTTPStatus.INTERNAL_SERVER_ERROR, MESSAGES[500])


def _answer(
    code: str, status: int, message: str, errors: Mapping[str, list[str]] | None = None
) -> Response:
    payload = error_payload(code=code, status=status, message=message, errors=errors)
    if wants_json():
        response = jsonify(payload)
    else:
        g.shows_error = True
        try:
            response = make_response(render_template("error.html", **payload))
        except DatabaseUnavailableError as error:
            return _on_vedette_error(error)
    response.status_code = status
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
