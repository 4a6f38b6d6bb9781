"""Specs: structs and dataclasses whose fields carry their own texts and limits.

A field is declared once, as `gpus: Annotated[int, About("Whole GPUs.", maximum=1024)] = 0`. REST
schemas, options of the command line, rows of pages and checks of limits are made from that. The
unit of a field is the end of its name, as everywhere (`core.quantities`).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from core.quantities import format_value, unit_of

MAX_INTEGER = 2**63 - 1
"""The largest number that databases store; as a limit, there is none."""
_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs"}


@dataclass(frozen=True, slots=True)
class About:
    """The texts and limits of a field.

    Attributes:
        help: a sentence for REST, job files and the command line.
        label: its name on pages; by default the name of the field, without its unit.
        minimum: the smallest number.
        maximum: the largest number, or number of entries; None if the field has no limits.
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
        minimum, maximum = self.about.minimum, self.about.maximum
        if maximum is None:
            return ""
        if isinstance(value, list | tuple | dict):
            problem = f"{self.name} has {len(value)} entries; use at most {maximum:.0f}."
            return problem if len(value) > maximum else ""
        if minimum <= value <= maximum:
            return ""
        least = format_value(self.name, minimum) if self.name.endswith("_bytes") else f"{minimum:g}"
        allowed = f"{least} or more" if maximum >= MAX_INTEGER else f"{least} to {maximum:.15g}"
        return f"{self.name} is {value:.15g}; enter {allowed}."


@cache
def spec_fields(spec: type) -> Mapping[str, SpecField]:
    """Return the fields of a spec by name, in the order of their declaration."""
    hints = get_type_hints(spec, include_extras=True)
    fields = {}
    for name, default in _defaults(spec):
        hint, about = hints[name], About()
        if get_origin(hint) is Annotated:
            hint, about = get_args(hint)
        is_nullable = NoneType in get_args(hint)
        if is_nullable:
            (hint,) = (variant for variant in get_args(hint) if variant is not NoneType)
        fields[name] = SpecField(name, hint, is_nullable, about, default)
    return fields


def _defaults(spec: type) -> Iterator[tuple[str, Any]]:
    declared: Iterable[Any]
    missing: Any
    if dataclasses.is_dataclass(spec):
        declared, missing = dataclasses.fields(spec), dataclasses.MISSING
    else:
        declared, missing = msgspec.structs.fields(spec), msgspec.NODEFAULT
    for field in declared:
        factory: Any = field.default_factory
        if factory is not missing:
            yield field.name, factory()
        else:
            yield field.name, msgspec.NODEFAULT if field.default is missing else field.default


def limit_errors(spec: object) -> Iterator[tuple[str, str]]:
    """Return the fields that are out of their limits, with the error of each."""
    kind: type = type(spec)
    for field in spec_fields(kind).values():
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
