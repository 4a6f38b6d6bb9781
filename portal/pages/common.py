"""Views that change something, then redirect with a flash message."""

from collections.abc import Callable
from functools import wraps

from flask import current_app, flash, redirect, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError, OverloadedError
from portal.context import database, in_parts


def changing(
    *, back: str | Callable[[], str]
) -> Callable[[Callable[..., str]], Callable[..., ResponseReturnValue]]:
    """Return a decorator that runs a view in a transaction, then redirects.

    The view gets the session before the URL's parameters, and returns the message to show.

    Args:
        back: the endpoint (it gets the same parameters) or a function that returns the URL to
            redirect to, also on a conflict, which is shown as a warning.
    """

    def decorate(view: Callable[..., str]) -> Callable[..., ResponseReturnValue]:
        def change(**parameters: str) -> str:
            with database() as session:
                return view(session, **parameters)

        return _redirecting(wraps(view)(change), back)

    return decorate


def changing_in_parts(
    *, back: str | Callable[[], str]
) -> Callable[[Callable[..., tuple[str, bool]]], Callable[..., ResponseReturnValue]]:
    """Return a decorator like `changing`, for a view that makes a part of a long change.

    The view also returns whether nothing is left to do; see `in_parts`.
    """

    def decorate(view: Callable[..., tuple[str, bool]]) -> Callable[..., ResponseReturnValue]:
        def change(**parameters: str) -> str:
            return in_parts(lambda session: view(session, **parameters))

        return _redirecting(wraps(view)(change), back)

    return decorate


def _redirecting(
    change: Callable[..., str], back: str | Callable[[], str]
) -> Callable[..., ResponseReturnValue]:
    @wraps(change)
    def changed(**parameters: str) -> ResponseReturnValue:
        try:
            message = change(**parameters)
        except (ConflictError, OverloadedError) as error:
            flash(error.message, "warning")
        else:
            flash(message, "success")
        return redirect(_url_of(back) if isinstance(back, str) else back())

    return changed


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `2 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _url_of(endpoint: str) -> str:
    accepts = current_app.url_map.is_endpoint_expecting
    parameters = (request.view_args or {}).items()
    return url_for(
        endpoint, **{name: value for name, value in parameters if accepts(endpoint, name)}
    )
