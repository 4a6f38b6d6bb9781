"""The classes of the module `collectd`.

Source: collectd-python(5); where it is silent, the behavior of collectd 5.12 (python.so).
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from plugins.collectd.types_db import DataSet, SourceKind
from plugins.collectd.values import LONGEST_MESSAGE_BYTES, Identity, Number, clean_name
from plugins.collectd_python.dispatched import (
    CheckedAttribute,
    DispatchedNotification,
    DispatchedValues,
    Receiver,
    TextAttribute,
    TypeAttribute,
    float_of,
    text_of,
)

MAX_INT64, MAX_UINT64 = 2**63 - 1, 2**64 - 1
DEFAULT_PLUGIN = "python"

P = TypeVar("P", bound="PluginData")


class CollectdError(Exception):
    """An error of a module that is logged without a traceback."""


class Signed(int):
    """An integer to store as signed."""


class Unsigned(int):
    """An integer to store as unsigned."""


class Config:
    """One line or block of a module's configuration.

    Attributes:
        parent: enclosing block; None for the module's root.
        key: first word.
        values: other words: text, floats and booleans.
        children: nodes in the block.
    """

    __slots__ = ("children", "key", "parent", "values")

    def __init__(
        self,
        key: str,
        parent: "Config | None" = None,
        values: Sequence[object] = (),
        children: "Sequence[Config]" = (),
    ) -> None:
        self.key = key
        self.parent = parent
        self.values = tuple(values)
        self.children = tuple(children)

    def __repr__(self) -> str:
        where = "root node" if self.parent is None else "node"
        return f"{self.key!r}<collectd.Config {where} >"


class PluginData:
    """Common attributes of `Values` and `Notification`.

    Attributes:
        parameters: positional arguments of the constructor and of `dispatch`.
        shown: attributes of the subclass in its representation.
    """

    __slots__ = ("_host", "_plugin", "_plugin_instance", "_time", "_type", "_type_instance")

    receiver: ClassVar[Receiver]
    parameters: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ()

    host = TextAttribute()
    plugin = TextAttribute()
    plugin_instance = TextAttribute()
    type = TypeAttribute()
    type_instance = TextAttribute()
    time = CheckedAttribute(float_of)

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._clear()
        _assign(self, args, kwargs)

    def __repr__(self) -> str:
        parts = [f"type={self.type!r}"]
        for name in ("type_instance", "plugin", "plugin_instance", "host", "time", *self.shown):
            value = getattr(self, name)
            parts += [f"{name}={value!r}"] if value else []
        return f"collectd.{type(self).__name__}({','.join(parts)})"

    def _clear(self) -> None:
        self._host = self._plugin = self._plugin_instance = ""
        self._type = self._type_instance = ""
        self._time = 0.0


class Values(PluginData):
    """Values of one type to dispatch, or passed to a write callback."""

    __slots__ = ("_interval", "meta", "values")

    parameters: ClassVar[tuple[str, ...]] = (
        "type",
        "values",
        "plugin_instance",
        "type_instance",
        "plugin",
        "host",
        "time",
        "interval",
        "meta",
    )
    shown = ("interval", "values", "meta")
    interval = CheckedAttribute(float_of)
    values: Any
    meta: Any

    def dispatch(self, *args: object, **kwargs: object) -> None:
        """Send the values; arguments override the attributes without changing them."""
        self.receiver.take_values(_sent_values(_altered(self, args, kwargs)))

    def write(self, destination: object = None, *args: object, **kwargs: object) -> None:
        """Send the values to the write callback of this name, or to all."""
        name = None if destination is None else text_of(destination)
        self.receiver.write_values(_sent_values(_altered(self, args, kwargs)), name)

    def _clear(self) -> None:
        super()._clear()
        self._interval = 0.0
        self.values = []
        self.meta = {}


class Notification(PluginData):
    """A message to dispatch, or passed to a notification callback."""

    __slots__ = ("_message", "_severity", "meta")

    parameters: ClassVar[tuple[str, ...]] = (
        "type",
        "message",
        "plugin_instance",
        "type_instance",
        "plugin",
        "host",
        "time",
        "severity",
        "meta",
    )
    shown = ("severity", "message", "meta")
    message = TextAttribute(LONGEST_MESSAGE_BYTES)
    severity = CheckedAttribute(cast("Callable[[object], int]", operator.index))
    meta: Any

    def dispatch(self, *args: object, **kwargs: object) -> None:
        """Send the notification; arguments override the attributes."""
        sent = _altered(self, args, kwargs)
        self.receiver.take_notification(
            DispatchedNotification(
                identity=_identity(sent),
                severity=sent.severity,
                message=sent.message,
                time=sent.time,
                meta=_meta(sent.meta),
            )
        )

    def _clear(self) -> None:
        super()._clear()
        self._message = ""
        self._severity = 0
        self.meta = {}


def bound(kind: type[P], receiver: Receiver) -> type[P]:
    """Return a subclass whose objects dispatch to this receiver."""
    body = {"__slots__": (), "__module__": "collectd", "receiver": receiver}
    return cast("type[P]", type(kind.__name__, (kind,), body))


def _assign(target: PluginData, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    names = target.parameters
    if len(args) > len(names):
        raise TypeError(f"function takes at most {len(names)} arguments ({len(args)} given)")
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        if name not in names:
            raise TypeError(f"{name!r} is an invalid keyword argument for this function")
        setattr(target, name, value)


def _altered(data: P, args: tuple[object, ...], kwargs: Mapping[str, object]) -> P:
    """Return a copy with the arguments of `dispatch` applied."""
    sent = copy.copy(data)
    _assign(sent, args, kwargs)
    if not sent.type:
        raise RuntimeError("type not set")
    return sent


def _identity(sent: PluginData) -> Identity:
    return Identity(
        host=clean_name(sent.host) or sent.receiver.hostname,
        plugin=clean_name(sent.plugin) or DEFAULT_PLUGIN,
        plugin_instance=clean_name(sent.plugin_instance),
        type=sent.type,
        type_instance=clean_name(sent.type_instance),
    )


def _sent_values(sent: Values) -> DispatchedValues:
    return DispatchedValues(
        identity=_identity(sent),
        values=_numbers(sent.values, sent.receiver.types[sent.type], sent.type),
        time=sent.time,
        interval=sent.interval,
        meta=_meta(sent.meta),
    )


def _numbers(values: object, data_set: DataSet, name: str) -> tuple[Number, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError("values must be list or tuple")
    if len(values) != len(data_set):
        raise RuntimeError(f"type {name} needs {len(data_set)} values, got {len(values)}")
    return tuple(
        float(value) if source.kind is SourceKind.GAUGE else _in_range(int(value), source.kind)
        for source, value in zip(data_set, values, strict=True)
    )


def _in_range(number: int, kind: SourceKind) -> int:
    if kind is SourceKind.DERIVE:
        if not -MAX_INT64 - 1 <= number <= MAX_INT64:
            raise OverflowError("int too big to convert")
    elif number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    elif number > MAX_UINT64:
        raise OverflowError("int too big to convert")
    return number


def _meta(meta: object) -> dict[str, object]:
    """Return meta data as collectd stores it: text, booleans, floats, signed and unsigned."""
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise TypeError("meta must be a dict")
    return {text_of(key): _meta_value(value) for key, value in meta.items()}


def _meta_value(value: object) -> object:
    if isinstance(value, bool | float | Signed | Unsigned | str):
        return value
    if isinstance(value, int):
        return Signed(value) if value <= MAX_INT64 else Unsigned(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
