"""Fields of REST schemas for the specs of jobs; see `core.spec`.

Limits are documented, and the service checks them with everything else, so that a request is told
all of its errors at once. Sizes and durations are numbers of bytes and seconds, or texts such as
`8GiB` and `2h`.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import EnumType
from functools import partial
from typing import Any, get_args, get_origin

import msgspec
from marshmallow import Schema, ValidationError, fields, validate

from core.quantities import parse_duration, parse_size
from core.spec import SpecField, spec_fields

_BIG = 2**53
# Texts that numbers of a unit may be, by the end of a field's name.
_NOTATIONS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "_bytes": (parse_size, "8GiB"),
    "_seconds": (parse_duration, "2h"),
}

_PLAIN: Mapping[type, Callable[..., fields.Field[Any]]] = {
    str: fields.String,
    int: partial(fields.Integer, strict=True),
    float: fields.Float,
    bool: fields.Boolean,
}
Schemas = Mapping[Any, type[Schema]]


class QuantityField(fields.Field[int]):
    """A whole number of a unit, or a text with a unit, such as `example`."""

    def __init__(self, parse: Callable[[str], float], example: str, **options: Any) -> None:  # noqa: ANN401 - marshmallow's
        limits = options.pop("metadata")
        description = limits.pop("description")
        text = {"type": "string", "example": example}
        variants = [{"type": "integer", **limits}, text]
        described = {"description": description, "anyOf": variants}
        super().__init__(metadata=described, **options)
        self._parse = parse

    def _deserialize(
        self,
        value: Any,  # noqa: ANN401 - JSON
        attr: str | None,  # noqa: ARG002
        data: Mapping[str, Any] | None,  # noqa: ARG002
        **_options: object,
    ) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise ValidationError("Not a valid integer.")
        try:
            return int(self._parse(value))
        except (ValueError, OverflowError) as error:
            raise ValidationError(f"{error}.".replace("..", ".")) from None


def request_fields(spec: type[msgspec.Struct], schemas: Schemas) -> dict[str, fields.Field[Any]]:
    """Return the fields of a spec in a request body; `schemas` are those of structs in it."""
    return {field.name: _request_field(field, schemas) for field in spec_fields(spec).values()}


def response_fields(spec: type[msgspec.Struct], schemas: Schemas) -> dict[str, fields.Field[Any]]:
    """Return the fields of a spec in a response."""
    return {
        field.name: _plain_field(field, schemas, metadata=_described(field))
        for field in spec_fields(spec).values()
    }


def _request_field(field: SpecField, schemas: Schemas) -> fields.Field[Any]:
    options: dict[str, Any] = {"required": True}
    if field.default is not msgspec.NODEFAULT:
        is_shared = isinstance(field.default, list | dict)
        default = field.default.copy if is_shared else field.default
        options = {"load_default": default, "allow_none": field.is_nullable}
    options["metadata"] = _described(field) | _limits(field)
    for suffix, notation in _NOTATIONS.items():
        if field.type is int and field.name.endswith(suffix):
            return QuantityField(*notation, **options)
    return _plain_field(field, schemas, **options)


def _plain_field(
    field: SpecField,
    schemas: Schemas,
    **options: Any,  # noqa: ANN401 - marshmallow's
) -> fields.Field[Any]:
    outer = get_origin(field.type)
    if outer is dict:
        return fields.Dict(keys=fields.String(), values=fields.String(), **options)
    if outer is list:
        (item,) = get_args(field.type)
        choices = options["metadata"].pop("enum", None)
        text = fields.String(metadata={"enum": choices} if choices else {})
        return fields.List(fields.Nested(schemas[item]) if item in schemas else text, **options)
    if isinstance(field.type, EnumType):
        # A text, because that is how parts of a job are stored.
        members: Iterable[str] = field.type.__members__.values()
        return fields.String(validate=validate.OneOf(list(map(str, members))), **options)
    if field.type in schemas:
        return fields.Nested(schemas[field.type], **options)
    return _PLAIN[field.type](**options)


def _described(field: SpecField) -> dict[str, Any]:
    return {"description": field.about.help} if field.about.help else {}


def _limits(field: SpecField) -> dict[str, Any]:
    about = field.about
    if about.choices:
        return {"enum": [*map(str, about.choices), *([None] if field.is_nullable else [])]}
    if get_origin(field.type) is not None:
        name = "maxItems" if get_origin(field.type) is list else "maxProperties"
        return {} if about.maximum is None else {name: about.maximum}
    if field.type not in (int, float):
        return {}
    return {"minimum": about.minimum, "maximum": min(about.maximum or _BIG, _BIG)}
