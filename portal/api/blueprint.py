"""A blueprint whose one decorator, `operation`, says all about a route: method, body and answer.

Around every route it puts what all of them do: permissions and token scopes are checked before
anything else, creations heed `Idempotency-Key`, single objects have ETags, and changes of them
heed `If-Match`.
"""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from http import HTTPStatus
from typing import Any, TypeVar

from flask import request
from flask_smorest import Api, Blueprint
from marshmallow import Schema
from werkzeug.exceptions import UnsupportedMediaType

from portal.answering.etags import answering_etag, heeding_if_match
from portal.answering.idempotency import idempotent
from portal.api.examples import example_of
from portal.api.needs import Need, Own, described, require
from portal.api.route import Route
from portal.api.schemas import ErrorSchema
from tenants.permissions import Permission

F = TypeVar("F", bound=Callable[..., Any])
View = Callable[..., Any]
# Where a view keeps what is to be told of its headers.
_PARAMETERS = "header_parameters"


class VedetteAPI(Api):  # type: ignore[misc] # flask-smorest ships no types
    """The API whose errors are answered by `portal.answering.errors`, as those of the pages are."""

    ERROR_SCHEMA = ErrorSchema

    def _register_error_handlers(self) -> None:
        """Leave errors to the app's handlers: one shape for pages and API."""


