"""Cuts GPUs by MIG over NVML: all facts about profiles and places are the driver's.

The driver lets only root, or a process with CAP_SYS_ADMIN, see and change GPU instances.
"""

import logging
import math
from collections.abc import Callable, Iterator
from ctypes import Array, byref, c_uint
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from plugins.base import PluginError, PluginRestartError, PluginUnavailableError
from plugins.mig import MIGGPU, MIGError, MIGInUseError, MIGPermissionError
from plugins.nvml.library import Device, NVMLLibrary, is_refusal, pynvml
from protocol.gpu_slices import MAX_SLOTS, MIGInstance, MIGProfile

Ask = Callable[..., Any]
"""Calls NVML; returns None if the device or the user may not."""
T = TypeVar("T")

log = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
MEBIBYTES_PER_GIBIBYTE = 1024
_ENABLED = pynvml.NVML_DEVICE_MIG_ENABLE
_SHARED = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_NO_PERMISSION = (
    "the driver does not let this agent cut GPUs: give its service the capability CAP_SYS_ADMIN, "
    "as docs/gpu-slices.md says"
)
_REASONS = {
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "other instances take the slots or media engines",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset: drain the appliance and reboot it",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU or its driver doesn't support it",
}


@dataclass(frozen=True, slots=True)
class _Instance:
    """A GPU instance as NVML knows it."""

    handle: Any
    instance_id: int
    profile: str
    start: int
    slots: int


def read_mig_profiles(ask: Ask, handle: Any) -> list[MIGProfile]:  # noqa: ANN401 - NVML's own
    """Return the profiles of a GPU whose instances depend on slots only, the largest first.

    Those that also need media engines, such as `1g.10gb+me`, exist less often than they fit.
    """
    profiles = [
        MIGProfile(
            name=_name(info),
            profile_id=int(info.id),
            memory_bytes=int(info.memorySizeMB) * MEBIBYTE,
            multiprocessors=int(info.multiprocessorCount),
            slots=slots,
            starts=starts,
        )
        for info in _profile_infos(ask, handle)
        for slots, starts in [_places(ask, handle, info.id)]
        if starts and info.instanceCount >= _disjoint(starts, slots)
    ]
    return sorted(profiles, key=lambda profile: (-profile.slots, -profile.multiprocessors))


def read_mig_instances(ask: Ask, handle: Any) -> list[MIGInstance]:  # noqa: ANN401 - NVML's own
    """Return the instances of a GPU, by first slot; none without permission to see them."""
    uuids = _uuids(ask, handle)
    instances = [
        MIGInstance(
            uuid=uuids.get(made.instance_id, ""),
            profile=made.profile,
            start=made.start,
            slots=made.slots,
        )
        for made in _instances(ask, handle)
    ]
    return sorted(instances, key=lambda instance: instance.start)


