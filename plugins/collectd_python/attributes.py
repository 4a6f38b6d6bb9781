"""Attributes of collectd's classes: they convert and check what is set, as collectd's do."""

import operator
from typing import SupportsFloat, SupportsIndex, cast

from plugins.collectd.values import LONGEST_NAME_BYTES, cut
from plugins.collectd_python.dispatched import Receiver


class TextAttribute:
    """A name: takes text or bytes, and is cut where collectd cuts it."""

    def __init__(self, longest_bytes: int = LONGEST_NAME_BYTES) -> None:
        self._longest_bytes = longest_bytes
        self._slot = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> str:
        return cast("str", getattr(instance, self._slot))

    def __set__(self, instance: object, value: object) -> None:
        setattr(instance, self._slot, cut(text_of(value), self._longest_bytes))

    def __delete__(self, instance: object) -> None:
        raise TypeError("Cannot delete this attribute")


class TypeAttribute(TextAttribute):
    """The name of a type, which the object's receiver must know."""

    def __set__(self, instance: object, value: object) -> None:
        name = text_of(value)
        receiver: Receiver = instance.receiver  # type: ignore[attr-defined] # PluginData has it
        if name not in receiver.types:
            raise TypeError(f"Dataset {name} not found")
        super().__set__(instance, name)


class FloatAttribute:
    """A number of seconds."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> float:
        return cast("float", getattr(instance, self._slot))

    def __set__(self, instance: object, value: object) -> None:
        if not isinstance(value, SupportsFloat):
            raise TypeError(f"must be real number, not {type(value).__name__}")
        setattr(instance, self._slot, float(value))


class IntegerAttribute:
    """A whole number."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> int:
        return cast("int", getattr(instance, self._slot))

    def __set__(self, instance: object, value: object) -> None:
        setattr(instance, self._slot, operator.index(cast("SupportsIndex", value)))


def text_of(value: object) -> str:
    """Return text that a module gave.

    Raises:
        TypeError: it is neither text nor bytes, or holds a NUL.
    """
    if isinstance(value, bytes | bytearray):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise TypeError(f"expected str, bytes or bytearray, {type(value).__name__} found")
    if "\0" in value:
        raise TypeError("expected a string without null bytes")
    return value
