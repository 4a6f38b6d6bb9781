"""Fields of REST schemas for the specs of jobs and rules; see `core.spec`.

Limits are documented, and the service checks them with everything else, so that a request is told
all of its errors at once. Sizes and durations are numbers of bytes and seconds, or texts such as
`8GiB` and `2h`.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import EnumType
from functools import partial
from typing import Any, get_args, get_origin

import msgspec
from marshmallow import Schema, ValidationError, fields

from core.money import plain
from core.quantities import parse_duration, parse_size
from core.spec import SpecField, spec_fields
from portal.api.schemas import StrictSchema

_BIG = 2**53
# Texts that numbers of a unit may be, by the end of a field's name.
_NOTATIONS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "_bytes": (parse_size, "8GiB"),
    "_seconds": (parse_duration, "2h"),
}

_LISTS, _MAPPINGS = (list, tuple, Sequence), (dict, Mapping)
Schemas = Mapping[Any, type[Schema]]
_NO_SCHEMAS: Schemas = {}


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


class DecimalField(fields.Decimal):
    """An exact number, such as an amount of money: text in responses, which no client rounds."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - marshmallow's
        text = {"type": "string", "format": "decimal", "example": "2.45"}
        limits = {"minimum", "maximum"}
        described = {k: v for k, v in options.pop("metadata", {}).items() if k not in limits}
        super().__init__(as_string=True, metadata={**described, **text}, **options)

    def _serialize(self, value: Any, attr: str | None, obj: Any, **_options: Any) -> Any:  # noqa: ANN401, ARG002 - marshmallow's
        if value is None:
            return None
        return plain(Decimal(value)) if self.places is None else f"{self._validated(value):f}"


class _EnumField(fields.Enum[Any]):
    """A member of an enum, which is stored as its value in parts of a job."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **options: Any) -> Any:  # noqa: ANN401 - marshmallow's
        member = None if value is None else self.enum(value)
        return super()._serialize(member, attr, obj, **options)


_PLAIN: Mapping[type, Callable[..., fields.Field[Any]]] = {
    str: fields.String,
    int: partial(fields.Integer, strict=True),
    float: fields.Float,
    bool: fields.Boolean,
    Decimal: DecimalField,
}


def request_schema(spec: type, schemas: Schemas = _NO_SCHEMAS) -> type[Schema]:
    """Return the schema of a spec in a request body; `schemas` are those of structs in it."""
    fields_by_name = {
        field.name: _request_field(field, schemas) for field in spec_fields(spec).values()
    }
    return StrictSchema.from_dict(fields_by_name, name=f"{spec.__name__}FieldsSchema")


def response_schema(spec: type, schemas: Schemas = _NO_SCHEMAS) -> type[Schema]:
    """Return the schema of a spec in a response."""
    fields_by_name = {
        field.name: _plain_field(
            field, schemas, metadata=_described(field), allow_none=field.is_nullable
        )
        for field in spec_fields(spec).values()
    }
    return Schema.from_dict(fields_by_name, name=f"{spec.__name__}ShownSchema")


def _request_field(field: SpecField, schemas: Schemas) -> fields.Field[Any]:
    options: dict[str, Any] = {"required": True}
    if field.default is not msgspec.NODEFAULT:
        is_shared = isinstance(field.default, list | dict)
        default = field.default.copy if is_shared else field.default
        if isinstance(default, msgspec.Struct) or (default and isinstance(default, tuple)):
            default = partial(msgspec.to_builtins, default)
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
    if outer in _LISTS:
        choices = options["metadata"].pop("enum", None)
        text = fields.String(metadata={"enum": choices})
        item = text if choices else _item_field(get_args(field.type)[0], schemas)
        return fields.List(item, **options)
    if outer in _MAPPINGS:
        values = _item_field(get_args(field.type)[1], schemas)
        return fields.Dict(keys=fields.String(), values=values, **options)
    if isinstance(field.type, EnumType):
        return _EnumField(field.type, by_value=fields.String, **options)
    if field.type in schemas:
        return fields.Nested(schemas[field.type], **options)
    return _PLAIN[field.type](**options)


def _item_field(kind: Any, schemas: Schemas) -> fields.Field[Any]:  # noqa: ANN401 - a type
    if kind in schemas:
        return fields.Nested(schemas[kind])
    if get_origin(kind) in _LISTS:
        return fields.List(_item_field(get_args(kind)[0], schemas))
    return _PLAIN[kind]() if kind in _PLAIN else fields.Dict()


def _described(field: SpecField) -> dict[str, Any]:
    described: dict[str, Any] = {"description": field.about.help} if field.about.help else {}
    if choices := list(map(str, field.about.choices)):
        described["enum"] = [*choices, None] if field.is_nullable else choices
    return described


def _limits(field: SpecField) -> dict[str, Any]:
    about, outer = field.about, get_origin(field.type)
    if about.maximum is None:
        return {}
    if outer is not None:
        return {"maxItems" if outer in _LISTS else "maxProperties": about.maximum}
    return {"minimum": about.minimum, "maximum": min(about.maximum, _BIG)}
