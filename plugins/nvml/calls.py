"""Calls to one device, with a cache of unsupported ones.

An unsupported call costs as much as any other. The cache lives as long as the object, which is
replaced when NVML or the MIG mode changes and every hour.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from plugins.base import PluginRestartError
from plugins.nvml.library import LibraryStaleError, is_refusal, pynvml, raise_if_fatal

FieldKey = tuple[int, int]
"""A field's id and its scope: the link, where the field has one for each link, else 0."""

# nvmlFieldValue_t: field, scope, timestamp, latency, value type, return code, value.
_FIELD_VALUE = struct.Struct("IIqqIIQ")
_WIDE = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_MASK_OF_TYPE = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: 0xFFFF_FFFF,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: 0xFFFF,
}
_SIGN_OF_TYPE = {
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: 1 << 31,
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: 1 << 63,
}


class Calls:
    """Calls to one device that return None if unsupported or failed.

    Attributes:
        failures: how many calls failed that the device may support.
    """

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - NVML's own handle
        self.handle = handle
        self.failures = 0
        self._refused: set[tuple[object, ...]] = set()

    def ask(self, call: Callable[..., Any], *args: int) -> Any:  # noqa: ANN401 - as NVML's
        """Return `call(handle, *args)`, or None.

        Raises:
            GPULostError: the GPU is gone.
            LibraryStaleError: NVML must be reopened.
        """
        key = (call, *args)
        if key in self._refused:
            return None
        try:
            return call(self.handle, *args)
        except pynvml.NVMLError as error:
            raise_if_fatal(error)
            if is_refusal(error):
                self._refused.add(key)
            else:
                self.failures += 1
            return None


class FieldBatch:
    """Field values of one device, all read in one call with one buffer.

    NVIDIA's wrapper fills a new buffer for each reading, which takes six times as long.
    """

    def __init__(self, calls: Calls, keys: Iterable[FieldKey]) -> None:
        self._calls = calls
        self._fill(list(keys))

    def read(self) -> dict[FieldKey, int]:
        """Return the values that this device supports.

        Raises:
            GPULostError: the GPU is gone.
            LibraryStaleError: NVML must be reopened.
        """
        if not self._count or self._calls.ask(self._call) is None:
            return {}
        values: dict[FieldKey, int] = {}
        refused: set[FieldKey] = set()
        for field, scope, _, _, kind, code, value in _FIELD_VALUE.iter_unpack(self._buffer):
            if code == pynvml.NVML_SUCCESS:
                values[field, scope] = value if kind == _WIDE else _number(kind, value)
            else:
                error = pynvml.NVMLError(code)
                raise_if_fatal(error)
                if is_refusal(error):
                    refused.add((field, scope))
                else:
                    self._calls.failures += 1
        if refused:
            self._fill([key for key in self._keys if key not in refused])
        return values

    def _fill(self, keys: list[FieldKey]) -> None:
        self._keys, self._count = keys, len(keys)
        self._buffer = (pynvml.c_nvmlFieldValue_t * self._count)()
        for entry, (field, scope) in zip(self._buffer, keys, strict=True):
            entry.fieldId, entry.scopeId = field, scope

    def _call(self, handle: Any) -> bool:  # noqa: ANN401 - NVML's own handle
        try:
            function = pynvml.nvmlLib.nvmlDeviceGetFieldValues
        except AttributeError:  # drivers before 384
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
        code = function(handle, self._count, self._buffer)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return True


def _number(kind: int, value: int) -> int:
    """Return the value of NVML's union, whose unused bytes are undefined."""
    if kind in _SIGN_OF_TYPE:
        sign = _SIGN_OF_TYPE[kind]
        return (value & (sign - 1)) - (value & sign)
    return value & _MASK_OF_TYPE.get(kind, 0xFFFF_FFFF_FFFF_FFFF)


T = TypeVar("T")


def read_reopening(read: Callable[[], T], *, close: Callable[[], None]) -> T:
    """Return what `read` gives, at a second try with NVML opened again if need be.

    Raises:
        PluginRestartError: the driver was updated; only a new process can load it.
    """
    try:
        return read()
    except LibraryStaleError:
        close()
    try:
        return read()
    except LibraryStaleError as error:
        close()
        # Other plugins of this process hold NVML open, or its library is too old for good.
        raise PluginRestartError(f"NVML can't be reopened in this process: {error}") from error
