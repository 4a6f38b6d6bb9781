"""MIG instances, each with its own memory, multiprocessors and activity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plugins.nvml.calls import Calls
from plugins.nvml.library import memory_info, pynvml
from plugins.nvml.profiling import Profile
from plugins.nvml.readings import Fields, memory_fields

# Fields of a GPU that a slice lacks.
_WHOLE_GPU_ONLY = ("memory_reserved_bytes",)


@dataclass(frozen=True, slots=True)
class Slice:
    """One MIG instance; `model` ends with its profile, such as `MIG 1g.10gb`."""

    index: int
    uuid: str
    model: str
    handle: Any
    multiprocessors: int | None
    gpu_instance: int | None

    @property
    def profile(self) -> str:
        """Its profile, such as `1g.10gb`; "" for a driver that does not name it."""
        return self.model.rpartition("MIG ")[2] if "MIG " in self.model else ""


def is_mig_enabled(calls: Calls) -> bool | None:
    """Return whether MIG is enabled; None if unsupported."""
    modes = calls.ask(pynvml.nvmlDeviceGetMigMode)
    return None if modes is None else modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def find_slices(calls: Calls) -> list[Slice]:
    """Return the slices of a GPU in MIG mode, which may change at any time."""
    slices = []
    for index in range(calls.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
        handle = calls.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, index)
        own = None if handle is None else Calls(handle)
        uuid = None if own is None else own.ask(pynvml.nvmlDeviceGetUUID)
        if own is not None and uuid is not None:
            slices.append(_describe(own, index, str(uuid)))
    return slices


def slice_fields(mig_slice: Slice) -> Fields:
    """Return the fields of `gpu_slice`."""
    fields = memory_fields(Calls(mig_slice.handle).ask(memory_info))
    own = {name: value for name, value in fields.items() if name not in _WHOLE_GPU_ONLY}
    return {**own, "multiprocessors": mig_slice.multiprocessors}


def _describe(calls: Calls, index: int, uuid: str) -> Slice:
    attributes = calls.ask(pynvml.nvmlDeviceGetAttributes_v2)
    return Slice(
        index=index,
        uuid=uuid,
        model=str(calls.ask(pynvml.nvmlDeviceGetName) or "MIG"),
        handle=calls.handle,
        multiprocessors=None if attributes is None else int(attributes.multiprocessorCount),
        gpu_instance=calls.ask(pynvml.nvmlDeviceGetGpuInstanceId),
    )


class SliceProfiles:
    """The activity of the slices of one GPU, on Hopper and newer."""

    def __init__(self) -> None:
        self._profiles: dict[str, Profile] = {}

    def read(self, calls: Calls, slices: Sequence[Slice]) -> dict[str, Fields]:
        """Return the activity of each slice since the last call, by UUID.

        Args:
            calls: those of the GPU.
            slices: all of them.

        Raises:
            GPULostError: the GPU is gone.
            LibraryStaleError: NVML must be reopened.
        """
        for uuid in self._profiles.keys() - {mig_slice.uuid for mig_slice in slices}:
            self._profiles.pop(uuid).close()
        fields: dict[str, Fields] = {}
        for mig_slice in slices:
            if mig_slice.gpu_instance is None:
                continue
            if mig_slice.uuid not in self._profiles:
                profile = Profile(with_pcie=False, gpu_instance=mig_slice.gpu_instance)
                self._profiles[mig_slice.uuid] = profile
            fields[mig_slice.uuid] = self._profiles[mig_slice.uuid].read(calls)
        return fields

    def close(self) -> None:
        """Free the samples; the next reading is a first one."""
        for profile in self._profiles.values():
            profile.close()
        self._profiles.clear()