class NVMLMIGDriver:
    """Cuts GPUs by MIG over NVML, whose calls may hang: it belongs into a worker process."""

    def __init__(self) -> None:
        self._library = NVMLLibrary()

    def read(self) -> list[MIGGPU]:
        """Return the GPUs that know MIG."""
        try:
            devices = _tried(self._library.devices)
        except PluginUnavailableError:
            return []
        gpus = (self._read(device) for device in devices)
        return [gpu for gpu in gpus if gpu is not None]

    def set_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG on or off; the driver says if it waits for a reset."""
        device = self._device(gpu_uuid)
        status = _tried(lambda: pynvml.nvmlDeviceSetMigMode(device.handle, int(enabled)))
        if status == pynvml.NVML_ERROR_IN_USE:
            raise MIGInUseError(f"a process uses GPU {gpu_uuid}: its MIG mode can't change")

    def create(self, gpu_uuid: str, profile: str, start: int) -> MIGInstance:
        """Make a GPU instance and a compute instance of all of it."""
        device = self._device(gpu_uuid)
        made = self._instance_at(device, start)
        if made is not None and made.profile != profile:
            raise MIGError(f"slot {start} of GPU {gpu_uuid} is taken by a {made.profile}")
        instance = made.handle if made is not None else self._create(device, profile, start)
        if not any(_compute_instances(self._library.ask, instance)):
            _tried(lambda: _create_compute(self._library.ask, instance))
        for complete in _tried(partial(read_mig_instances, self._library.ask, device.handle)):
            if complete.start == start and complete.uuid:
                return complete
        raise MIGError(f"the MIG instance at slot {start} of GPU {gpu_uuid} has no device")

    def destroy(self, gpu_uuid: str, start: int) -> None:
        """Destroy the compute instances, and then the GPU instance."""
        made = self._instance_at(self._device(gpu_uuid), start)
        if made is None:
            return
        for compute in list(_compute_instances(self._library.ask, made.handle)):
            _tried(partial(pynvml.nvmlComputeInstanceDestroy, compute))
        _tried(partial(pynvml.nvmlGpuInstanceDestroy, made.handle))

    def close(self) -> None:
        """Close NVML."""
        self._library.close()

    def _read(self, device: Device) -> MIGGPU | None:
        """Return a GPU; None if it doesn't know MIG or does not answer now."""
        ask, handle = self._library.ask, device.handle
        try:
            modes = _tried(partial(ask, pynvml.nvmlDeviceGetMigMode, handle))
            if modes is None:
                return None
            return MIGGPU(
                uuid=device.uuid,
                is_enabled=modes[0] == _ENABLED,
                is_pending=modes[1] == _ENABLED,
                profiles=_tried(partial(read_mig_profiles, ask, handle)),
                instances=_tried(partial(read_mig_instances, ask, handle)),
            )
        except MIGError as error:
            log.warning("GPU %s: %s", device.uuid, error)
            return None

    def _device(self, gpu_uuid: str) -> Device:
        for device in _tried(self._library.devices):
            if device.uuid == gpu_uuid:
                return device
        raise MIGError(f"GPU {gpu_uuid} does not answer")

    def _instance_at(self, device: Device, start: int) -> _Instance | None:
        instances = _tried(partial(_instances, self._library.ask, device.handle))
        return next((made for made in instances if made.start == start), None)

    def _create(self, device: Device, profile: str, start: int) -> Any:  # noqa: ANN401 - NVML's own
        infos = _tried(lambda: list(_profile_infos(self._library.ask, device.handle)))
        info = next((info for info in infos if _name(info) == profile), None)
        if info is None:
            names = ", ".join(sorted({_name(info) for info in infos})) or "none"
            raise MIGError(f"GPU {device.uuid} has no MIG profile {profile}; it has {names}")
        slots, starts = _tried(partial(_places, self._library.ask, device.handle, info.id))
        if start not in starts:
            places = ", ".join(map(str, starts))
            raise MIGError(f"a {profile} fits at slots {places} of GPU {device.uuid}, not {start}")
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, slots)
        return _tried(
            lambda: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device.handle, info.id, byref(placement)
            )
        )


def _tried(call: Callable[[], T]) -> T:
    """Return the result of a call.

    Raises:
        MIGInUseError: a process is in the way.
        MIGError: it failed; the message says what to do.
        PluginRestartError: only a new process can do it.
        PluginUnavailableError: there is no driver.
    """
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_IN_USE:
            raise MIGInUseError("a process uses the GPU or the instance") from error
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            raise MIGPermissionError(_NO_PERMISSION) from error
        reason = _REASONS.get(error.value, "the driver failed")
        raise MIGError(f"{reason} ({error})") from error
    except (PluginRestartError, PluginUnavailableError):
        raise
    except PluginError as error:
        raise MIGError(str(error)) from error


def _profile_infos(ask: Ask, handle: Any) -> Iterator[Any]:  # noqa: ANN401 - NVML's own
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask(partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, version=2), handle, index)
        if info is None:  # drivers before 510
            old = partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, version=1)
            info = ask(old, handle, index)
        if info is not None:
            yield info


