"""A reading that opens NVML again when the driver was changed under it."""

from collections.abc import Callable
from typing import TypeVar

from plugins.base import PluginRestartError
from plugins.nvml.library import LibraryStaleError

T = TypeVar("T")


def read_reopening(read: Callable[[], T], *, close: Callable[[], None]) -> T:
    """Return what `read` gives, at a second try with NVML opened again if need be.

    Raises:
        PluginRestartError: only a new process can load the driver's new library.
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
        raise PluginRestartError(f"NVML can't be opened again here: {error}") from error
