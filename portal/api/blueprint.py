"""A blueprint whose decorator `operation` declares a route: method, permission, body and response.

Each operation checks permissions and token scopes before anything else. POST operations honor
`Idempotency-Key`, a GET of one object has an `ETag`, and PUT, PATCH and DELETE
honor `If-Match`.
"""

import inspect
import json
from collections.abc import Callable
from enum import StrEnum
from functools import cache, wraps
from http import HTTPStatus
from threading import Lock
from typing import Any, TypeVar

from flask import Flask, Request, Response, request
from flask_smorest import Api, Blueprint
from flask_smorest.utils import get_appcontext
from marshmallow import Schema
from sqlalchemy import update
from sqlalchemy.orm import Session
from webargs.core import missing
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import UnsupportedMediaType

from core.errors import InvalidInputError
from core.query_parameters import unknown_parameters
from core.strict_json import check_value_count, decode_json
from portal.api.replacing import change_of, example_of, merging, replacement_of
from portal.api.schemas import ErrorSchema
from portal.context import current_scope
from portal.middleware.idempotency import KEY_HEADER, KEY_LIFETIME, MAX_KEY_LENGTH, idempotent
from tenants.permissions import TOKEN_SCOPES, Permission

F = TypeVar("F", bound=Callable[..., Any])
View = Callable[..., Any]
PREFIX = "/api/v1"
MAX_VALUES = 20_000

_TEXT = {"type": "string"}
_IDEMPOTENCY_KEY: dict[str, Any] = {
    "in": "header",
    "name": KEY_HEADER,
    "description": "A key of your choice. A repeated request with the same key does nothing "
    f"and returns the first response, for {KEY_LIFETIME.total_seconds() / 3600:.0f} hours.",
    "schema": {**_TEXT, "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[!-~]+$"},
}


class Own(StrEnum):
    """The requirement of operations on the user's own account, which need no permission."""

    ANY = "Open to every user and API token."
    UNLIMITED = "Open to every user, but not to API tokens that are limited to scopes."


Need = Permission | Own


class VedetteAPI(Api):  # type: ignore[misc] # flask-smorest ships no types
    """The API; `portal.middleware.errors` handles errors of pages and API alike.

    Its document is made when it is first asked for: to make it takes longer than all else that a
    server does before it answers.
    """

    ERROR_SCHEMA = ErrorSchema

    def __init__(self, app: Flask, **options: object) -> None:
        self._resources: list[APIBlueprint] = []
        self._making_document = Lock()
        self._document = b""
        super().__init__(app, **options)

    def register_blueprint(self, resource: "APIBlueprint") -> None:
        """Add the operations on a resource."""
        self._app.extensions["flask-smorest"]["blp_name_to_api"][resource.name] = self
        self._app.register_blueprint(resource)
        self._resources.append(resource)

    def _openapi_json(self) -> Response:
        with self._making_document:
            if not self._document:
                for resource in self._resources:
                    resource.register_views_in_doc(
                        self, self._app, self.spec, name=resource.name, parameters=None
                    )
                    self.spec.tag({"name": resource.name, "description": resource.description})
                self._document = json.dumps(self.spec.to_dict(), indent=2).encode()
        return Response(self._document, mimetype="application/json")

    def _register_error_handlers(self) -> None:
        """Leave errors to the app's handlers."""

    def _register_etag_headers(self) -> None:
        components = self.spec.components
        for name, description in (
            ("If-Match", "The `ETag` that you read. Returns 412 if the object has changed since."),
            ("If-None-Match", "The `ETag` that you have. Returns 304 if it is still current."),
        ):
            header = {"name": name, "description": description, "schema": _TEXT}
            components.parameter(name.upper().replace("-", "_"), "header", header, lazy=True)
        components.header("ETAG", {"description": "Version of the object.", "schema": _TEXT})


