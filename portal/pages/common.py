"""Pages with forms, and changes that redirect with a flash message."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from flask import Blueprint, current_app, flash, redirect, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, OverloadedError
from portal.context import database, in_parts
from portal.services import Service, call

View = TypeVar("View", bound=Callable[..., ResponseReturnValue])


class Pages(Blueprint):
    """Web pages of one part of the portal."""

    def form(self, path: str) -> Callable[[View], View]:
        """Return a decorator that registers the view of a form, which is posted to its own page."""
        return self.route(path, methods=["GET", "POST"])

    def acts(
        self,
        path: str,
        service: Service,
        message: str,
        *,
        back: str | Callable[[], str] = ".index",
        name: str = "",
    ) -> None:
        """Declare a button: a POST that calls a service, see `portal.services`, then redirects.

        Args:
            path: the URL path, whose parameters the service gets.
            service: makes the change.
            message: the message to show; `{}` stands for the service's result, `{.name}` for
                the name of it.
            back: where to redirect to, see `changing`; by default the list.
            name: the name of the endpoint, by default the last part of the path.
        """

        def change(session: Session, **ids: str) -> str:
            return message.format(call(service, session, *ids.values()))

        name = name or path.rpartition("/")[2].replace("-", "_")
        self.add_url_rule(path, name, changing(back=back)(change), methods=["POST"])


def changing(
    *, back: str | Callable[[], str]
) -> Callable[[Callable[..., str]], Callable[..., ResponseReturnValue]]:
    """Return a decorator that runs a view in a transaction, then redirects.

    The view gets the session before the URL's parameters, and returns the message to show.

    Args:
        back: the endpoint (it gets the same parameters), such as `.index` of the same blueprint,
            or a function that returns the URL to redirect to, also on a conflict, which is shown
            as a warning.
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
    if endpoint.startswith("."):
        endpoint = f"{request.blueprint}{endpoint}"
    accepts = current_app.url_map.is_endpoint_expecting
    parameters = (request.view_args or {}).items()
    return url_for(
        endpoint, **{name: value for name, value in parameters if accepts(endpoint, name)}
    )
