"""Query parameters of pages and of their files: those that no view reads are reported.

A page says so above its content, because a filter with a typo would show unfiltered data. A file
has no place for that, so that it is refused. The REST API declares its parameters, see
`portal.api.blueprint`; dashboards have their own, see `dash_app.parameters`.
"""

from functools import cached_property
from typing import Any

from flask import Flask, Request, Response, current_app, g, make_response, request
from werkzeug.datastructures import ImmutableMultiDict

from core.errors import InvalidInputError
from core.query_parameters import is_added_by_others, unknown_parameters
from dash_app.routes import PREFIX
from portal.query_string import value_errors

_CHECKED_ELSEWHERE = (PREFIX, "/api/")


class ReadParameters(ImmutableMultiDict[str, str]):
    """Query parameters that remember which names were asked for."""

    def __init__(self, pairs: Any) -> None:  # noqa: ANN401 - werkzeug's many kinds of pairs
        super().__init__(pairs)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def getlist(self, key: str, type: Any = None) -> list[Any]:  # noqa: A002, ANN401 - werkzeug's
        """Return all values of a name."""
        self.read.add(key)
        return super().getlist(key) if type is None else super().getlist(key, type)


class PortalRequest(Request):
    """A request whose views are watched as they read its parameters."""

    @cached_property
    def args(self) -> ReadParameters:
        """The query parameters."""
        return ReadParameters(super().args.items(multi=True))


def install_parameters(app: Flask) -> None:
    """Report query parameters that pages don't read."""
    app.request_class = PortalRequest
    app.jinja_env.globals["parameter_errors"] = parameter_errors
    app.after_request(_refuse_files)


def parameter_errors() -> list[str]:
    """Return the errors of the current page's parameters, which its view has read by now.

    A page that shows an error has none: its view may not have come to read them.
    """
    args = request.args
    if g.get("shows_error"):
        return []
    if not isinstance(args, ReadParameters) or request.path.startswith(_CHECKED_ELSEWHERE):
        return []
    # Only a look at a value counts as reading it.
    names = [name for name in list(args) if not is_added_by_others(name)]
    unknown = unknown_parameters(names, sorted(args.read))
    return [*value_errors(), *(text for texts in unknown.values() for text in texts)]


def _refuse_files(response: Response) -> Response:
    is_file = response.headers.get("Content-Disposition", "").startswith("attachment")
    errors = parameter_errors() if is_file and request.method == "GET" else []
    if not errors:
        return response
    response.close()
    error = InvalidInputError(" ".join(errors), errors={"query": errors})
    return make_response(current_app.handle_user_exception(error))
