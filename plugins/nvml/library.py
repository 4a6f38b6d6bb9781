"""Opens NVML, lists its devices, and reopens it when the driver changes.

NVML errors are of four kinds: a call is *refused* if the device does not support it, a GPU is
*lost* if it fell off the bus, the library is *stale* if it must be reopened, and all others are
*transient*: they say nothing about the GPU. Only a handle that can't be had is like a lost GPU.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugins.base import PluginError, PluginRestartError, PluginUnavailableError

with warnings.catch_warnings():
    # The distribution `pynvml` puts a hook in front of NVIDIA's own module of that name, which
    # warns at each import that it is deprecated. What is imported is NVIDIA's.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

__all__ = [
    "Device",
    "GPULostError",
    "LibraryStaleError",
    "NVMLLibrary",
    "QueryFailedError",
    "is_refusal",
    "memory_info",
    "pynvml",
    "raise_if_fatal",
]

NO_DRIVER = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
STALE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
REFUSED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED,
    }
)

# A query that fails for a moment is tried this often before it counts as failed.
TRIES = 3


class GPULostError(PluginError):
    """The GPU fell off the bus or needs a reset; other GPUs are not affected."""


class QueryFailedError(PluginError):
    """One query failed; the GPU may be well."""


class LibraryStaleError(PluginError):
    """NVML must be reopened, as after a driver update."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as NVML knows it; `handle` is NVML's own.

    `memory_bytes` is None if unknown, and if the memory is the host's.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int | None
    has_unified_memory: bool
    handle: Any


def is_refusal(error: pynvml.NVMLError) -> bool:
    """Return whether the device will never support this call."""
    return error.value in REFUSED


def raise_if_fatal(error: pynvml.NVMLError) -> None:
    """Return if the error concerns only this call.

    Raises:
        GPULostError: the GPU is gone.
        LibraryStaleError: NVML must be reopened.
    """
    if error.value in LOST:
        raise GPULostError(f"the GPU is lost: {error}") from error
    if error.value in STALE:
        raise LibraryStaleError(f"NVML must be opened again: {error}") from error


def memory_info(handle: Any) -> Any:  # noqa: ANN401 - NVML's own handle and structure
    """Return total, used and free bytes; version 2 excludes the driver's reserve from `used`.

    Raises:
        pynvml.NVMLError: not supported by this GPU, or the GPU is lost.
    """
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (
        pynvml.NVMLError_FunctionNotFound,  # drivers before 510
        pynvml.NVMLError_ArgumentVersionMismatch,
    ):
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


class NVMLLibrary:
    """NVML, opened on first use. The library counts its users, so many may be open at once."""

    def __init__(self) -> None:
        self._is_open = False
        self._identities: dict[int, tuple[str, str]] = {}

    def devices(self) -> list[Device]:
        """Return the responding GPUs, in index order.

        Raises:
            PluginUnavailableError: no driver or no GPU.
            PluginError: the driver does not answer; the next call reopens it.
        """
        try:
            devices = [self._device_or_none(index) for index in range(self.count())]
        except LibraryStaleError:
            self.close()
            raise
        return [device for device in devices if device is not None]

    def count(self) -> int:
        """Return the number of GPUs, including lost ones.

        Raises:
            PluginUnavailableError: no driver or no GPU.
            PluginError: the driver does not answer.
        """
        self._open()
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise_if_fatal(error)
            self.close()
            raise PluginError(f"NVML does not list the GPUs: {error}") from error
        if count == 0:
            raise PluginUnavailableError("the NVIDIA driver has no GPU")
        return count

    def device(self, index: int) -> Device | None:
        """Return a GPU; None without permission.

        Raises:
            GPULostError: it does not answer.
            QueryFailedError: it answers, but does not identify itself this time.
            LibraryStaleError: NVML must be reopened.
        """
        try:
            handle = _retried(pynvml.nvmlDeviceGetHandleByIndex, index)
        except pynvml.NVMLError as error:
            raise_if_fatal(error)
            if is_refusal(error):
                return None
            # A GPU that fell off the bus before NVML was opened returns an unknown error.
            raise GPULostError(f"GPU {index} does not answer: {error}") from error
        identity = self._identity(index, handle)
        if identity is None:
            return None
        memory_bytes, has_unified_memory = _memory(handle)
        return Device(
            index=index,
            uuid=identity[0],
            model=identity[1],
            memory_bytes=memory_bytes,
            has_unified_memory=has_unified_memory,
            handle=handle,
        )

    def ask(self, call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - as NVML's
        """Return the result of an NVML call, None if unsupported.

        Raises:
            QueryFailedError: the call failed, or the GPU is lost.
            LibraryStaleError: NVML must be reopened; the next `devices` does.
        """
        try:
            return call(*args)
        except pynvml.NVMLError as error:
            if error.value in STALE:
                self.close()
                raise_if_fatal(error)
            if is_refusal(error):
                return None
            raise QueryFailedError(f"NVML query failed: {error}") from error

    def close(self) -> None:
        """Close the library; the next call reopens it, when GPUs may have other indexes."""
        self._identities.clear()
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # already closed, as after a driver update

    def _open(self) -> None:
        if self._is_open:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in NO_DRIVER:
                raise PluginUnavailableError(f"no NVIDIA driver: {error}") from error
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                raise PluginRestartError(
                    "the NVIDIA driver and its loaded library differ in version. If a new "
                    "process reports this too, load the new kernel module or reboot the host"
                ) from error
            raise PluginError(f"NVML can't be opened: {error}") from error
        self._is_open = True

    def _identity(self, index: int, handle: Any) -> tuple[str, str] | None:  # noqa: ANN401
        """Return UUID and model; None without permission.

        While the library is open, an index is always the same GPU, so a failed query changes
        nothing.
        """
        try:
            uuid = str(_retried(pynvml.nvmlDeviceGetUUID, handle))
            self._identities[index] = uuid, str(_retried(pynvml.nvmlDeviceGetName, handle))
        except pynvml.NVMLError as error:
            raise_if_fatal(error)
            if is_refusal(error):
                return None
            if index not in self._identities:
                raise QueryFailedError(f"GPU {index} has no UUID now: {error}") from error
        return self._identities[index]

    def _device_or_none(self, index: int) -> Device | None:
        try:
            return self.device(index)
        except (GPULostError, QueryFailedError):
            return None


def _retried(call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - as NVML's
    """Return the result of a call, of which a few transient failures are ignored."""
    for _ in range(TRIES - 1):
        try:
            return call(*args)
        except pynvml.NVMLError as error:
            if error.value in LOST | STALE | REFUSED:
                raise
    return call(*args)


def _memory(handle: Any) -> tuple[int | None, bool]:  # noqa: ANN401 - NVML's own handle
    """Return the memory of a GPU, and whether it shares that of the host."""
    try:
        return int(_retried(memory_info, handle).total), False
    except pynvml.NVMLError as error:
        raise_if_fatal(error)
        return None, error.value == pynvml.NVML_ERROR_NOT_SUPPORTED
