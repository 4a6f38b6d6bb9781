"""The resources of a fleet while a plan grows, as arrays over its appliances in name order.

One placement looks at all appliances at once, so its time hardly grows with the fleet. Resources
only shrink within a plan; `release` is for forecasts, which play what comes later.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobqueue.placement.views import (
    UNLIMITED,
    WHOLE_GPU,
    ApplianceView,
    JobShape,
    JobView,
    RunningJob,
)
from protocol.health import HealthState

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
# Sums of fractions of a core carry rounding errors far below any request.
CPU_TOLERANCE = 1e-6


class Allocation(NamedTuple):
    """The resources of one job on one appliance; GPUs by their position on it."""

    job_id: str
    ends_at: datetime
    gpus: Sequence[int]
    gpu_milli: int
    cpus: float
    memory_bytes: int


class Ledger:
    """Total and free resources. GPU arrays have a row for each position, a column per appliance."""

    def __init__(self, appliances: Sequence[ApplianceView], *, now: datetime) -> None:
        self.views = sorted(appliances, key=lambda view: (view.name, view.id))
        self.index = {view.id: place for place, view in enumerate(self.views)}
        self.size = len(self.views)
        self.slots = max((len(view.gpus) for view in self.views), default=0)
        shape = (self.slots, self.size)
        self.gpu_memory: Ints = np.full(shape, -1, np.int64)
        self.gpu_free: Ints = np.zeros(shape, np.int64)
        self.usable: Mask = np.zeros(shape, np.bool_)
        self.degraded: Mask = np.zeros(shape, np.bool_)
        self.used_outside: Mask = np.zeros(shape, np.bool_)
        self.cpus_total = np.array([view.cpus for view in self.views], np.float64)
        self.memory_total: Ints = np.array([view.memory_bytes for view in self.views], np.int64)
        self.cpus_free, self.memory_free = self.cpus_total.copy(), self.memory_total.copy()
        self.states = np.array([view.state.value for view in self.views], np.str_)
        self.drained: Mask = np.array([view.is_drained for view in self.views], np.bool_)
        self.executes: Mask = np.array([bool(view.executors) for view in self.views], np.bool_)
        self.quarantined: Mask = np.array([bool(view.quarantine) for view in self.views], np.bool_)
        self.on_trial: Mask = np.array([view.is_trial_due for view in self.views], np.bool_)
        self.failed: Mask = np.array([bool(view.failure) for view in self.views], np.bool_)
        self.version: Ints = np.zeros(self.size, np.int64)
        self.changes = 0
        self.allocations: list[list[Allocation]] = [[] for _ in self.views]
        self._models: dict[str, Mask] = {}
        self._eligible: dict[tuple[int, frozenset[str]], Mask] = {}
        for place, view in enumerate(self.views):
            self._add(place, view, now)
        self.has_degraded = bool(self.degraded.any())
        self.has_used_outside = bool(self.used_outside.any())
        self.gpus_failed = [sum(gpu.is_failed for gpu in view.gpus) for view in self.views]
        self.gpus_outside = [sum(gpu.is_used_outside for gpu in view.gpus) for view in self.views]
        self.gpus_total: Ints = np.count_nonzero(self.gpu_memory >= 0, axis=0)
        self.last_used = self._last_used()
        self._uses = self.size

    def _add(self, place: int, view: ApplianceView, now: datetime) -> None:
        for slot, gpu in enumerate(view.gpus):
            self.gpu_memory[slot, place] = gpu.memory_bytes
            if gpu.model not in self._models:
                self._models[gpu.model] = np.zeros((self.slots, self.size), np.bool_)
            self._models[gpu.model][slot, place] = True
            self.degraded[slot, place] = gpu.state is HealthState.DEGRADED
            if not gpu.is_failed and not view.failure:
                self.usable[slot, place] = True
                self.used_outside[slot, place] = gpu.is_used_outside
                self.gpu_free[slot, place] = 0 if gpu.is_used_outside else WHOLE_GPU
        # The others have no capacity that an end could free.
        slots = {
            gpu.uuid: slot
            for slot, gpu in enumerate(view.gpus if view.running else ())
            if self.gpu_free[slot, place]
        }
        for job in view.running:
            self._put(place, _allocation(job, slots, now))

    def _last_used(self) -> Ints:
        """Return a rank for each appliance; those never used come first, by name."""
        used = [(view.last_used_at, place) for place, view in enumerate(self.views)]
        order = [place for at, place in used if at is None]
        order += [place for _, place in sorted((at, place) for at, place in used if at is not None)]
        ranks = np.empty(self.size, np.int64)
        ranks[order] = np.arange(self.size)
        return ranks

    @cached_property
    def sites(self) -> Ints:
        """The site of each appliance as a number; -1 where it is unknown."""
        return _numbered([view.site for view in self.views])

    @cached_property
    def nvlink_domains(self) -> Ints:
        """The NVLink domain of each appliance as a number; -1 without one."""
        return _numbered([view.nvlink_domain for view in self.views])

    def eligible(self, shape: JobShape) -> Mask:
        """Return the GPUs whose memory and model suffice, whatever their state."""
        key = (shape.gpu_memory_bytes, shape.gpu_models)
        if key not in self._eligible:
            gpus: Mask = self.gpu_memory >= shape.gpu_memory_bytes
            if shape.gpu_models:
                nothing = np.zeros_like(gpus)
                of_model = [self._models.get(model, nothing) for model in shape.gpu_models]
                gpus &= np.logical_or.reduce(of_model)
            self._eligible[key] = gpus
        return self._eligible[key]

    @property
    def models(self) -> Sequence[str]:
        """The models of the GPUs."""
        return list(self._models)

    def free_gpus(self, models: Collection[str], places: Mask) -> int:
        """Return how many GPUs of some models are free on some appliances."""
        free = (self.gpu_free >= WHOLE_GPU) & places
        return sum(int(np.count_nonzero(free & self._models[model])) for model in models)

    def use(self, place: int) -> None:
        """Make an appliance the most recently used one."""
        self.last_used[place] = self._uses
        self._uses += 1

    def pick_gpus(
        self, place: int, shape: JobShape, *, most_free: bool = False, first: int | None = None
    ) -> tuple[int, ...]:
        """Return the GPUs for a job that fits: healthy ones first, then the smallest, then the
        fullest (or the emptiest) that suffice; `first` comes before all."""
        if not shape.gpus:
            return ()
        free, memory = self.gpu_free[:, place].tolist(), self.gpu_memory[:, place].tolist()
        bad, able = self.degraded[:, place].tolist(), self.eligible_at(place, shape)
        slots = [slot for slot in range(self.slots) if able[slot] and free[slot] >= shape.gpu_milli]
        sign = -1 if most_free else 1
        slots.sort(key=lambda slot: (slot != first, bad[slot], memory[slot], sign * free[slot]))
        return tuple(slots[: shape.gpus])

    def eligible_at(self, place: int, shape: JobShape) -> Sequence[bool]:
        """Return which GPUs of one appliance suffice in memory and model."""
        gpus: Sequence[bool] = self.eligible(shape)[:, place].tolist()
        return gpus

    def allocate(self, place: int, job: JobView, gpus: Sequence[int], *, now: datetime) -> None:
        """Give a job its resources."""
        ends_at = now + (job.time_limit or UNLIMITED)
        self._put(
            place,
            Allocation(job.id, ends_at, gpus, job.gpu_milli, job.cpus, job.memory_bytes),
        )
        self.use(place)

    def end(self, place: int, job_id: str, *, at: datetime) -> None:
        """Let a job end at another time than by its limit."""
        self.allocations[place] = [
            allocation._replace(ends_at=at) if allocation.job_id == job_id else allocation
            for allocation in self.allocations[place]
        ]

    def release(self, place: int, allocation: Allocation) -> None:
        """Take a job's resources back."""
        self.allocations[place].remove(allocation)
        self._change(place, allocation, sign=1)

    def _put(self, place: int, allocation: Allocation) -> None:
        self.allocations[place].append(allocation)
        self._change(place, allocation, sign=-1)

    def _change(self, place: int, allocation: Allocation, *, sign: int) -> None:
        for slot in allocation.gpus:
            self.gpu_free[slot, place] += sign * allocation.gpu_milli
        self.cpus_free[place] += sign * allocation.cpus
        self.memory_free[place] += sign * allocation.memory_bytes
        self.version[place] += 1
        self.changes += 1


def _numbered(names: Sequence[str]) -> Ints:
    numbers = {name: number for number, name in enumerate(sorted(set(names) - {""}))}
    return np.array([numbers.get(name, -1) for name in names], np.int64)


def _allocation(job: RunningJob, slots: dict[str, int], now: datetime) -> Allocation:
    # A job past its limit stops at any moment.
    ends_at = now + UNLIMITED if job.ends_at is None else max(job.ends_at, now)
    if job.is_stopping:
        ends_at = now
    gpus = [slots[uuid] for uuid in job.gpu_uuids if uuid in slots]
    return Allocation(job.job_id, ends_at, gpus, job.gpu_milli, job.cpus, job.memory_bytes)
