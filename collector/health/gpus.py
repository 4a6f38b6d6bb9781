"""The GPUs of this appliance: those it is known to have, and a tracker of readings for each.

Known GPUs are stored in `known_gpus.json` of the data folder, so that a missing one is noticed: a
GPU that was seen once is known from then on. `accept_present_gpus` leaves a marker file, on which
the agent forgets those that are missing, and all XIDs.

A lost GPU may report no UUID. Then it is the known GPU with its index; if there is none, a
*placeholder* takes the UUID's place until the GPU responds again.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from collector.data_dir import load_json, save_json
from collector.health.signals import GPUTracker
from plugins.base import ADDRESS_PREFIX
from timeseries.points import Point

log = logging.getLogger(__name__)

FILE_NAME = "known_gpus.json"
MARKER_NAME = "accept-gpus"
UNKNOWN_PREFIX = "unknown-"
PLACEHOLDERS = (UNKNOWN_PREFIX, ADDRESS_PREFIX)
SLICE_PREFIX = "MIG-"
_UNKNOWN_INDEX = -1


class KnownGPU(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it was last seen; `has_nvlinks` once any of its NVLinks was up."""

    uuid: str
    index: int
    model: str = ""
    has_nvlinks: bool = False
    is_present: bool = True


def accept_present_gpus(data_dir: Path) -> list[KnownGPU]:
    """Have the agent accept the present GPUs as complete, and forget all XIDs.

    It does so at its next heartbeat, or when it starts.

    Returns:
        The known GPUs that are missing, which will be forgotten.

    Raises:
        OSError: the data folder isn't writable.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / MARKER_NAME).touch(mode=0o600)
    return [gpu for gpu in _load(data_dir) if not gpu.is_present]


class KnownGPUs:
    """The known GPUs of one appliance, by UUID. For one thread."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._marker = data_dir / MARKER_NAME
        self._gpus = {gpu.uuid: gpu for gpu in _load(data_dir)}
        self._is_saved = True

    @property
    def gpus(self) -> Mapping[str, KnownGPU]:
        """The known GPUs, including missing ones."""
        return self._gpus

    def update(self, present: Iterable[KnownGPU]) -> None:
        """Record which GPUs are present; new ones are known from now on."""
        seen = {gpu.uuid: gpu for gpu in present}
        gpus = {
            uuid: msgspec.structs.replace(gpu, is_present=uuid in seen)
            for uuid, gpu in self._gpus.items()
        }
        for uuid, gpu in seen.items():
            before = gpus.get(uuid)
            has_nvlinks = gpu.has_nvlinks or (before is not None and before.has_nvlinks)
            gpus[uuid] = msgspec.structs.replace(gpu, has_nvlinks=has_nvlinks)
        if gpus != self._gpus:
            self._gpus, self._is_saved = gpus, False

    def forget_missing(self) -> None:
        """Keep the present GPUs only, with the NVLinks that they have now."""
        self._gpus = {
            uuid: msgspec.structs.replace(gpu, has_nvlinks=False)
            for uuid, gpu in self._gpus.items()
            if gpu.is_present
        }
        self._is_saved = False

    def take_acceptance(self) -> bool:
        """Return whether the marker file exists, and delete it."""
        try:
            self._marker.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("can't delete %s, so it is ignored: %s", self._marker, error)
            return False
        return True

    def save(self) -> None:
        """Write the file if something changed; the next call retries a failed write."""
        if not self._is_saved:
            self._is_saved = save_json(self._path, list(self._gpus.values()))


class GPUTrackers:
    """The tracker of each GPU with readings, by UUID or placeholder. For one thread."""

    def __init__(self, known_gpus: KnownGPUs) -> None:
        self._known = known_gpus
        self._trackers: dict[str, GPUTracker] = {}

    @property
    def uuids(self) -> Collection[str]:
        """UUIDs and placeholders."""
        return self._trackers.keys()

    def get(self, uuid: str) -> GPUTracker | None:
        """Return the tracker of a GPU; None before its first reading."""
        return self._trackers.get(uuid)

    def add_reading(self, point: Point) -> bool:
        """Add a point of measurement `gpu`; return whether its GPU could be identified."""
        tracker = self._tracker(point)
        if tracker is None:
            return False
        tracker.add_reading(point)
        for uuid in [uuid for uuid in self._trackers if uuid.startswith(PLACEHOLDERS)]:
            if uuid != tracker.uuid and self._trackers[uuid].index == tracker.index:
                del self._trackers[uuid]
        return True

    def add_process(self, point: Point) -> None:
        """Add a point of measurement `gpu_process`; that of a slice belongs to its GPU."""
        tracker = self._tracker(point)
        if tracker is not None:
            tracker.add_process(point)

    def forget_unknown(self) -> None:
        """Remove the trackers of GPUs that are not known."""
        known_gpus = self._known.gpus
        self._trackers = {
            uuid: tracker for uuid, tracker in self._trackers.items() if uuid in known_gpus
        }

    def _tracker(self, point: Point) -> GPUTracker | None:
        index = gpu_index(point)
        uuid = point.tags.get("uuid", "")
        if (not uuid or uuid.startswith(SLICE_PREFIX)) and index != _UNKNOWN_INDEX:
            uuids = (gpu.uuid for gpu in self._known.gpus.values() if gpu.index == index)
            uuid = next(uuids, "") or f"{UNKNOWN_PREFIX}{index}"
        if not uuid:
            return None
        tracker = self._trackers.get(uuid)
        if tracker is None:
            tracker = GPUTracker(index, uuid, point.tags.get("model", ""))
            self._trackers[uuid] = tracker
        return tracker


def gpu_index(point: Point) -> int:
    """Return the index of the GPU of a reading; -1 if it has none."""
    index = point.tags.get("gpu", "")
    return int(index) if index.isdecimal() else _UNKNOWN_INDEX


def _load(data_dir: Path) -> list[KnownGPU]:
    return load_json(data_dir / FILE_NAME, list[KnownGPU]) or []
