"""Schemas that all resources share: errors, paging, and the envelope of a list."""

from collections.abc import Sequence
from datetime import UTC
from functools import cache
from typing import Any

from marshmallow import RAISE, Schema, fields, validate

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_NUMBER, MAX_PAGE_SIZE, Page


class StrictSchema(Schema):
    """A body or query: an unknown field is a fault, so that a typo never passes as a default."""

    class Meta:
        """marshmallow's options."""

        unknown = RAISE


class ErrorSchema(Schema):
    """Every error has this shape."""

    code = fields.String(metadata={"description": "A stable word for programs."})
    status = fields.Integer(metadata={"description": "The HTTP status."})
    message = fields.String(metadata={"description": "A sentence that says what to do."})
    errors = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.String()),
        metadata={"description": "Field to what is wrong with it."},
    )
    reason = fields.String(metadata={"description": "The phrase of the HTTP status."})


class PageQuery(StrictSchema):
    """Which page of a list."""

    page = fields.Integer(load_default=1, validate=validate.Range(min=1, max=MAX_PAGE_NUMBER))
    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


def instant(**options: Any) -> fields.AwareDateTime:  # noqa: ANN401 - marshmallow's options
    """Return a field for an aware UTC instant in ISO 8601."""
    return fields.AwareDateTime(format="iso", default_timezone=UTC, allow_none=True, **options)


@cache
def page_of(schema: type[Schema]) -> type[Schema]:
    """Return the envelope of one page of these: the same one each time, for one description."""
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


def envelope(page: Page[Any], items: Sequence[object] | None = None) -> dict[str, Any]:
    """Return a page as its envelope; `items` replaces its rows where they were shaped already."""
    return {
        "items": list(page.items if items is None else items),
        "total": page.total,
        "page": page.number,
        "page_size": page.size,
    }


def whole_list(items: Sequence[object]) -> dict[str, Any]:
    """Return a short list as an envelope of one page."""
    return {"items": list(items), "total": len(items), "page": 1, "page_size": max(1, len(items))}
