"""Schemas shared by all resources: errors, paging, sorting, and the envelope of a list."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import cache
from http import HTTPStatus
from typing import Any

from marshmallow import RAISE, Schema, ValidationError, fields, validate

from core.errors import InvalidInputError
from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_NUMBER, MAX_PAGE_SIZE, Page, sort_terms


def about(description: str, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - OpenAPI's
    """Return the option of a field that describes it, with more of its OpenAPI schema."""
    return {"metadata": {"description": description, **metadata}}


class StrictSchema(Schema):
    """A body or query string that rejects unknown fields, so that typos are reported."""

    class Meta:
        """marshmallow's options."""

        unknown = RAISE


class ErrorSchema(Schema):
    """The body of every error."""

    code = fields.String(**about("Stable identifier of the error."))
    status = fields.Integer(**about("The HTTP status."))
    message = fields.String(**about("What is wrong and what to do."))
    errors = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.String()),
        **about("Validation errors by field."),
    )
    reason = fields.String(**about("Reason phrase of the HTTP status."))


def file_response(description: str, *media_types: str) -> dict[int, dict[str, Any]]:
    """Return the description of a response that is a file of one of these types."""
    file = {"schema": {"type": "string", "format": "binary"}}
    return {
        HTTPStatus.OK: {"description": description, "content": dict.fromkeys(media_types, file)}
    }


class PageQuery(StrictSchema):
    """Page of a list."""

    page = fields.Integer(load_default=1, validate=validate.Range(min=1, max=MAX_PAGE_NUMBER))
    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


class KeysetQuery(StrictSchema):
    """Page of a list by cursors, which stay valid while rows are added."""

    after = fields.String(load_default="", **about("The `next` of the previous page."))
    before = fields.String(load_default="", **about("The `previous` of the following page."))
    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


def instant(**options: Any) -> fields.AwareDateTime:  # noqa: ANN401 - marshmallow's options
    """Return a field for an aware UTC instant in ISO 8601."""
    return fields.AwareDateTime(format="iso", default_timezone=UTC, allow_none=True, **options)


def time_filter(description: str) -> fields.AwareDateTime:
    """Return a query parameter for an instant."""
    return fields.AwareDateTime(
        format="iso", default_timezone=UTC, load_default=None, **about(description)
    )


@cache
def page_of(schema: type[Schema]) -> type[Schema]:
    """Return the schema of a page of these items, one class per item schema."""
    name = schema.__name__.removesuffix("Schema")
    return Schema.from_dict(
        {
            "items": fields.List(fields.Nested(schema)),
            "total": fields.Integer(),
            "page": fields.Integer(),
            "page_size": fields.Integer(),
        },
        name=f"{name}PageSchema",
    )


def values_of(schema: type[Schema], item: object, **replaced: object) -> dict[str, Any]:
    """Return the attributes of an object that a schema shows, with other values for some."""
    return {
        name: getattr(item, name) for name in schema().fields if name not in replaced
    } | replaced


@cache
def keyset_page_of(schema: type[Schema]) -> type[Schema]:
    """Return the schema of a page by cursors, one class per item schema."""
    name = schema.__name__.removesuffix("Schema")
    return Schema.from_dict(
        {
            "items": fields.List(fields.Nested(schema)),
            "total": fields.Integer(),
            "next": fields.String(allow_none=True, **about("Cursor: send it as `after`.")),
            "previous": fields.String(allow_none=True, **about("Cursor: send it as `before`.")),
        },
        name=f"{name}KeysetPageSchema",
    )


def envelope(page: Page[Any], items: Sequence[object] | None = None) -> dict[str, Any]:
    """Return a page as its envelope; `items` replaces its rows."""
    return {
        "items": list(page.items if items is None else items),
        "total": page.total,
        "page": page.number,
        "page_size": page.size,
    }


def whole_list(items: Sequence[object]) -> dict[str, Any]:
    """Return a complete list as the envelope of one page."""
    return {"items": list(items), "total": len(items), "page": 1, "page_size": max(1, len(items))}


def sort_field(columns: Mapping[str, Any], *, default: str) -> fields.String:
    """Return the query parameter `sort` of a list.

    Args:
        columns: the columns by the names that requests use.
        default: the sort order without the parameter; empty for the service's own.
    """

    def check(value: str) -> None:
        if value:
            try:
                sort_terms(value, columns)
            except InvalidInputError as error:
                raise ValidationError(error.errors["sort"]) from error

    names = "|".join(columns)
    return fields.String(
        load_default=default,
        validate=check,
        **about(
            "Comma-separated field names; a leading hyphen sorts in descending "
            f"order. Fields: {', '.join(f'`{name}`' for name in columns)}.",
            pattern=f"^(-?({names})(,-?({names}))*)?$",
            example=f"-{next(iter(columns))}",
        ),
    )


def page_query(columns: Mapping[str, Any], *, default: str) -> type[Schema]:
    """Return the query parameters of a paged list that is sorted by these columns."""
    return PageQuery.from_dict({"sort": sort_field(columns, default=default)})