def _name(info: Any) -> str:  # noqa: ANN401 - NVML's own
    """Return the name of a profile, which old drivers leave to their users to compose."""
    name = getattr(info, "name", b"")
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    gibibytes = math.ceil(info.memorySizeMB / MEBIBYTES_PER_GIBIBYTE)
    return text.removeprefix("MIG ") or f"{info.sliceCount}g.{gibibytes}gb"


def _places(ask: Ask, handle: Any, profile_id: int) -> tuple[int, tuple[int, ...]]:  # noqa: ANN401
    """Return the slots and the first slots of a profile."""
    room, count = (pynvml.c_nvmlGpuInstancePlacement_t * MAX_SLOTS)(), c_uint(MAX_SLOTS)
    call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if ask(call, handle, profile_id, room, byref(count)) is None or not count.value:
        return 0, ()
    return int(room[0].size), tuple(sorted(int(place.start) for place in room[: count.value]))


def _disjoint(starts: tuple[int, ...], slots: int) -> int:
    """Return how many instances fit beside each other."""
    count, end = 0, 0
    for start in starts:
        if start >= end:
            count, end = count + 1, start + slots
    return count


def _instances(ask: Ask, handle: Any) -> list[_Instance]:  # noqa: ANN401 - NVML's own
    instances = []
    for info in _profile_infos(ask, handle):
        room, count = _handles(pynvml.c_nvmlGpuInstance_t, info.instanceCount)
        if ask(pynvml.nvmlDeviceGetGpuInstances, handle, info.id, room, byref(count)) is None:
            continue
        for made in room[: count.value]:
            own = ask(pynvml.nvmlGpuInstanceGetInfo, made)
            if own is not None:
                place = own.placement
                instances.append(
                    _Instance(made, int(own.id), _name(info), int(place.start), int(place.size))
                )
    return instances


def _compute_profiles(ask: Ask, instance: Any) -> Iterator[Any]:  # noqa: ANN401 - NVML's own
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        call = partial(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, version=1)
        info = ask(call, instance, index, _SHARED)
        if info is not None:
            yield info


def _compute_instances(ask: Ask, instance: Any) -> Iterator[Any]:  # noqa: ANN401 - NVML's own
    for info in _compute_profiles(ask, instance):
        room, count = _handles(pynvml.c_nvmlComputeInstance_t, info.instanceCount)
        call = pynvml.nvmlGpuInstanceGetComputeInstances
        if ask(call, instance, info.id, room, byref(count)) is not None:
            yield from room[: count.value]


def _create_compute(ask: Ask, instance: Any) -> None:  # noqa: ANN401 - NVML's own
    """Make the compute instance with all multiprocessors."""
    largest = max(
        _compute_profiles(ask, instance), key=lambda info: info.multiprocessorCount, default=None
    )
    if largest is None:
        raise MIGError("the driver offers no compute instance for the GPU instance")
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, largest.id)


def _handles(kind: Any, count: int) -> tuple[Array[Any], c_uint]:  # noqa: ANN401 - NVML's own
    """Return room for handles, and its size, which NVML replaces by their number."""
    return (kind * count)(), c_uint(count)


def _uuids(ask: Ask, handle: Any) -> dict[int, str]:  # noqa: ANN401 - NVML's own
    """Return the UUID of the first MIG device of each GPU instance."""
    uuids: dict[int, str] = {}
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig_device = _device_at(ask, handle, index)
        uuid = ask(pynvml.nvmlDeviceGetUUID, mig_device) if mig_device is not None else None
        instance = ask(pynvml.nvmlDeviceGetGpuInstanceId, mig_device) if uuid is not None else None
        if instance is not None:
            uuids.setdefault(int(instance), str(uuid))
    return uuids


def _device_at(ask: Ask, handle: Any, index: int) -> Any:  # noqa: ANN401 - NVML's own
    """Return the handle of a MIG device; None where there is none."""

    def get(gpu: Any, at: int) -> Any:  # noqa: ANN401 - NVML's own
        try:
            return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)
        except pynvml.NVMLError as error:
            if is_refusal(error) or error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            raise

    return ask(get, handle, index)
