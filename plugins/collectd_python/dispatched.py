"""Dispatched values and notifications, and the attributes that check them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, SupportsFloat, TypeVar, cast

from plugins.collectd.types_db import Types
from plugins.collectd.values import LONGEST_NAME_BYTES, Identity, Number, cut

Meta = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedValues:
    """Values at one instant; times in seconds, 0 if unset."""

    identity: Identity
    values: tuple[Number, ...]
    time: float
    interval: float
    meta: Meta = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedNotification:
    """A message about a series; time in seconds, 0 if unset."""

    identity: Identity
    severity: int
    message: str
    time: float
    meta: Meta = field(default_factory=dict)


Dispatched = DispatchedValues | DispatchedNotification


class Receiver(Protocol):
    """Receives what modules dispatch."""

    hostname: str
    types: Types

    def take_values(self, values: DispatchedValues) -> None:
        """Accept values for the writers and the agent."""

    def write_values(self, values: DispatchedValues, destination: str | None) -> None:
        """Pass values to one writer, or to all.

        Raises:
            RuntimeError: there is no such writer.
        """

    def take_notification(self, notification: DispatchedNotification) -> None:
        """Pass a notification to the registered callbacks."""


class CheckedAttribute(Generic[T]):
    """An attribute whose values are checked and converted when they are set."""

    def __init__(self, convert: Callable[[object], T]) -> None:
        self._convert = convert
        self._slot = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> T:
        return cast("T", getattr(instance, self._slot))

    def __set__(self, instance: object, value: object) -> None:
        setattr(instance, self._slot, self._convert(value))


class TextAttribute(CheckedAttribute[str]):
    """A name: accepts text or bytes, truncated as in collectd."""

    def __init__(self, longest_bytes: int = LONGEST_NAME_BYTES) -> None:
        super().__init__(lambda value: cut(text_of(value), longest_bytes))

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


def float_of(value: object) -> float:
    """Convert a number of seconds.

    Raises:
        TypeError: it is not a number.
    """
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def text_of(value: object) -> str:
    """Convert an argument of a module to text.

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
