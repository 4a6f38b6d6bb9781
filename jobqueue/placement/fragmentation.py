"""Fragmentation of free GPUs: how much of them usual jobs could not use.

Source: Weng and others, "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (FGD), USENIX ATC 2023. A job goes where it increases the expected
fragmentation least. For one shape of job, the free GPU capacity of an appliance is a fragment where
the shape doesn't fit, on GPUs that are too full for it, and, beyond the paper, as far as free cores
and memory don't suffice to use it: of eight free GPUs with cores for three jobs, five are
fragments. The expectation is over the shapes of usual jobs, weighted by their frequency.

The paper asks what the next job can't use. Here it is what the best suited of the next
`NEXT_JOBS` can't use: capacity that a quarter of all jobs can use will be used, and is worth nearly
as much as capacity that any job can use. With one job, appliances with few cores are filled with
whatever comes, and more large appliances are left whole than there will be large jobs; with many,
cores are spent until only the jobs that need the fewest fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.slices import SliceRequest
from jobqueue.placement.views import JobShape
from protocol.gpu_slices import WHOLE_GPU

# The most frequent shapes; rarer ones hardly change the expectation.
MAX_SHAPES = 64
# How many usual jobs may come before free capacity counts as lost.
NEXT_JOBS = 5
# Appliances that are computed at once, states and shapes that are remembered: bound the memory.
_CHUNK = 512
_MAX_STATES = 100_000
_MAX_INCREASES = 500


@dataclass(slots=True)
class _Increases:
    """The increases of one shape: by appliance, each valid for a version of it, and by state.

    `free` is the free capacity of the GPU with the smallest increase, for a share of one.
    """

    increase: np.ndarray
    free: np.ndarray
    versions: np.ndarray = field(repr=False)
    by_state: dict[int, tuple[float, int]] = field(default_factory=dict, repr=False)


def _need_of_a_gpu(shape: JobShape) -> JobShape:
    """Return what a shape needs of each of its GPUs."""
    return JobShape(
        gpus=1,
        gpu_milli=shape.gpu_milli,
        gpu_memory_bytes=shape.gpu_memory_bytes,
        gpu_models=shape.gpu_models,
        slice=shape.slice and SliceRequest(shape.slice.need),
    )


class Fragmentation:
    """The fragmentation of each appliance, computed again only where something changed."""

    def __init__(self, ledger: Ledger, workload: Sequence[tuple[JobShape, float]]) -> None:
        self._ledger = ledger
        usual = sorted(workload, key=lambda pair: -pair[1])
        of_gpus = [(shape, weight) for shape, weight in usual if shape.gpus][:MAX_SHAPES]
        shapes = [shape for shape, _ in of_gpus]
        self._weights = np.array([weight for _, weight in of_gpus], np.float64)
        # Jobs without GPUs count: to them, every free GPU is a fragment.
        self._total_weight = self._weights.sum() + sum(w for s, w in usual if not s.gpus)
        # Shapes that need the same of a GPU share its computation.
        kinds = list(dict.fromkeys(map(_need_of_a_gpu, shapes)))
        self._milli = np.array([kind.gpu_milli for kind in kinds], np.int64)[:, None, None]
        self._eligible = np.array([ledger.eligible(kind) for kind in kinds], np.bool_).reshape(
            len(kinds), ledger.slots, ledger.size
        )
        place_of = {kind: place for place, kind in enumerate(kinds)}
        self._kind_of = np.array([place_of[_need_of_a_gpu(s)] for s in shapes], np.int64)
        self._gpus = np.array([s.gpus for s in shapes], np.int64)[:, None]
        self._cpus = np.array([max(s.cpus, 1e-9) for s in shapes], np.float64)[:, None]
        self._memory = np.array([max(s.memory_bytes, 1) for s in shapes], np.int64)[:, None]
        self._capacity = np.array([s.gpus * s.gpu_milli for s in shapes], np.int64)[:, None]
        self._current = np.zeros(ledger.size, np.float64)
        self._versions = np.full(ledger.size, -1, np.int64)
        self._increases: dict[JobShape, _Increases] = {}
        # Appliances with the same GPUs, and the states that they have been in, by number.
        self._kinds = [
            (*((gpu.memory_bytes, gpu.model, gpu.kind) for gpu in view.gpus), view.failure)
            for view in ledger.views
        ]
        self._are_equal = ledger.slices is None and all(
            len({(gpu.memory_bytes, gpu.model) for gpu in view.gpus}) <= 1 for view in ledger.views
        )
        self._states = np.zeros(ledger.size, np.int64)
        self._state_ids: dict[tuple[object, ...], int] = {}
        self._by_state: list[float] = []

    def increase(self, shape: JobShape, candidates: Mask) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much a job would increase each candidate's fragmentation.

        Returns:
            The increases, in thousandths of a GPU, and for a share the free capacity of the GPU
            with the smallest one.
        """
        ledger, size = self._ledger, self._ledger.size
        increases = self._increases.get(shape)
        if increases is None:
            if len(self._increases) == _MAX_INCREASES:
                self._increases.clear()
            increases = _Increases(
                np.zeros(size), np.zeros(size, np.int64), np.full(size, -1, np.int64)
            )
            self._increases[shape] = increases
        changed = (candidates & (ledger.version != increases.versions)).nonzero()[0]
        self._refresh(changed)
        # Appliances in the same state have the same increase.
        states, by_state = self._states[changed].tolist(), increases.by_state
        fresh = {
            state: place
            for state, place in zip(states, changed.tolist(), strict=True)
            if state not in by_state
        }
        if fresh:
            self._compute(shape, increases, fresh)
        if states:
            increases.increase[changed], increases.free[changed] = zip(
                *(by_state[state] for state in states), strict=True
            )
        increases.versions[changed] = ledger.version[changed]
        return increases.increase, increases.free

    def _compute(self, shape: JobShape, increases: _Increases, fresh: Mapping[int, int]) -> None:
        """Compute the increases of states, each of which an appliance is in."""
        alike = np.array(list(fresh.values()))
        for start in range(0, alike.size, _CHUNK):
            places = alike[start : start + _CHUNK]
            if shape.gpus == 1 and shape.gpu_milli < WHOLE_GPU:
                self._try_shares(shape, places, increases)
            else:
                after = self._after_whole(shape, places)
                increases.increase[places] = after - self._current[places]
        computed = zip(
            increases.increase[alike].tolist(), increases.free[alike].tolist(), strict=True
        )
        increases.by_state.update(zip(fresh, computed, strict=True))

    def _refresh(self, places: np.ndarray) -> None:
        ledger = self._ledger
        if len(self._state_ids) > _MAX_STATES:
            self._state_ids.clear()
            self._by_state.clear()
            self._increases.clear()
            self._versions[:] = -1
        old = places[ledger.version[places] != self._versions[places]]
        fresh = []
        for place, *state in zip(
            old.tolist(),
            (column.tobytes() for column in self._free_in_order(old)),
            ledger.cpus_free[old].tolist(),
            ledger.memory_free[old].tolist(),
            ledger.slices.states(old) if ledger.slices else repeat(b"", old.size),
            strict=True,
        ):
            key = (self._kinds[place], *state)
            if key not in self._state_ids:
                self._state_ids[key] = len(self._state_ids)
                self._by_state.append(0.0)
                fresh.append(place)
            self._states[place] = self._state_ids[key]
        for start in range(0, len(fresh), _CHUNK):
            at = np.array(fresh[start : start + _CHUNK])
            results = self._fragments(
                ledger.gpu_free[:, at], ledger.cpus_free[at], ledger.memory_free[at], at
            )
            for state, fragments in zip(self._states[at].tolist(), results.tolist(), strict=True):
                self._by_state[state] = fragments
        self._current[old] = [self._by_state[state] for state in self._states[old].tolist()]
        self._versions[old] = ledger.version[old]

    def _free_in_order(self, places: np.ndarray) -> np.ndarray:
        """Return the free capacity of appliances' GPUs; of equal GPUs, the order says nothing."""
        free = self._ledger.gpu_free.T[places]
        return np.sort(free, axis=1) if self._are_equal else free

    def _after_whole(self, shape: JobShape, places: np.ndarray) -> np.ndarray:
        ledger = self._ledger
        free = ledger.gpu_free[:, places]
        fits = (free >= shape.gpu_milli) & ledger.eligible(shape)[:, places]
        taken = fits & (np.cumsum(fits, axis=0) <= shape.gpus)
        return self._fragments(
            free - taken * shape.gpu_milli,
            ledger.cpus_free[places] - shape.cpus,
            ledger.memory_free[places] - shape.memory_bytes,
            places,
        )

    def _try_shares(self, shape: JobShape, places: np.ndarray, increases: _Increases) -> None:
        """Try each GPU of the appliances; GPUs with the same capacity left are tried once."""
        ledger = self._ledger
        free = ledger.gpu_free[:, places]
        fits = ledger.with_room(shape)[:, places]
        cpus = ledger.cpus_free[places] - shape.cpus
        memory = ledger.memory_free[places] - shape.memory_bytes
        increases.increase[places] = np.inf
        for slot in range(ledger.slots):
            is_new = fits[slot] & ~(fits[:slot] & (free[:slot] == free[slot])).any(axis=0)
            tried = np.flatnonzero(is_new)
            if not tried.size:
                continue
            free_after = free[:, tried]
            free_after[slot] -= shape.gpu_milli
            at = places[tried]
            increase = (
                self._fragments(free_after, cpus[tried], memory[tried], at) - self._current[at]
            )
            better = increase < increases.increase[at] - 1e-9
            increases.increase[at[better]] = increase[better]
            increases.free[at[better]] = free[slot, tried[better]]

    def _fragments(
        self, free: np.ndarray, cpus: np.ndarray, memory: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Return the expected fragments of appliances in such a state."""
        if not self._weights.size:
            return np.zeros(len(places))
        enough = (free[None] >= self._milli) & self._eligible[:, :, places]
        count = np.count_nonzero(enough, axis=1)[self._kind_of]
        capacity = (enough * free[None]).sum(axis=1)[self._kind_of]
        by_cores = (np.maximum(cpus, 0) + 1e-6) // self._cpus
        jobs = np.minimum(by_cores, np.maximum(memory, 0) // self._memory)
        usable = np.minimum(capacity, jobs * self._capacity) * (count >= self._gpus)
        fragments: np.ndarray = free.sum(axis=0) - self._best_use(usable)
        return fragments

    def _best_use(self, usable: np.ndarray) -> np.ndarray:
        """Return how much the best suited of the next jobs is expected to use, by column."""
        order = np.argsort(-usable, axis=0)
        ordered = np.take_along_axis(usable, order, axis=0)
        # The chance that one of the next jobs has one of the shapes up to this one.
        share = np.cumsum(self._weights[order], axis=0) / self._total_weight
        chance = 1 - np.maximum(1 - share, 0) ** NEXT_JOBS
        best: np.ndarray = (ordered * chance).sum(axis=0)
        best -= (ordered[1:] * chance[:-1]).sum(axis=0)
        return best
