"""Which GPU a reading is of, and its tracker: also where the reading can't say its UUID.

A GPU that is lost may have no UUID any more. It is the known GPU of its index then; where none is
known, a *stand-in* takes the UUID's place until the GPU answers again.
"""

from collections.abc import Collection

from collector.health.gpu_tracker import GPUTracker
from collector.health.known_gpus import KnownGPUs
from plugins.base import ADDRESS_PREFIX
from timeseries.points import Point

_UNKNOWN_INDEX = -1
# Begins what stands in for the UUID of a GPU of which only the index is known.
UNKNOWN_PREFIX = "unknown-"
STAND_INS = (UNKNOWN_PREFIX, ADDRESS_PREFIX)
SLICE_PREFIX = "MIG-"


class GPUTrackers:
    """The tracker of each GPU that was read, by UUID or stand-in. For one thread.

    Args:
        known: the GPUs that the appliance has or had.
    """

    def __init__(self, known: KnownGPUs) -> None:
        self._known = known
        self._trackers: dict[str, GPUTracker] = {}

    @property
    def uuids(self) -> Collection[str]:
        """UUIDs and stand-ins of all that were read."""
        return self._trackers.keys()

    def of(self, uuid: str) -> GPUTracker | None:
        """Return the tracker of a GPU, None before its first reading."""
        return self._trackers.get(uuid)

    def take_reading(self, point: Point) -> bool:
        """Take a point of measurement `gpu`; return whether it says which GPU it is of."""
        tracker = self._tracker(point)
        if tracker is None:
            return False
        tracker.take_reading(point)
        self._forget_stand_ins(tracker)
        return True

    def take_process(self, point: Point) -> None:
        """Take a point of measurement `gpu_process`; that of a slice is its GPU's."""
        tracker = self._tracker(point)
        if tracker is not None:
            tracker.take_process(point)

    def keep_known(self) -> None:
        """Forget the GPUs that are not known, or not any more."""
        known = self._known.gpus
        self._trackers = {
            uuid: tracker for uuid, tracker in self._trackers.items() if uuid in known
        }

    def _tracker(self, point: Point) -> GPUTracker | None:
        index = index_of(point)
        uuid = point.tags.get("uuid", "")
        if (not uuid or uuid.startswith(SLICE_PREFIX)) and index != _UNKNOWN_INDEX:
            uuid = self._uuid_at(index)
        if not uuid:
            return None
        tracker = self._trackers.get(uuid)
        if tracker is None:
            tracker = GPUTracker(index, uuid, point.tags.get("model", ""))
            self._trackers[uuid] = tracker
        return tracker

    def _uuid_at(self, index: int) -> str:
        known = next((gpu.uuid for gpu in self._known.gpus.values() if gpu.index == index), "")
        return known or f"{UNKNOWN_PREFIX}{index}"

    def _forget_stand_ins(self, seen: GPUTracker) -> None:
        for uuid in [uuid for uuid in self._trackers if uuid.startswith(STAND_INS)]:
            if uuid != seen.uuid and self._trackers[uuid].index == seen.index:
                del self._trackers[uuid]


def index_of(point: Point) -> int:
    """Return the index of the GPU that a reading is of, -1 where it does not say."""
    index = point.tags.get("gpu", "")
    return int(index) if index.isdecimal() else _UNKNOWN_INDEX
