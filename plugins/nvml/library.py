"""NVML opened, its devices listed, and opened again when the driver was changed under us."""

import warnings
from dataclasses import dataclass
from typing import Any

from plugins.base import PluginError, PluginUnavailableError

with warnings.catch_warnings():
    # The distribution `pynvml` puts a hook in front of NVIDIA's own module of that name, which
    # warns at each import that it is deprecated. What is imported is NVIDIA's.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

__all__ = ["Device", "NVMLLibrary", "memory_info", "pynvml"]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as NVML knows it; `handle` is NVML's own."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    handle: Any


def memory_info(handle: Any) -> Any:  # noqa: ANN401 - NVML's own handle and structure
    """Return total, used and free bytes; version 2 keeps the driver's reserve out of `used`.

    Raises:
        pynvml.NVMLError: not supported by this GPU, or the GPU is lost.
    """
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 510
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


class NVMLLibrary:
    """NVML, opened on first use. The library counts its users, so many may be open at once."""

    def __init__(self) -> None:
        self._is_open = False

    def devices(self) -> list[Device]:
        """Return the GPUs that answer, in index order.

        Raises:
            PluginUnavailableError: there is no driver or no GPU here.
            PluginError: the driver is here and does not answer; the next call opens it again.
        """
        self._open()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            raise PluginError(f"NVML does not list the GPUs: {error}") from error
        if count == 0:
            raise PluginUnavailableError("the NVIDIA driver sees no GPU")
        found = (self._device(index) for index in range(count))
        return [device for device in found if device is not None]

    def driver_version(self) -> str:
        """Return the driver's version, or "" when it does not say."""
        self._open()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return ""

    def close(self) -> None:
        """Let the library go; it is opened again when asked the next time."""
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # gone already, as after a driver update

    def _open(self) -> None:
        if self._is_open:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in {
                pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
                pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            }:
                raise PluginUnavailableError(f"no NVIDIA driver here: {error}") from error
            raise PluginError(f"NVML can't be opened: {error}") from error
        self._is_open = True

    def _device(self, index: int) -> Device | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return Device(
                index=index,
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                model=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=_memory_bytes(handle),
                handle=handle,
            )
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                self.close()
                raise PluginError(f"the driver was updated: {error}") from error
            return None  # this GPU is lost; the others go on


def _memory_bytes(handle: Any) -> int:  # noqa: ANN401 - NVML's own handle
    try:
        return int(memory_info(handle).total)
    except pynvml.NVMLError_NotSupported:  # memory shared with the host
        return 0
