"""CUDA's driver API by ctypes: as much as the challenge needs of a GPU.

It needs no CUDA in the image: the container runtime adds the driver's library.

Source: NVIDIA, "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
# Of `cuDeviceGetAttribute`.
CLOCK_KILOHERTZ, PROCESSOR_COUNT, MAJOR, MINOR = 13, 16, 75, 76
_NAME_BYTES, _ADDRESS_BYTES, _UUID_BYTES = 256, 32, 16


class CUDAError(Exception):
    """The driver refused a call."""

    def __init__(self, name: str, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"{name}: {text or code}")


class CUDA:
    """The driver of this host."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CUDAError(LIBRARY, 0, str(error)) from error
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - any ctypes value
        """Call the driver.

        Raises:
            CUDAError: it refused, or does not have the function.
        """
        function = getattr(self._library, name, None)
        if function is None:
            raise CUDAError(name, 0, "the driver does not have it")
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CUDAError(name, code, (text.value or b"").decode())

    def count(self) -> int:
        """Return the number of GPUs."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value


class GPU:
    """One GPU, with its primary context current in this thread."""

    def __init__(self, cuda: CUDA, index: int) -> None:
        self._cuda = cuda
        self._device = ctypes.c_int()
        cuda.call("cuDeviceGet", ctypes.byref(self._device), index)
        context = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        cuda.call("cuCtxSetCurrent", context)
        self._module = ctypes.c_void_p()

    def facts(self) -> dict[str, Any]:
        """Return what the driver says of it: fields of `protocol.challenges.DeviceAnswer`."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._cuda.call("cuDeviceGetName", name, _NAME_BYTES, self._device)
        address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        self._cuda.call("cuDeviceGetPCIBusId", address, _ADDRESS_BYTES, self._device)
        memory = ctypes.c_size_t()
        self._cuda.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self._device)
        digits = (ctypes.c_ubyte * _UUID_BYTES)()
        self._cuda.call("cuDeviceGetUuid", digits, self._device)
        return {
            "uuid": f"GPU-{uuid.UUID(bytes=bytes(digits))}",
            "model": name.value.decode("utf-8", "replace"),
            "pci_address": address.value.decode().lower(),
            "memory_bytes": memory.value,
            "processor_count": self._attribute(PROCESSOR_COUNT),
            "clock_hertz": self._attribute(CLOCK_KILOHERTZ) * 1000,
            "compute_capability": f"{self._attribute(MAJOR)}.{self._attribute(MINOR)}",
        }

    def load(self, text: str) -> None:
        """Compile a module of kernels."""
        source = ctypes.create_string_buffer(text.encode())
        self._cuda.call("cuModuleLoadData", ctypes.byref(self._module), source)

    def free_bytes(self) -> int:
        """Return the free memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Return the address of new memory."""
        pointer = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def run(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:  # noqa: ANN401 - any ctypes value
        """Run a kernel to its end."""
        function = ctypes.c_void_p()
        self._cuda.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, threads, 1, 1)
        self._cuda.call("cuLaunchKernel", function, *shape, 0, None, addresses, None)
        self._cuda.call("cuCtxSynchronize")

    def read(self, pointer: ctypes.c_uint64, count: int) -> list[int]:
        """Return words of its memory."""
        words = (ctypes.c_uint64 * count)()
        self._cuda.call("cuMemcpyDtoH_v2", words, pointer, ctypes.c_size_t(ctypes.sizeof(words)))
        return list(words)

    def copy_to(self, pointer: ctypes.c_uint64, size: int, times: int) -> None:
        """Copy pinned memory of the host to the GPU, several times."""
        pinned = ctypes.c_void_p()
        self._cuda.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), 0)
        try:
            for _ in range(times):
                self._cuda.call("cuMemcpyHtoD_v2", pointer, pinned, ctypes.c_size_t(size))
        finally:
            self._cuda.call("cuMemFreeHost", pinned)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._cuda.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value
