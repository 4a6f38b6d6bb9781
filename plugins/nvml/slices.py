"""MIG instances, each with its own memory and multiprocessors."""

from dataclasses import dataclass
from typing import Any

from plugins.nvml.calls import Calls
from plugins.nvml.library import memory_info, pynvml
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
    )
