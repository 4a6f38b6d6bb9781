"""The resources of a fleet while a plan grows, as arrays over its appliances in name order.

One placement looks at all appliances at once, so its time hardly grows with the fleet. Resources
only shrink within a plan; `release` is for forecasts, which play what comes later.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobqueue.partitions.isolation import IsolationRules
from jobqueue.placement.clusters import ANY_QUEUE, REPORT_AGE, ClusterRoom, NodeNeed, QueueNeed
from jobqueue.placement.fleet_slices import FleetSlices
from jobqueue.placement.slices import Part
from jobqueue.placement.views import (
    UNLIMITED,
    ApplianceView,
    JobShape,
    JobView,
    RunningJob,
)
from protocol.gpu_slices import WHOLE_GPU, GPUSlice
from protocol.health import HealthState

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
# The node of a job that waits in the queue of a cluster.
IN_QUEUE = -1


class Allocation(NamedTuple):
    """The resources of one job on one appliance; GPUs by their position on it.

    `part` is what it has of its only GPU; None for whole GPUs. On a cluster, `node` is the place of
    its node, `IN_QUEUE` while it has none, and None where it is unknown; from its start on it
    `runs_for` so long. Its node is in the partitions of its `queue`. On a rented appliance it
    counts towards a contract.
    """

    job_id: str
    ends_at: datetime
    gpus: Sequence[int]
    gpu_milli: int
    cpus: float
    memory_bytes: int
    part: Part | None = None
    node: int | None = None
    runs_for: timedelta = UNLIMITED
    queue: QueueNeed = ANY_QUEUE
    contract_id: str = ""

    @property
    def of_node(self) -> NodeNeed:
        """Return what it has of its node."""
        return NodeNeed(
            gpus=len(self.gpus),
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            queue=self.queue,
        )


class Ledger:
    """Total and free resources. GPU arrays have a row for each position, a column per appliance."""

    def __init__(
        self,
        appliances: Sequence[ApplianceView],
        *,
        now: datetime,
        isolation: IsolationRules | None = None,
    ) -> None:
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
        self.clusters = {
            place: ClusterRoom(view.cluster)
            for place, view in enumerate(self.views)
            if view.cluster is not None
        }
        self.is_cluster: Mask = np.zeros(self.size, np.bool_)
        self.is_cluster[list(self.clusters)] = True
        # Many appliances share a grant, each with its number in the list; -1 for own ones.
        grants = {id(view.rental): view.rental for view in self.views if view.rental}
        self.grants = list(grants.values())
        numbers = {ident: number for number, ident in enumerate(grants)}
        self.grant_of: Ints = np.array(
            [numbers[id(view.rental)] if view.rental else -1 for view in self.views], np.int64
        )
        self.is_rented: Mask = self.grant_of >= 0
        self.contract_milli: Counter[str] = Counter()
        self.version: Ints = np.zeros(self.size, np.int64)
        self.changes = 0
        self.allocations: list[list[Allocation]] = [[] for _ in self.views]
        self._models: dict[str, Mask] = {}
        self._eligible: dict[tuple[object, ...], Mask] = {}
        # Which GPUs have room for slices, as of the last change.
        self._room: dict[tuple[JobShape, bool], Mask] = {}
        self._room_at = 0
        self.slices: FleetSlices | None = None
        if any(gpu.kind for view in self.views for gpu in view.gpus):
            kinds = [[gpu.kind for gpu in view.gpus] for view in self.views]
            self.slices = FleetSlices(kinds, self.slots, isolation or IsolationRules())
        for place, view in enumerate(self.views):
            if place in self.clusters:
                self._add_cluster(place, view, now)
            else:
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
                is_open = not (gpu.is_used_outside or gpu.is_switching)
                self.gpu_free[slot, place] = WHOLE_GPU if is_open else 0
        # The others have no capacity that an end could free.
        slots = {
            gpu.uuid: slot
            for slot, gpu in enumerate(view.gpus if view.running else ())
            if self.gpu_free[slot, place]
        }
        for job in view.running:
            self._put(place, _allocation(job, slots, now))

    def _add_cluster(self, place: int, view: ApplianceView, now: datetime) -> None:
        room = self.clusters[place]
        for model in {"", *room.view.models}:
            self._models.setdefault(model, np.zeros((self.slots, self.size), np.bool_))
        is_up = room.view.is_up
        self.cpus_free[place] = room.cpus[is_up].sum()
        self.memory_free[place] = room.memory_bytes[is_up].sum()
        for job in view.running:
            slots = {uuid: slot for slot, uuid in enumerate(job.gpu_uuids)}
            allocation = _allocation(job, slots, now)._replace(queue=QueueNeed(job.partitions))
            node = room.view.places.get(job.node)
            is_reported = job.started_at is not None and job.started_at <= now - REPORT_AGE
            if is_reported:
                self.allocations[place].append(allocation._replace(node=node))
                continue
            if node is None:
                node = room.pick(allocation.of_node)
            if node is None and job.started_at is None:
                node = IN_QUEUE
            runs_for = allocation.ends_at - now
            self._put(place, allocation._replace(node=node, runs_for=runs_for))
            room.waiting += job.started_at is None

    def start_waiting(self, place: int, at: datetime) -> list[datetime]:
        """Let the jobs in a cluster's queue start that have room; return when they end."""
        room, ends = self.clusters[place], []
        for index, allocation in enumerate(self.allocations[place]):
            if allocation.node != IN_QUEUE:
                continue
            node = room.pick(allocation.of_node)
            if node is not None:
                started = allocation._replace(node=node, ends_at=at + allocation.runs_for)
                self.allocations[place][index] = started
                self._change(place, started, sign=-1)
                ends.append(started.ends_at)
        room.waiting = sum(ended.node == IN_QUEUE for ended in self.allocations[place])
        return ends

    def _last_used(self) -> Ints:
        """Return a rank for each appliance; those never used come first, by name."""
        used = [(view.last_used_at, place) for place, view in enumerate(self.views)]
        order = [place for at, place in used if at is None]
        order += [place for _, place in sorted((at, place) for at, place in used if at is not None)]
        ranks = np.empty(self.size, np.int64)
        ranks[order] = np.arange(self.size)
        return ranks

    def of_grants(self, are_meant: Sequence[bool]) -> Mask:
        """Return the rented appliances of some grants, chosen in the order of `grants`."""
        mask: Mask = np.array([*are_meant, False], np.bool_)[self.grant_of]
        return mask

    @cached_property
    def offer_ranks(self) -> Ints:
        """The place of each appliance in the order of offers, from 0; -1 for own ones."""
        ranks = {rank: at for at, rank in enumerate(sorted({grant.rank for grant in self.grants}))}
        of_grants = [*(ranks[grant.rank] for grant in self.grants), -1]
        places: Ints = np.array(of_grants, np.int64)[self.grant_of]
        return places

    @cached_property
    def sites(self) -> Ints:
        """The site of each appliance as a number; -1 where it is unknown."""
        return _numbered([view.site for view in self.views])

    @cached_property
    def network_sites(self) -> Ints:
        """Likewise, where those of an unknown site are of one."""
        return _numbered([view.site or " " for view in self.views])

    @cached_property
    def reach(self) -> Ints:
        """How far the private network of a gang reaches from each appliance."""
        return np.array([view.reach for view in self.views], np.int64)

    @cached_property
    def nvlink_domains(self) -> Ints:
        """The NVLink domain of each appliance as a number; -1 without one."""
        return _numbered([view.nvlink_domain for view in self.views])

    def eligible(self, shape: JobShape) -> Mask:
        """Return the GPUs whose memory, model and slices suffice, whatever their state."""
        need = shape.slice and shape.slice.need
        key = (shape.gpu_memory_bytes, shape.gpu_models, need)
        if key not in self._eligible:
            gpus = self.large_enough(shape)
            if need is not None:
                gpus &= self.slices.offering(need) if self.slices else False
            elif self.slices:
                gpus &= ~self.slices.is_mig
            self._eligible[key] = gpus
        return self._eligible[key]

    def large_enough(self, shape: JobShape) -> Mask:
        """Return the GPUs whose memory and model suffice, however they are shared."""
        gpus: Mask = self.gpu_memory >= shape.gpu_memory_bytes
        if shape.gpu_models:
            nothing = np.zeros_like(gpus)
            of_model = [self._models.get(model, nothing) for model in shape.gpu_models]
            gpus &= np.logical_or.reduce(of_model)
        return gpus

    def with_room(self, shape: JobShape, *, is_isolated: bool = True) -> Mask:
        """Return the GPUs that a job could have now, as far as it needs only one of them.

        Without `is_isolated`, jobs that must not share a GPU with it are no obstacle.
        """
        if shape.slice is None:
            room: Mask = self.gpu_free >= shape.gpu_milli
            if not (shape.gpu_memory_bytes or shape.gpu_models or self.slices):
                # Positions without a GPU have no capacity in any case.
                return room
            return room & self.eligible(shape)
        if self.slices is None:
            return np.zeros_like(self.usable)
        key = (shape, is_isolated)
        if self._room_at != self.changes:
            self._room_at = self.changes
            self._room.clear()
        if key not in self._room:
            room = self.slices.with_room(shape.slice, is_isolated=is_isolated)
            self._room[key] = room & (self.gpu_free > 0) & self.eligible(shape)
        return self._room[key]

    @property
    def models(self) -> Sequence[str]:
        """The models of the GPUs."""
        return list(self._models)

    def free_gpus(self, models: Collection[str], places: Mask) -> float:
        """Return how many GPUs of some models are free on some appliances, with parts of GPUs."""
        free = np.maximum(self.gpu_free, 0) * places
        whole = sum(
            int(room.free_gpus[room.view.of_models(models)].sum())
            for place, room in self.clusters.items()
            if places[place]
        )
        return whole + sum(int(free[self._models[model]].sum()) for model in models) / WHOLE_GPU

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
        if place in self.clusters:
            return tuple(range(shape.gpus))
        free, memory = self.gpu_free[:, place].tolist(), self.gpu_memory[:, place].tolist()
        bad, sign = self.degraded[:, place].tolist(), -1 if most_free else 1
        if shape.slice is None:
            able = self.eligible_at(place, shape)
            slots = [at for at in range(self.slots) if able[at] and free[at] >= shape.gpu_milli]
            slots.sort(key=lambda slot: (slot != first, bad[slot], memory[slot], sign * free[slot]))
            return tuple(slots[: shape.gpus])
        parts = {slot: self._part(place, slot, shape) for slot in range(self.slots)}
        fitting = {slot: part.milli for slot, part in parts.items() if part is not None}
        order = sorted(
            fitting,
            key=lambda slot: (slot != first, bad[slot], fitting[slot], sign * free[slot]),
        )
        return tuple(order[:1])

    def _part(self, place: int, slot: int, shape: JobShape) -> Part | None:
        """Return the part of a GPU that a job would get now; None if it doesn't fit."""
        if self.slices is None or shape.slice is None or self.gpu_free[slot, place] <= 0:
            return None
        if not self.eligible(shape)[slot, place]:
            return None
        return self.slices.part_for(place, slot, shape.slice)

    def slice_of(self, place: int, allocation: Allocation) -> GPUSlice | None:
        """Return what an allocation has of its only GPU; None for whole GPUs."""
        if self.slices is None or allocation.part is None:
            return None
        slot = allocation.gpus[0]
        kind = self.slices.kind_at(place, slot)
        if kind is None:
            return None
        return allocation.part.slice_of(self.views[place].gpus[slot].uuid, kind)

    def eligible_at(self, place: int, shape: JobShape) -> Sequence[bool]:
        """Return which GPUs of one appliance suffice in memory and model."""
        gpus: Sequence[bool] = self.eligible(shape)[:, place].tolist()
        return gpus

    def allocate(
        self,
        place: int,
        job: JobView,
        gpus: Sequence[int],
        *,
        now: datetime,
        part: Part | None = None,
    ) -> Allocation:
        """Give a job its resources; with `part`, of a GPU on which it doesn't fit yet."""
        ends_at = now + (job.time_limit or UNLIMITED)
        allocation = self.allocation(place, job, gpus, ends_at, part=part)
        if place in self.clusters:
            room = self.clusters[place]
            node = room.pick(job.shape.of_node)
            node = IN_QUEUE if node is None else node
            allocation = allocation._replace(
                node=node, runs_for=ends_at - now, queue=job.queue_need
            )
            room.waiting += 1
        self._put(place, allocation)
        self.use(place)
        return allocation

    def allocation(
        self,
        place: int,
        job: JobView,
        gpus: Sequence[int],
        ends_at: datetime,
        *,
        part: Part | None = None,
    ) -> Allocation:
        """Return what a job would get on an appliance, with these GPUs."""
        if job.slice_need is not None and gpus and part is None:
            part = self._part(place, gpus[0], job.shape)
        milli = part.milli if part else job.gpu_milli
        rental = self.views[place].rental
        allocation = Allocation(job.id, ends_at, gpus, milli, job.cpus, job.memory_bytes, part)
        return allocation._replace(contract_id=rental.contract_id) if rental else allocation

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
        if place in self.clusters:
            self._change_cluster(place, allocation, sign=sign)
            return
        if allocation.contract_id:
            milli = len(allocation.gpus) * allocation.gpu_milli
            self.contract_milli[allocation.contract_id] -= sign * milli
        for slot in allocation.gpus:
            self.gpu_free[slot, place] += sign * allocation.gpu_milli
            if allocation.part is not None and self.slices is not None:
                (self.slices.drop if sign > 0 else self.slices.put)(place, slot, allocation.part)
        self.cpus_free[place] += sign * allocation.cpus
        self.memory_free[place] += sign * allocation.memory_bytes
        self.version[place] += 1
        self.changes += 1

    def _change_cluster(self, place: int, allocation: Allocation, *, sign: int) -> None:
        node, room = allocation.node, self.clusters[place]
        if node is not None and node != IN_QUEUE:
            room.change(node, allocation.of_node, sign=sign)
            if room.view.is_up[node]:
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
    held, part = job.gpu_slice, None
    if held is not None:
        part = Part.of(held, job.user_id, job.project_id)
    allocation = Allocation(
        job.job_id, ends_at, gpus, job.gpu_milli, job.cpus, job.memory_bytes, part
    )
    return allocation._replace(contract_id=job.contract_id) if job.contract_id else allocation
