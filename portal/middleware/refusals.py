"""Requests that the server refuses before Flask: they get an error in the portal's format.

The server puts the error into the ASGI scope, and the request has no body.
"""

from typing import Any

from flask import Flask, request

from core.errors import VedetteError

_KEY = "vedette.refusal"


def refused(scope: Any, error: VedetteError) -> Any:  # noqa: ANN401 - an ASGI scope
    """Return the scope of a request that gets this error."""
    return {**scope, _KEY: error}


def install_refusals(app: Flask) -> None:
    """Raise the errors; call it before anything else handles requests."""
    app.before_request(_raise)


def _raise() -> None:
    error: VedetteError | None = request.environ.get("asgi.scope", {}).get(_KEY)
    if error is not None:
        raise error
