"""The waiting jobs of a replay, by what they require: one look finds all that fit somewhere.

Jobs of one *group* have the same shape, time limit and lane. Only the first of a group is tried:
where it doesn't fit, none of its group does.
"""

import heapq
from typing import NamedTuple

import numpy as np

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.ledger import Ints, Mask
from jobqueue.placement.views import JobShape
from jobqueue.simulation.protection import Spare
from protocol.gpu_slices import WHOLE_GPU

# As many groups are compared one by one faster than as arrays.
_FEW = 6


class Group(NamedTuple):
    """What jobs of a group have in common; a limit of 0 is none.

    The project counts where quotas or reservations treat projects differently.
    """

    shape: JobShape
    limit_seconds: float
    lane: int
    project: int = 0
    nodes: int = 1


class Free(NamedTuple):
    """The free resources of an appliance."""

    whole_gpus: int
    largest_milli: int
    cpus: float
    memory_bytes: int


class WaitingJobs:
    """Heaps of jobs by group, with the requirements of the groups as arrays."""

    def __init__(self, appliances: int) -> None:
        self._slots: dict[Group, int] = {}
        self._unused: list[int] = []
        self.groups: list[Group | None] = []
        self.heaps: list[list[tuple[float, int]]] = []
        self._appliances = appliances
        self._size = 0
        # Whole GPUs, thousandths of any one, and of all.
        self._gpus: Ints = np.zeros(0, np.int64)
        self._share: Ints = np.zeros(0, np.int64)
        self._milli: Ints = np.zeros(0, np.int64)
        self._memory: Ints = np.zeros(0, np.int64)
        self._cpus = np.zeros(0)
        self._limits = np.zeros(0)
        # By appliance, so that one look reads neighbors in memory.
        self._feasible: Mask = np.zeros((appliances, 0), np.bool_)

    def __len__(self) -> int:
        return sum(map(len, self.heaps))

    def push(self, group: Group, place: float, number: int, feasible: Mask) -> None:
        """Add a job by its place in the lane and its number."""
        slot = self._slots.get(group)
        if slot is None:
            slot = self._new_slot()
            self._slots[group], self.groups[slot] = slot, group
            shape = group.shape
            is_whole = shape.gpu_milli == WHOLE_GPU
            self._gpus[slot] = shape.gpus if is_whole else 0
            self._share[slot] = 0 if is_whole else shape.gpu_milli
            self._milli[slot] = shape.gpus * shape.gpu_milli
            self._cpus[slot], self._memory[slot] = shape.cpus, shape.memory_bytes
            self._limits[slot] = group.limit_seconds or np.inf
            self._feasible[:, slot] = feasible
        heapq.heappush(self.heaps[slot], (place, number))

    def is_behind(self, group: Group, place: float) -> bool:
        """Return whether a job of the group waits that comes before a new one at a place."""
        slot = self._slots.get(group)
        return slot is not None and self.heaps[slot][0][0] <= place

    def pop(self, slot: int) -> tuple[float, int]:
        """Remove the first job of a group."""
        first = heapq.heappop(self.heaps[slot])
        group = self.groups[slot]
        if not self.heaps[slot] and group is not None:
            self.groups[slot] = None
            self._feasible[:, slot] = False
            del self._slots[group]
            self._unused.append(slot)
        return first

    def fitting(
        self, at: int, free: Free, spare: Spare | None, now: float
    ) -> tuple[list[int], list[int]]:
        """Return the groups that fit on an appliance, and those that fit but may not pass there.

        Args:
            at: its place in the ledger.
            free: what is free there.
            spare: what its protected job leaves over; None if there is none.
            now: the time, as `spare.starts_at`.
        """
        fits = self._feasible[at] & (self._cpus <= free.cpus + CPU_TOLERANCE)
        fits &= self._memory <= free.memory_bytes
        fits &= self._gpus <= free.whole_gpus
        fits &= self._share <= free.largest_milli
        slots: list[int] = fits.nonzero()[0].tolist()
        if spare is None or not slots:
            return slots, []
        if len(slots) <= _FEW:
            passing = [slot for slot in slots if self._passes(slot, spare, now)]
            return passing, [slot for slot in slots if slot not in passing]
        passes = now + self._limits <= spare.starts_at + CPU_TOLERANCE
        passes |= (
            (self._milli <= spare.milli)
            & (self._cpus <= spare.cpus + CPU_TOLERANCE)
            & (self._memory <= spare.memory_bytes)
        )
        return (fits & passes).nonzero()[0].tolist(), (fits & ~passes).nonzero()[0].tolist()

    def _passes(self, slot: int, spare: Spare, now: float) -> bool:
        group = self.groups[slot]
        if group is None:
            return False
        shape, limit = group.shape, group.limit_seconds or np.inf
        return now + limit <= spare.starts_at + CPU_TOLERANCE or (
            shape.gpus * shape.gpu_milli <= spare.milli
            and shape.cpus <= spare.cpus + CPU_TOLERANCE
            and shape.memory_bytes <= spare.memory_bytes
        )

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        if self._size == len(self._gpus):
            self._grow(max(64, 2 * self._size))
        self._size += 1
        self.groups.append(None)
        self.heaps.append([])
        return self._size - 1

    def _grow(self, size: int) -> None:
        for name in ("_gpus", "_share", "_milli", "_memory", "_cpus", "_limits"):
            column = getattr(self, name)
            grown = np.zeros(size, column.dtype)
            grown[: len(column)] = column
            setattr(self, name, grown)
        feasible = np.zeros((self._appliances, size), np.bool_)
        feasible[:, : self._feasible.shape[1]] = self._feasible
        self._feasible = feasible
