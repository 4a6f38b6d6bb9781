"""A blueprint whose one decorator, `operation`, says all about a route: method, body and answer."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from flask_smorest import Api, Blueprint
from marshmallow import Schema

from portal.api.schemas import ErrorSchema

F = TypeVar("F", bound=Callable[..., Any])


class VedetteAPI(Api):  # type: ignore[misc] # flask-smorest ships no types
    """The API whose errors are answered by `portal.errors`, as those of the pages are."""

    ERROR_SCHEMA = ErrorSchema

    def _register_error_handlers(self) -> None:
        """Leave errors to the app's handlers: one shape for pages and API."""


class APIBlueprint(Blueprint):  # type: ignore[misc] # flask-smorest ships no types
    """Routes of one resource."""

    def operation(
        self,
        method: str,
        path: str = "",
        *,
        answer: type[Schema] | Schema | None = None,
        body: type[Schema] | Schema | None = None,
        query: type[Schema] | Schema | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Callable[[F], F]:
        """Register a function as the operation at `path`; its docstring describes it in OpenAPI.

        Args:
            method: the HTTP method.
            path: below the blueprint's prefix; path parameters become keyword arguments.
            answer: schema of the answer; None answers without a body.
            body: schema of the JSON body, passed as keyword `body`.
            query: schema of the query string, passed as keyword `query`.
            status: status of the answer.
        """

        def decorate(function: F) -> F:
            view: Any = self.response(status, answer)(function)
            if query is not None:
                view = self.arguments(query, location="query", arg_name="query")(view)
            if body is not None:
                view = self.arguments(body, location="json", arg_name="body")(view)
            self.route(path, methods=[method])(view)
            return function

        return decorate


def resource(name: str, path: str, description: str) -> APIBlueprint:
    """Return the blueprint of a resource under `/api/v1`."""
    return APIBlueprint(name, __name__, url_prefix=f"/api/v1{path}", description=description)