class _Parser(FlaskParser):
    """Parses requests strictly: unknown query parameters are errors, a body must be JSON."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - webargs reads it from the class
        **FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION,
        "query": None,
    }

    def load_json(self, req: Request, schema: Schema) -> Any:  # noqa: ANN401 - webargs's
        """Return the JSON body; webargs would read a body of another type as empty."""
        if req.content_length and not req.is_json:
            raise UnsupportedMediaType
        return super().load_json(req, schema)

    def _raw_load_json(self, req: Request) -> Any:  # noqa: ANN401 - webargs's
        """Decode the body strictly; webargs would accept what no database can store."""
        body = req.get_data(cache=True)
        if not req.is_json or not body:
            return missing
        document: Any = decode_json(body)
        check_value_count(document, max_count=MAX_VALUES)
        return document


class APIBlueprint(Blueprint):  # type: ignore[misc] # flask-smorest ships no types
    """Operations on one kind of resource.

    Args:
        name: title in the API description.
        path: URL path below `/api/v1`.
        description: what the resource is.
        reads: permission that GET requires.
        changes: permission that the other methods require.
    """

    ARGUMENTS_PARSER = _Parser()

    def __init__(
        self,
        name: str,
        path: str,
        description: str,
        *,
        reads: Need = Permission.VIEW,
        changes: Need = Own.UNLIMITED,
    ) -> None:
        super().__init__(name, __name__, url_prefix=f"{PREFIX}{path}", description=description)
        self._reads = reads
        self._changes = changes
        self.needs: dict[str, Need] = {}
        self._shows: dict[str, Callable[..., Any]] = {}
        self.bodies: list[type[Schema]] = []

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
        has_etag: bool | None = None,
    ) -> Callable[[F], F]:
        """Register a function as the operation at `path`; its docstring describes it in OpenAPI.

        A PUT needs every field, and comes with a PATCH of some.

        Args:
            method: the HTTP method.
            path: URL path below the resource's; path parameters become keyword arguments.
            answer: schema of the response body; None responds without a body.
            body: schema of the JSON body, passed as keyword `body`.
            query: schema of the query string, passed as keyword `query`.
            status: the success status.
            needs: the required permission, where it is not the resource's.
            has_etag: whether the operation has an `ETag` or honors `If-Match`; by default those
                on one object do: GET, PUT, PATCH and DELETE of a path that ends with a parameter.
        """
        need = needs or (self._reads if method == "GET" else self._changes)
        errors = _error_statuses(method, path, has_body=body is not None)
        is_on_object = path.endswith(">") and method != "POST"
        accepted = replacement_of(body) if body is not None and method == "PUT" else body

        def decorate(function: F) -> F:
            if method == "GET":
                self._shows[path] = function
            own = getattr(function, "_apidoc", {}).get("response", {}).get("responses", {})
            view: View = self.response(status, _shared(answer))(function)
            if is_on_object if has_etag is None else has_etag:
                view = self.etag(view)
            if query is not None:
                view = self.arguments(_shared(query), location="query", arg_name="query")(view)
            if accepted is not None:
                self.bodies.append(accepted)
                example = example_of(accepted)
                view = self.arguments(_shared(accepted), arg_name="body", example=example)(view)
            if method == "POST":
                view = self.doc(parameters=[_IDEMPOTENCY_KEY])(idempotent(view))
            for error in (code for code in errors if code not in own):
                view = self.alt_response(error, HTTPStatus(error).name)(view)
            view = _requiring(_knowing(view, _names_of(query)), need)
            view = self._described(view, function, need)
            self.route(path, methods=[method])(view)
            self.needs[f"{self.name}.{function.__name__}"] = need
            if method == "PUT" and body is not None:
                shown = _shared(answer) or Schema()
                change = merging(self._shows[path], function, body=body, answer=shown)
                self.operation(
                    "PATCH",
                    path,
                    answer=answer,
                    body=change_of(body),
                    needs=needs,
                    has_etag=has_etag,
                )(change)
            return function

        return decorate

    def check_if_match(
        self,
        session: Session,
        model: Any,  # noqa: ANN401 - any model
        ident: str,
        read: Callable[[], object],
        schema: type[Schema] | Schema,
    ) -> None:
        """Refuse a change with 412 unless the object has the ETag that `If-Match` names.

        Args:
            session: the transaction of the change.
            model: the table whose row stands for the object.
            ident: the id of the row.
            read: returns the object.
            schema: the schema that the ETag is made with.
        """
        if request.if_match:
            # An UPDATE locks the row until the end of the transaction, on SQLite too.
            session.execute(
                update(model)
                .where(model.id == ident)
                .values(id=ident)
                .execution_options(synchronize_session=False)
            )
            self.check_etag(read(), schema)

    def _described(self, view: View, function: View, need: Need) -> View:
        text = inspect.getdoc(function) or ""
        summary, _, details = text.partition("\n")
        resource_name = "".join(word[:1].upper() + word[1:] for word in self.name.split())
        described: View = self.doc(
            operationId=f"{resource_name[:1].lower()}{resource_name[1:]}.{function.__name__}",
            summary=summary,
            description=f"{details.strip()}\n\n{_description_of(need)}".strip(),
        )(view)
        return described

    def _check_precondition(self) -> None:
        """Accept changes without `If-Match`, which flask-smorest would answer with 428."""

    def _verify_check_etag(self) -> None:
        if request.if_match:
            super()._verify_check_etag()

    def _check_not_modified(self, etag: str) -> None:
        """Leave 304 to `_set_etag_in_response`."""

    def _set_etag_in_response(self, response: Response) -> None:
        # A view that sets its ETag leaves volatile fields out: they may have changed although the
        # ETag has not, so that such an object is always sent in full.
        is_partial = "etag" in get_appcontext().get("etag", {})
        super()._set_etag_in_response(response)
        if not is_partial:
            response.make_conditional(request)

    def _prepare_etag_doc(
        self, doc: dict[str, Any], info: dict[str, Any], **options: object
    ) -> dict[str, Any]:
        operation: dict[str, Any] = super()._prepare_etag_doc(doc, info, **options)
        operation.get("responses", {}).pop(428, None)
        return operation


def _shared(schema: type[Schema] | Schema | None) -> Schema | None:
    """Return one instance of a schema for all operations: each would have copies of its fields."""
    return _instance(schema) if isinstance(schema, type) else schema


def _names_of(schema: type[Schema] | Schema | None) -> frozenset[str]:
    """Return the names of the parameters that a schema of a query string declares."""
    instance = _shared(schema)
    return frozenset(
        field.data_key or name for name, field in (instance.fields if instance else {}).items()
    )


@cache
def _instance(schema: type[Schema]) -> Schema:
    instance = schema()
    # flask-smorest copies what it documents in each of its decorators: 2,500 schemas, 10 MiB.
    instance.__deepcopy__ = lambda _memo: instance  # type: ignore[attr-defined]
    return instance


def _requiring(view: View, need: Need) -> View:
    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        if isinstance(need, Permission):
            current_scope().require(need)
        elif need is Own.UNLIMITED:
            current_scope().require_unlimited()
        return view(*args, **kwargs)

    return guarded


def _knowing(view: View, names: frozenset[str]) -> View:
    """Refuse query parameters with other names, for which a client would wait in vain."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        errors = unknown_parameters(request.args, names)
        if errors:
            text = " ".join(text for texts in errors.values() for text in texts)
            raise InvalidInputError(text, errors=errors)
        return view(*args, **kwargs)

    return guarded


def _description_of(need: Need) -> str:
    if isinstance(need, Own):
        return need.value
    scopes = [f"`{name}`" for name, allowed in TOKEN_SCOPES.items() if need in allowed]
    return f"Requires permission to {need.value} (token scopes: {', '.join(scopes)})."


def _error_statuses(method: str, path: str, *, has_body: bool) -> list[int]:
    is_change = method != "GET"
    conditions = {
        400: has_body,
        404: "<" in path,
        409: is_change,
        413: has_body,
        415: has_body,
        # For unknown query parameters at least.
        422: True,
    }
    return sorted({401, 403, 429, *(status for status, holds in conditions.items() if holds)})
