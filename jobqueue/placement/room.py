"""The GPUs of one appliance for one shape of job, while others end or start in thought."""

from jobqueue.placement.ledger import Allocation, Ledger
from jobqueue.placement.slices import Part, fitting_part
from jobqueue.placement.views import JobShape


class Room:
    """What is free on the GPUs of an appliance, as the ledger has it at first."""

    def __init__(self, ledger: Ledger, place: int, shape: JobShape) -> None:
        self._shape, self._slices, self._place = shape, ledger.slices, place
        self._free: list[int] = ledger.gpu_free[:, place].tolist()
        self._able = ledger.eligible_at(place, shape)
        self._parts: list[list[Part]] = []
        if shape.slice is not None and self._slices is not None:
            self._parts = [list(self._slices.parts_at(place, slot)) for slot in range(ledger.slots)]

    def take(self, allocation: Allocation) -> None:
        """Let a job start."""
        for slot in allocation.gpus:
            self._free[slot] -= allocation.gpu_milli
            if self._parts and allocation.part is not None:
                self._parts[slot].append(allocation.part)

    def free(self, allocation: Allocation) -> None:
        """Let a job end."""
        for slot in allocation.gpus:
            self._free[slot] += allocation.gpu_milli
            if self._parts and allocation.part is not None:
                self._parts[slot].remove(allocation.part)

    def fitting(self) -> list[int]:
        """Return the GPUs that the job could have, as far as it needs only one of them."""
        if self._shape.slice is not None:
            return [slot for slot in range(len(self._parts)) if self.part(slot) is not None]
        milli = self._shape.gpu_milli
        return [
            slot
            for slot, (left, is_able) in enumerate(zip(self._free, self._able, strict=True))
            if is_able and left >= milli
        ]

    def part(self, slot: int) -> Part | None:
        """Return the part of a GPU that the job would get; None if it gets whole ones."""
        slices, request = self._slices, self._shape.slice
        if slices is None or request is None or not self._able[slot] or self._free[slot] <= 0:
            return None
        kind = slices.kind_at(self._place, slot)
        if kind is None:
            return None
        return fitting_part(kind, self._parts[slot], request, slices.rules)