class APIBlueprint(Blueprint):  # type: ignore[misc] # flask-smorest ships no types
    """Routes of one resource."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        description: str,
        reads: Need = Permission.VIEW,
        changes: Need = Own.UNLIMITED,
    ) -> None:
        super().__init__(name, __name__, url_prefix=path, description=description)
        self._reads = reads
        self._changes = changes
        self.needs: dict[str, Need] = {}
        self.bodies: list[type[Schema]] = []
        self._shows: dict[str, View] = {}
        self._volatile: dict[str, Collection[str]] = {}
        self._queries: dict[str, Collection[str]] = {}
        self._prepare_doc_cbks.append(_headers_doc)

    def operation(
        self,
        method: str,
        path: str = "",
        *,
        answer: type[Schema] | Schema | None = None,
        body: type[Schema] | None = None,
        query: type[Schema] | Schema | None = None,
        status: HTTPStatus = HTTPStatus.OK,
        needs: Need | None = None,
        row: Any = None,  # noqa: ANN401 - any model
        volatile: Collection[str] = (),
        is_single: bool | None = None,
    ) -> Callable[[F], F]:
        """Register a function as the operation at `path`; its docstring describes it in OpenAPI.

        Args:
            method: the HTTP method.
            path: below the blueprint's prefix; path parameters become keyword arguments.
            answer: schema of the answer; None answers without a body.
            body: schema of the JSON body, passed as keyword `body`.
            query: schema of the query string, passed as keyword `query`.
            status: status of the answer.
            needs: what it asks of who calls, where that is not what the resource asks.
            row: for a PATCH, PUT or DELETE of what a GET at the same path answers with: its
                model. `If-Match` is heeded then.
            volatile: for a GET of one object: fields that its ETag leaves out.
            is_single: whether a GET answers with one object and its ETag; left out, where the
                path ends with a parameter.
        """
        need = needs or (self._reads if method == "GET" else self._changes)
        route = Route(
            method, path, need, row=row, volatile=volatile,
            is_creation=method == "POST" and status is HTTPStatus.CREATED,
            has_body=body is not None, has_query=query is not None,
            is_single=method == "GET" and (path.endswith(">") if is_single is None else is_single),
        )  # fmt: skip

        def decorate(function: F) -> F:
            view: View = self.response(status, answer)(function)
            if route.is_single:
                self._keep_shown(view, route, query)
            if route.row is not None:
                view = heeding_if_match(view, show=self._shown(path), model=route.row)
            if query is not None:
                view = self.arguments(query, location="query", arg_name="query", unknown=None)(view)
            if body is not None:
                view = _taking_json(self._parsing_body(body)(view))
            view = self._heeding_headers(view, route, has_answer=answer is not None)
            view = self._described(_needing(view, need), function, route)
            self.route(path, methods=[method])(view)
            self.needs[f"{self.name}.{function.__name__}"] = need
            return function

        return decorate

    def _keep_shown(self, view: View, route: Route, query: type[Schema] | Schema | None) -> None:
        """Keep how an object is shown, for the changes of it that come after."""
        self._volatile[route.path] = route.volatile
        self._shows[route.path] = answering_etag(view, volatile=route.volatile)
        schema = query() if isinstance(query, type) else query
        self._queries[route.path] = () if schema is None else tuple(schema.fields)

    def _shown(self, path: str) -> View:
        """Return a view of the object that a change with these arguments is about."""

        def show(
            query: dict[str, Any] | None = None, body: dict[str, Any] | None = None, **ids: str
        ) -> Any:  # noqa: ANN401 - a view's own
            said, names = {**(body or {}), **(query or {})}, self._queries[path]
            asked = {"query": {name: said.get(name) for name in names}} if names else {}
            return self._shows[path](**ids, **asked)

        return show

    def _heeding_headers(self, view: View, route: Route, *, has_answer: bool) -> View:
        if route.is_single:
            return answering_etag(view, volatile=route.volatile)
        if route.row is not None:
            return answering_etag(view, volatile=self._volatile[route.path]) if has_answer else view
        return idempotent(view) if route.is_creation else view

    def _parsing_body(self, body: type[Schema]) -> Callable[[View], View]:
        self.bodies.append(body)
        parsing: Callable[[View], View] = self.arguments(
            body, location="json", arg_name="body", example=example_of(body)
        )
        return parsing

    def _described(self, view: View, function: View, route: Route) -> View:
        text = inspect.getdoc(function) or ""
        rest = text.partition("\n")[2].strip()
        resource_name = "".join(word[:1].upper() + word[1:] for word in self.name.split())
        view = self.doc(
            operationId=f"{resource_name[:1].lower()}{resource_name[1:]}.{function.__name__}",
            summary=text.partition("\n")[0],
            description=f"{rest}\n\n{described(route.need)}".strip(),
        )(view)
        for status in route.error_statuses():
            view = self.alt_response(status, HTTPStatus(status).name)(view)
        if route.may_be_unchanged:
            status = HTTPStatus.NOT_MODIFIED
            view = self.alt_response(status, description="It is as you have it.")(view)
        documented: Any = view
        documented._apidoc[_PARAMETERS] = route.header_parameters()  # noqa: SLF001 - flask-smorest's
        return view


def resource(
    name: str,
    path: str,
    description: str,
    *,
    reads: Need = Permission.VIEW,
    changes: Need = Own.UNLIMITED,
) -> APIBlueprint:
    """Return the blueprint of a resource under `/api/v1`.

    Args:
        name: what it is called in the description.
        path: where it is.
        description: what it is.
        reads: what its GETs ask of who calls.
        changes: what all else asks; left out, it is refused to tokens limited to scopes.
    """
    return APIBlueprint(
        name, f"/api/v1{path}", description=description, reads=reads, changes=changes
    )


def _needing(view: View, need: Need) -> View:
    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        require(need)
        return view(*args, **kwargs)

    return guarded


def _taking_json(view: View) -> View:
    """Refuse a body of another type, which would be taken for an empty one."""

    @wraps(view)
    def read(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        if request.content_length and not request.is_json:
            raise UnsupportedMediaType
        return view(*args, **kwargs)

    return read


def _headers_doc(doc: dict[str, Any], info: dict[str, Any], **_options: object) -> dict[str, Any]:
    """Add the headers that an operation heeds to its description."""
    found = info.get(_PARAMETERS) or []
    if found:
        doc = {**doc, "parameters": [*doc.get("parameters", []), *found]}
    return doc
