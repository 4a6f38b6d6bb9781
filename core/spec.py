"""Specs: structs whose fields carry their own texts and limits.

A field is declared once, as `gpus: Annotated[int, About("Whole GPUs.", maximum=1024)] = 0`. REST
schemas, options of the command line, rows of pages and checks of limits are made from that. The
unit of a field is the end of its name, as everywhere (`core.quantities`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from core.quantities import format_value, unit_of

_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs"}


@dataclass(frozen=True, slots=True)
class About:
    """The texts and limits of a field.

    Attributes:
        help: a sentence for REST, job files and the command line.
        label: its name on pages; by default the name of the field, without its unit.
        minimum: the smallest number.
        maximum: the largest number, or number of entries of a list; None for any.
        choices: the allowed texts, if only some are allowed.
        is_listed: whether pages list it without a layout of its own, as long as it is set.
    """

    help: str = ""
    label: str = ""
    minimum: float = 0
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    is_listed: bool = False


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a spec.

    Attributes:
        type: without None and without its annotation, such as `int` or `list[str]`.
        is_nullable: whether it may be None.
        default: its value if nobody sets it; `msgspec.NODEFAULT` where it must be set.
    """

    name: str
    type: Any
    is_nullable: bool
    about: About
    default: Any

    @property
    def label(self) -> str:
        """Its name on pages."""
        words = self.name.removesuffix(unit_of(self.name).suffix).removeprefix("is_").split("_")
        text = " ".join(_ACRONYMS.get(word, word) for word in words)
        return self.about.label or text[:1].upper() + text[1:]

    def lines(self, value: Any) -> list[str]:  # noqa: ANN401 - of the field's type
        """Return a value as pages show it, a line for each entry of a list or mapping."""
        if isinstance(value, bool):
            return ["yes" if value else "no"]
        if isinstance(value, int | float):
            return [format_value(self.name, value)]
        if isinstance(value, Mapping):
            return [f"{key}={text}" for key, text in value.items()]
        return list(map(str, value)) if isinstance(value, list) else [str(value)]

    def limit_error(self, value: Any) -> str:  # noqa: ANN401 - of the field's type
        """Return why a number, or the length of a list, is out of its limits, or ""."""
        about = self.about
        has_entries = isinstance(value, list | dict)
        if not has_entries and self.type not in (int, float):
            return ""
        number, minimum = (len(value), 0) if has_entries else (value, about.minimum)
        if number >= minimum and (about.maximum is None or number <= about.maximum):
            return ""
        if has_entries:
            return f"{self.name} has {number} entries; use at most {about.maximum:.0f}."
        allowed = f"{minimum:.15g} or more"
        if about.maximum is not None:
            allowed = f"{minimum:.15g} to {about.maximum:.15g}"
        return f"{self.name} is {number:.15g}; enter {allowed}."


@cache
def spec_fields(spec: type[msgspec.Struct]) -> Mapping[str, SpecField]:
    """Return the fields of a spec by name, in the order of their declaration."""
    hints = get_type_hints(spec, include_extras=True)
    fields = {}
    for declared in msgspec.structs.fields(spec):
        hint, about = hints[declared.name], About()
        if get_origin(hint) is Annotated:
            hint, about = get_args(hint)
        variants = [variant for variant in get_args(hint) if variant is not NoneType]
        is_nullable = NoneType in get_args(hint)
        default = declared.default
        if declared.default_factory is not msgspec.NODEFAULT:
            default = declared.default_factory()
        fields[declared.name] = SpecField(
            declared.name, variants[0] if is_nullable else hint, is_nullable, about, default
        )
    return fields


def limit_errors(spec: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Return the fields that are out of their limits, with the error of each."""
    for field in spec_fields(type(spec)).values():
        value = getattr(spec, field.name)
        if error := "" if value is None else field.limit_error(value):
            yield field.name, error


def listed_facts(spec: msgspec.Struct) -> list[tuple[str, list[str]]]:
    """Return label and lines of each listed field that is set."""
    return [
        (field.label, field.lines(value))
        for field in spec_fields(type(spec)).values()
        if field.about.is_listed and (value := getattr(spec, field.name)) != field.default
    ]
