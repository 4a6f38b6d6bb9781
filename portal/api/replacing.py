"""Bodies of PUT and PATCH, made from the schema that an object is created with.

PUT replaces an object, so its body has every field: one that is left out would be reset without a
word. PATCH changes the fields that it has.
"""

from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any

from flask import request
from marshmallow import Schema, ValidationError, fields, missing

from core.errors import InvalidInputError
from core.strict_json import decode_json
from portal.api.examples import EXAMPLES
from portal.middleware.errors import flatten_errors


@cache
def replacement_of(schema: type[Schema]) -> type[Schema]:
    """Return the schema of the body that replaces an object: every field is required."""
    return _variant(schema, "Replacement", _required_fields(schema))


@cache
def change_of(schema: type[Schema]) -> type[Schema]:
    """Return the schema of the body that changes some fields."""

    def partial(self: Schema, **options: Any) -> None:  # noqa: ANN401 - marshmallow's
        schema.__init__(self, **{**options, "partial": True})

    return _variant(schema, "Patch", {"__init__": partial})


def merging(
    show: Callable[..., Any], replace: Callable[..., Any], *, body: type[Schema], answer: Schema
) -> Callable[..., Any]:
    """Return the view that changes an object by replacing it with a merged one.

    Args:
        show: returns the object.
        replace: replaces it.
        body: the schema that it is created with.
        answer: the schema that it is shown with.
    """
    body_schema, names = body, body().fields.keys()
    nested = {
        name: field
        for name, field in body().fields.items()
        if isinstance(field, fields.Nested) and not field.many
    }

    @wraps(replace)
    def change(body: dict[str, Any], **path: str) -> Any:  # noqa: ANN401 - a view's own
        # Merge the JSON as sent: the loaded values are Python's.
        sent: dict[str, Any] = decode_json(request.get_data(cache=True)) if body else {}
        shown = answer.dump(show(**path))
        present = {name: shown[name] for name in names & shown.keys()}
        for name in nested.keys() & sent.keys() & present.keys():
            if isinstance(sent[name], Mapping) and isinstance(present[name], Mapping):
                sent[name] = {**present[name], **sent[name]}
        for name, others in getattr(body_schema, "alternatives", {}).items():
            for left_out in others if name in sent else (name,):
                present.pop(left_out, None)
        try:
            merged = loader.load({**present, **sent})
        except ValidationError as error:
            raise InvalidInputError(
                "Some fields are invalid together. See 'errors'.",
                errors=flatten_errors({"json": error.messages_dict}),
            ) from None
        return replace(body=merged, **path)

    loader = body()
    change.__doc__ = "Change some fields; the others stay. With `If-Match`, only what you read."
    change.__name__ = replace.__name__.replace("replace", "change").replace("set_", "change_")
    return change


def example_of(schema: type[Schema]) -> dict[str, Any] | None:
    """Return an example of a body: that of a replacement has every field."""
    origin = schema.__mro__[1]
    example = EXAMPLES.get(schema.__name__) or EXAMPLES.get(origin.__name__)
    if example is None or not schema.__name__.endswith("ReplacementSchema"):
        return example
    body: dict[str, Any] = origin().dump(origin().load(example))
    return body


def _required_fields(schema: type[Schema]) -> dict[str, fields.Field[Any]]:
    required_fields = {}
    for name, field in schema().declared_fields.items():
        if field.load_default is not missing:
            field.required, field.load_default = True, missing
            required_fields[name] = field
    return required_fields


def _variant(schema: type[Schema], suffix: str, members: Mapping[str, Any]) -> type[Schema]:
    stem = schema.__name__.removesuffix("Schema").removesuffix("Request")
    described = {"__doc__": schema.__doc__, "__module__": schema.__module__}
    return type(f"{stem}{suffix}Schema", (schema,), {**described, **members})
