"""A blueprint whose decorator `operation` declares a route: method, permission, body and response.

Each operation checks permissions and token scopes before anything else. POST operations honor
`Idempotency-Key`, a GET of one object has an `ETag`, and PUT, PATCH and DELETE
honor `If-Match`.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, wraps
from http import HTTPStatus
from typing import Any, TypeVar

from flask import Request, Response, jsonify, request
from flask_smorest import Blueprint
from marshmallow import Schema
from sqlalchemy import update
from sqlalchemy.orm import Session
from webargs.core import missing
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import PreconditionFailed, UnsupportedMediaType
from werkzeug.http import generate_etag, quote_etag

from core.errors import InvalidInputError
from core.query_parameters import unknown_parameters
from core.strict_json import check_value_count, decode_json
from portal.api.replacing import change_of, example_of, merging, replacement_of
from portal.context import current_scope
from portal.middleware.idempotency import KEY_HEADER, KEY_LIFETIME, MAX_KEY_LENGTH, idempotent
from tenants.permissions import TOKEN_SCOPES, Permission

F = TypeVar("F", bound=Callable[..., Any])
View = Callable[..., Any]
PREFIX = "/api/v1"
MAX_VALUES = 20_000
OPERATORS_ALONE = frozenset({Permission.MANAGE_TENANTS, Permission.OPERATE})

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


class _Parser(FlaskParser):
    """Parses requests strictly: unknown query parameters are errors, a body must be JSON."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - webargs reads it from the class
        **FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION,
        "query": None,
    }

    def load_json(self, req: Request, _schema: Schema) -> Any:  # noqa: ANN401 - webargs's
        """Return the JSON body; webargs would accept what no database can store."""
        body = req.get_data(cache=True)
        if not body:
            return missing
        if not req.is_json:
            raise UnsupportedMediaType
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
        etag: Schema | None = None,
        responses: Mapping[int, Mapping[str, Any]] | None = None,
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
            etag: schema of what the `ETag` stands for, where the answer has volatile fields.
            responses: descriptions of responses by status, where the usual ones don't fit.
        """
        need = needs or (self._reads if method == "GET" else self._changes)
        if has_etag is None:
            has_etag = path.endswith(">") and method != "POST"
        accepted = replacement_of(body) if body is not None and method == "PUT" else body
        statuses = _statuses(method, path, has_body=body is not None, has_etag=has_etag)
        described: dict[str, Any] = {
            "responses": {**{code: code.name for code in statuses}, **(responses or {})}
        }
        if parameters := _parameters(method, query, has_etag=has_etag):
            described["parameters"] = parameters

        def decorate(function: F) -> F:
            if method == "GET":
                self._shows[path] = function
            headers = {"ETag": "ETAG"} if has_etag and method != "DELETE" else None
            view: View = _with_own_etag(function, etag) if headers and etag else function
            view = self._described(view, need, described)
            view = self._parsing(view, query, accepted)
            view = self.response(status, _shared(answer), headers=headers)(view)
            if headers:
                view = _with_etag(view)
            if method == "POST":
                view = idempotent(view)
            self.route(path, methods=[method])(_requiring(_knowing(view, _names_of(query)), need))
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
                    etag=etag,
                )(change)
            return function

        return decorate

    @property
    def is_for_operators(self) -> bool:
        """Whether all its operations need a permission that operators alone have."""
        return all(need in OPERATORS_ALONE for need in self.needs.values())

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
            if not request.if_match.contains(_etag_of(read(), schema)):
                raise PreconditionFailed

    def _parsing(
        self, view: View, query: type[Schema] | Schema | None, body: type[Schema] | None
    ) -> View:
        if query is not None:
            view = self.arguments(_shared(query), location="query", arg_name="query")(view)
        if body is not None:
            self.bodies.append(body)
            example = example_of(body)
            view = self.arguments(_shared(body), arg_name="body", example=example)(view)
        return view

    def _described(self, view: View, need: Need, described: Mapping[str, Any]) -> View:
        summary, _, details = (inspect.getdoc(view) or "").partition("\n")
        resource_name = "".join(word[:1].upper() + word[1:] for word in self.name.split())
        documented: View = self.doc(
            operationId=f"{resource_name[:1].lower()}{resource_name[1:]}.{view.__name__}",
            summary=summary,
            description=f"{details.strip()}\n\n{_description_of(need)}".strip(),
            **described,
        )(view)
        return documented


def _etag_of(item: object, schema: type[Schema] | Schema) -> str:
    """Return the ETag of an object: that of a response with it."""
    shown = _instance(schema) if isinstance(schema, type) else schema
    return generate_etag(jsonify(shown.dump(item)).get_data())


def _with_own_etag(view: View, schema: Schema) -> View:
    @wraps(view)
    def tagged(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, str]]:  # noqa: ANN401 - a view's own
        item = view(*args, **kwargs)
        return item, {"ETag": quote_etag(_etag_of(item, schema))}

    return tagged


def _with_etag(view: View) -> View:
    @wraps(view)
    def tagged(*args: Any, **kwargs: Any) -> Response:  # noqa: ANN401 - a view's own
        response: Response = view(*args, **kwargs)
        # An ETag of the view's own leaves volatile fields out: they may have changed although the
        # ETag has not, so that such an object is always sent in full.
        if "ETag" not in response.headers:
            response.add_etag()
            response.make_conditional(request)
        return response

    return tagged


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
    return schema()


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


def _parameters(
    method: str, query: type[Schema] | Schema | None, *, has_etag: bool
) -> list[dict[str, Any] | str]:
    """Return the descriptions of the query string and of the headers that an operation reads."""
    parameters: list[dict[str, Any] | str] = []
    if query is not None:
        parameters.append({"in": "query", "schema": query})
    if method == "POST":
        parameters.append(_IDEMPOTENCY_KEY)
    elif has_etag:
        parameters.append("IF_NONE_MATCH" if method == "GET" else "IF_MATCH")
    return parameters


def _statuses(method: str, path: str, *, has_body: bool, has_etag: bool) -> list[HTTPStatus]:
    """Return the statuses of an operation other than its success."""
    is_change = method != "GET"
    conditions = {
        304: has_etag and not is_change,
        400: has_body,
        404: "<" in path,
        409: is_change,
        412: has_etag and is_change,
        413: has_body,
        415: has_body,
        # For unknown query parameters at least.
        422: True,
    }
    statuses = {401, 403, 429, *(status for status, holds in conditions.items() if holds)}
    return [HTTPStatus(status) for status in sorted(statuses)]
