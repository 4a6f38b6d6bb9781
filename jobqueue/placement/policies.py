"""Policies: which of the appliances that can run a job now runs it.

A policy sees the appliances that passed every filter; it never relaxes one. Ties go to the first
by name. All policies start jobs in the order of the queue and refuse none that fits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from jobqueue.placement.fragmentation import Fragmentation
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.views import JobShape, Snapshot
from protocol.gpu_slices import WHOLE_GPU

Choice = tuple[int, tuple[int, ...]]


class Policy(Protocol):
    """Chooses an appliance and its GPUs, by their places in the ledger; `title` is for users."""

    title: str

    def choose(self, shape: JobShape, candidates: Mask) -> Choice:
        """Return one of the candidates, of which there is at least one."""

    def gpus_at(self, shape: JobShape, place: int) -> tuple[int, ...]:
        """Return the GPUs that a job gets on an appliance with room for it."""


class FirstFree:
    """The first free appliance by name."""

    title = "the first free appliance"

    def __init__(self, ledger: Ledger, _snapshot: Snapshot) -> None:
        self._ledger = ledger

    def choose(self, shape: JobShape, candidates: Mask) -> Choice:
        """Return the first candidate."""
        place = int(np.argmax(candidates))
        return place, self.gpus_at(shape, place)

    def gpus_at(self, shape: JobShape, place: int) -> tuple[int, ...]:
        """Return the fullest GPUs that suffice."""
        return self._ledger.pick_gpus(place, shape)


class BestFit(FirstFree):
    """The appliance with the least left: free cores and GPUs, as shares of the fleet's largest.

    GPUs count half and cores half, as in the BestFit of Weng and others (see `fragmentation`).
    """

    title = "the fullest appliance that is free"

    def __init__(self, ledger: Ledger, snapshot: Snapshot) -> None:
        super().__init__(ledger, snapshot)
        self._left = _Left(ledger)

    def choose(self, shape: JobShape, candidates: Mask) -> Choice:
        """Return the fullest candidate."""
        place = int(np.argmin(np.where(candidates, self._left.now(), np.inf)))
        return place, self.gpus_at(shape, place)


class Spread:
    """The emptiest appliance, so that jobs disturb each other least."""

    title = "the emptiest appliance"

    def __init__(self, ledger: Ledger, _snapshot: Snapshot) -> None:
        self._ledger = ledger
        self._left = _Left(ledger)

    def choose(self, shape: JobShape, candidates: Mask) -> Choice:
        """Return the emptiest candidate, and its emptiest GPUs."""
        place = int(np.argmax(np.where(candidates, self._left.now(), -np.inf)))
        return place, self.gpus_at(shape, place)

    def gpus_at(self, shape: JobShape, place: int) -> tuple[int, ...]:
        """Return the emptiest GPUs."""
        return self._ledger.pick_gpus(place, shape, most_free=True)


class LeastFragmentation:
    """The appliance whose free GPUs lose the least for usual jobs; see `fragmentation`.

    Of appliances that lose the same, the fullest.
    """

    title = "the appliance that this job fragments least"

    def __init__(self, ledger: Ledger, snapshot: Snapshot) -> None:
        self._ledger = ledger
        self._left = _Left(ledger)
        workload = snapshot.workload or [(job.shape, 1.0) for job in snapshot.jobs]
        self._fragmentation = Fragmentation(ledger, workload)

    def choose(self, shape: JobShape, candidates: Mask) -> Choice:
        """Return the candidate with the smallest increase of fragmentation."""
        if self._ledger.clusters:
            # The scheduler of a cluster chooses the node: its GPUs are for what fits nowhere else.
            hosts = candidates & ~self._ledger.is_cluster
            if not hosts.any():
                place = int(np.argmin(np.where(candidates, self._left.now(), np.inf)))
                return place, self._ledger.pick_gpus(place, shape)
            candidates = hosts
        increase, free = self._fragmentation.increase(shape, candidates)
        least = increase.min(where=candidates, initial=np.inf)
        best = (candidates & (increase <= least + 1e-6)).nonzero()[0]
        place = int(best[np.argmin(self._left.now(best))])
        return place, self._ledger.pick_gpus(place, shape, first=self._first(shape, place, free))

    def gpus_at(self, shape: JobShape, place: int) -> tuple[int, ...]:
        """Return the GPU that a share fragments least, or the fullest whole ones."""
        if shape.gpu_milli == WHOLE_GPU or place in self._ledger.clusters:
            return self._ledger.pick_gpus(place, shape)
        only = np.zeros(self._ledger.size, np.bool_)
        only[place] = True
        _, free = self._fragmentation.increase(shape, only)
        return self._ledger.pick_gpus(place, shape, first=self._first(shape, place, free))

    def _first(self, shape: JobShape, place: int, free: np.ndarray) -> int | None:
        if shape.gpu_milli == WHOLE_GPU:
            return None
        fitting = self._ledger.with_room(shape)[:, place]
        return int(np.argmax(fitting & (self._ledger.gpu_free[:, place] == free[place])))


class _Left:
    """The free resources of each appliance, as a share of the fleet's largest appliance.

    A cluster counts as its emptiest node.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        cpus = ledger.cpus_total.copy()
        for place, room in ledger.clusters.items():
            cpus[place] = room.view.cpus.max(initial=0.0)
        self._most_cpus = max(float(cpus.max(initial=0)), 1e-9)
        self._most_gpus = max(int(ledger.gpus_total.max(initial=0)), 1) * WHOLE_GPU

    def now(self, places: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the shares of some appliances, by default of all."""
        gpus: np.ndarray = self._ledger.gpu_free[:, places].sum(axis=0) / self._most_gpus
        left: np.ndarray = gpus + self._ledger.cpus_free[places] / self._most_cpus
        if not self._ledger.clusters:
            return left
        whole = np.zeros(self._ledger.size)
        whole[places] = left
        most_gpus = self._most_gpus / WHOLE_GPU
        for place, room in self._ledger.clusters.items():
            whole[place] = room.most_left(cpus=self._most_cpus, gpus=most_gpus)
        return whole[places]


DEFAULT_POLICY = "first_free_else_lru"
LEAST_FRAGMENTATION = "least_fragmentation"
POLICIES: Mapping[str, Callable[[Ledger, Snapshot], Policy]] = {
    DEFAULT_POLICY: FirstFree,
    "best_fit": BestFit,
    "spread": Spread,
    LEAST_FRAGMENTATION: LeastFragmentation,
}
POLICY_NAMES: Sequence[str] = tuple(POLICIES)
