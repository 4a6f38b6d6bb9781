"""MIG on a simulated appliance: what its GPUs offer, and a driver that cuts them.

The numbers are those that NVIDIA's drivers report for A100, H100 and H200.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

import msgspec

from core.atomic_files import replace_file
from plugins.mig import MIGGPU, MIGError, MIGInUseError, MIGPermissionError
from plugins.simulation.config import GIB, SimulationConfig
from protocol.gpu_slices import MIGInstance, MIGProfile

SLOTS = 8
USABLE_SHARE = 0.975
# Compute slices, slots, first slots and the driver's number of each profile.
_SHAPES = (
    (7, 8, (0,), 0),
    (4, 4, (0,), 5),
    (3, 4, (0, 4), 9),
    (2, 2, (0, 2, 4), 14),
    (1, 2, (0, 2, 4, 6), 15),
    (1, 1, (0, 1, 2, 3, 4, 5, 6), 19),
)
# Multiprocessors of the profiles, in their order.
_AMPERE = (98, 56, 42, 28, 14, 14)
_HOPPER = (132, 64, 60, 32, 26, 16)
_MULTIPROCESSORS = {"A100": _AMPERE, "H100": _HOPPER, "H200": _HOPPER}
# Their mode changes at a reset only.
_NEED_RESET = ("A100",)


def simulated_profiles(config: SimulationConfig) -> list[MIGProfile]:
    """Return the profiles of a simulated GPU, the largest first; none if it doesn't know MIG."""
    counts = (sms for word, sms in _MULTIPROCESSORS.items() if word in config.gpu_model)
    return [
        MIGProfile(
            name=f"{slices}g.{int(config.gpu_memory_bytes / GIB * slots / SLOTS + 0.5)}gb",
            profile_id=number,
            memory_bytes=int(config.gpu_memory_bytes * USABLE_SHARE * slots / SLOTS),
            multiprocessors=multiprocessors,
            slots=slots,
            starts=starts,
        )
        for (slices, slots, starts, number), multiprocessors in zip(
            _SHAPES, next(counts, ()), strict=False
        )
    ]


class _GPU(msgspec.Struct):
    is_enabled: bool = False
    is_pending: bool = False
    instances: dict[int, MIGInstance] = {}
    """By first slot."""


class SimulatedMIGDriver:
    """Cuts simulated GPUs as NVIDIA's driver does. Thread-safe.

    Args:
        state_path: where modes and instances stay between starts; None to forget them.
        needs_reset: whether a mode changes with `reboot` only; by default, as with the model.
        on_step: called before each change of the hardware; tests raise from it.

    Attributes:
        is_permitted: whether this process may cut GPUs.
        processes: where processes of others run: GPUs and first slots, -1 for a whole GPU.
    """

    def __init__(
        self,
        config: SimulationConfig,
        *,
        state_path: Path | None = None,
        needs_reset: bool | None = None,
        on_step: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._profiles = {profile.name: profile for profile in simulated_profiles(config)}
        self._state_path = state_path
        by_model = any(word in config.gpu_model for word in _NEED_RESET)
        self._needs_reset = by_model if needs_reset is None else needs_reset
        self._on_step = on_step
        self._lock = Lock()
        stored = _read_state(state_path)
        uuids = config.gpu_uuids if self._profiles else []
        self._gpus = {uuid: stored.get(uuid, _GPU()) for uuid in uuids}
        self.is_permitted = True
        self.processes: set[tuple[str, int]] = set()

    def read(self) -> list[MIGGPU]:
        """Return the GPUs, with profiles while their mode is on."""
        with self._lock:
            return [
                MIGGPU(
                    uuid=uuid,
                    is_enabled=gpu.is_enabled,
                    is_pending=gpu.is_pending,
                    profiles=list(self._profiles.values()) if gpu.is_enabled else [],
                    instances=sorted(gpu.instances.values(), key=lambda instance: instance.start),
                )
                for uuid, gpu in self._gpus.items()
            ]

    def set_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Switch MIG on or off; it stays pending on a GPU that needs a reset."""
        with self._lock:
            gpu = self._permitted(gpu_uuid)
            if gpu.instances or any(uuid == gpu_uuid for uuid, _ in self.processes):
                raise MIGInUseError(f"GPU {gpu_uuid} is in use: its MIG mode can't change")
            self._on_step("set the mode")
            gpu.is_pending = enabled
            if not self._needs_reset:
                gpu.is_enabled = enabled
            self._store()

    def create(self, gpu_uuid: str, profile: str, start: int) -> MIGInstance:
        """Make an instance in two steps, as the driver does."""
        with self._lock:
            gpu = self._permitted(gpu_uuid)
            offered = self._profiles.get(profile) if gpu.is_enabled else None
            if offered is None or start not in offered.starts:
                raise MIGError(f"GPU {gpu_uuid} has no MIG profile {profile} at slot {start}")
            made = gpu.instances.get(start)
            if made is None or made.profile != profile:
                _require_free(gpu, gpu_uuid, start, start + offered.slots)
                self._on_step("make the GPU instance")
                made = MIGInstance(uuid="", profile=profile, start=start, slots=offered.slots)
                gpu.instances[start] = made
                self._store()
            if not made.uuid:
                self._on_step("make the compute instance")
                uuid = f"MIG-{gpu_uuid.removeprefix('GPU-')[:-3]}{start:x}{made.slots:02x}"
                made = gpu.instances[start] = msgspec.structs.replace(made, uuid=uuid)
                self._store()
            return made

    def destroy(self, gpu_uuid: str, start: int) -> None:
        """Destroy an instance in two steps, as the driver does."""
        with self._lock:
            gpu = self._permitted(gpu_uuid)
            made = gpu.instances.get(start)
            if made is None:
                return
            if (gpu_uuid, start) in self.processes:
                raise MIGInUseError(f"a process uses the MIG instance at slot {start}")
            if made.uuid:
                self._on_step("destroy the compute instance")
                gpu.instances[start] = msgspec.structs.replace(made, uuid="")
                self._store()
            self._on_step("destroy the GPU instance")
            del gpu.instances[start]
            self._store()

    def reboot(self) -> None:
        """End processes and instances, and apply pending modes."""
        with self._lock:
            self.processes.clear()
            for gpu in self._gpus.values():
                gpu.instances.clear()
                gpu.is_enabled = gpu.is_pending
            self._store()

    def close(self) -> None:
        """Do nothing: the hardware stays as it is."""

    def _permitted(self, gpu_uuid: str) -> _GPU:
        if not self.is_permitted:
            raise MIGPermissionError("the driver does not let this agent cut GPUs")
        if gpu_uuid not in self._gpus:
            raise MIGError(f"GPU {gpu_uuid} doesn't know MIG")
        return self._gpus[gpu_uuid]

    def _store(self) -> None:
        if self._state_path is not None:
            replace_file(self._state_path, msgspec.json.encode(self._gpus), is_durable=False)


def _require_free(gpu: _GPU, gpu_uuid: str, start: int, end: int) -> None:
    taken: Iterable[MIGInstance] = gpu.instances.values()
    if any(other.start < end and start < other.start + other.slots for other in taken):
        raise MIGError(f"slots {start} to {end - 1} of GPU {gpu_uuid} are taken")


def _read_state(path: Path | None) -> dict[str, _GPU]:
    if path is None or not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _GPU])
    except (OSError, msgspec.DecodeError):
        return {}
