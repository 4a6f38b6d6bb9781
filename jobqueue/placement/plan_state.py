"""What each job of a plan has and counts towards: size, resources, claims, caps, quotas. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from jobqueue.executors.abilities import Need
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.placement.data_locality import DataLocality, DataWait, total_bytes
from jobqueue.placement.filters import (
    CHOSEN,
    FEASIBLE,
    FREE,
    RENTED,
    Filter,
    Rejection,
    apply_filters,
    passing,
)
from jobqueue.placement.ledger import IN_QUEUE, Allocation, Ledger, Mask
from jobqueue.placement.policies import POLICIES
from jobqueue.placement.preemption import Owner, Rules, picked_gpus
from jobqueue.placement.quotas import Quotas, Verdict
from jobqueue.placement.reservations import Reservations, ReservedTimes
from jobqueue.placement.slices import Part
from jobqueue.placement.views import JobShape, JobView, RunningJob, Snapshot
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, PartitionMode

NO_SLICES = "No GPU that it may use is cut into slices that suffice, so it gets a whole one."


class PlanState:
    """The ledger of a snapshot, caps, quotas and reservations; `now` moves only in forecasts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now = snapshot.now
        self.ledger = Ledger(snapshot.appliances, now=snapshot.now, isolation=snapshot.isolation)
        self.data = DataLocality(self.ledger, snapshot.copies)
        if snapshot.caches is not None:
            self.data.set_caches(snapshot.caches)
        self.data_wait = DataWait(
            self.ledger, self.data, longest_fetch=snapshot.longest_fetch, now=snapshot.now
        )
        self.reservations = Reservations(self.ledger)
        self.reserved = ReservedTimes(self.ledger, snapshot)
        self._policy = POLICIES[snapshot.policy](self.ledger, snapshot)
        self._feasible: dict[JobShape, tuple[Mask, list[Rejection]]] = {}
        self._full: dict[
            tuple[JobShape, timedelta | None, str | None, bytes], tuple[int, list[Rejection]]
        ] = {}
        self._barred: dict[tuple[JobShape, timedelta | None], Mask] = {}
        self._gpus_by_user: defaultdict[str | None, float] = defaultdict(float)
        self._tasks_by_array: Counter[str] = Counter()
        self._owners: dict[str, Owner] = {}
        self.quotas = Quotas(snapshot, self.ledger.models)
        self._claims: dict[str, tuple[int, Allocation]] = {}
        for view in snapshot.appliances:
            for running in view.running:
                if running.is_foreign:
                    self._owners[running.job_id] = Owner(is_stopping=running.is_stopping)
                    continue
                self._count(
                    running.job_id,
                    Owner(
                        running.user_id,
                        len(running.gpu_uuids) * running.gpu_milli / WHOLE_GPU,
                        running.array_id,
                        self.quotas.use_of(running, view.models_of(running)),
                        running.is_stopping,
                    ),
                )
        self.quotas.measure_idle(self.ledger)

    def kept_places(self, job: JobView) -> Mask:
        """Return the appliances that reservations keep from a job."""
        if not self.reserved:
            return np.zeros(self.ledger.size, np.bool_)
        return self.reserved.filter_for(job, self.now).rejects(self.ledger, job.shape)

    def free_filters(self, job: JobView) -> Sequence[Filter]:
        """Return the filters for appliances that can run a job now."""
        far = self.far(job)
        if far is None:
            return self._room_filters(job)
        return [*self._room_filters(job), self.data_wait.filter_for(job, far)]

    def _room_filters(self, job: JobView) -> Sequence[Filter]:
        return [*FREE, self.reserved.filter_for(job, self.now)] if self.reserved else FREE

    def far(self, job: JobView) -> Mask | None:
        """Return where a job waits for its data, without GPUs; None if nowhere."""
        return self.data_wait.far(job, now=self.now)

    def near(self, job: JobView, places: Mask) -> Mask:
        """Return those of some appliances where a job need not wait for its data."""
        far = self.far(job)
        return places if far is None else places & ~far

    def feasible(self, shape: JobShape) -> tuple[Mask, list[Rejection]]:
        """Return the feasible appliances for a shape, and the rejections of the others."""
        if shape not in self._feasible:
            everything = np.ones(self.ledger.size, np.bool_)
            self._feasible[shape] = apply_filters(FEASIBLE, self.ledger, shape, everything)
        return self._feasible[shape]

    def release(self, places: Iterable[int], at: datetime) -> list[tuple[datetime, int]]:
        """Go on to a time at which jobs on some appliances reach their limits; for forecasts.

        Returns:
            When jobs end that start now from the queue of a cluster, with their places.
        """
        self.now = at
        ends: list[tuple[datetime, int]] = []
        for place in places:
            for ended in [
                allocation
                for allocation in self.ledger.allocations[place]
                if allocation.ends_at <= at and allocation.node != IN_QUEUE
            ]:
                self.ledger.release(place, ended)
                self._claims.pop(ended.job_id, None)
                self._count(ended.job_id, self._owners.get(ended.job_id, Owner()), sign=-1)
            if place in self.ledger.clusters:
                ends += [(end, place) for end in self.ledger.start_waiting(place, at)]
        self._full.clear()
        self._barred.clear()
        self.reservations = Reservations(self.ledger)
        return ends

    def occupy(
        self, job: JobView, place: int, gpus: Sequence[int], part: Part | None = None
    ) -> GPUSlice | None:
        """Give a job its resources on an appliance; they count towards caps and quotas.

        Returns:
            Its slice, unless it gets whole GPUs.
        """
        allocation = self.ledger.allocate(place, job, gpus, now=self.now, part=part)
        self.reserved.add(job)
        view = self.ledger.views[place]
        if view.cluster is None:
            models = [view.gpus[slot].model for slot in gpus]
        else:
            models = [view.cluster.model_for(allocation.node, job.gpu_models)] * len(gpus)
        use = self.quotas.use_of(job, models)
        self._count(job.id, Owner(job.user_id, job.gpu_count, job.array_id, use))
        return self.ledger.slice_of(place, allocation)

    def _claim(self, job: JobView, place: int, victims: Sequence[RunningJob]) -> None:
        """Give a job what others on an appliance have until they stop for it.

        So neither a job that borrows nor another one that a guarantee covers takes it meanwhile.
        """
        for victim in victims:
            owner = self._owners[victim.job_id]._replace(is_stopping=True)
            self.quotas.stop(owner.use)
            self._owners[victim.job_id] = owner
            self.ledger.end(place, victim.job_id, at=self.now)
        freed = [
            allocation
            for allocation in self.ledger.allocations[place]
            if self._owners[allocation.job_id].is_stopping
        ]
        self.occupy(job, place, *picked_gpus(job, self.ledger, place, freed))
        self._claims[job.id] = place, self.ledger.allocations[place][-1]

    def _drop_claim(self, job: JobView) -> None:
        place, allocation = self._claims.pop(job.id, (0, None))
        if allocation is not None:
            self.ledger.release(place, allocation)
            self._count(job.id, self._owners[job.id], sign=-1)

    def _count(self, job_id: str, owner: Owner, *, sign: int = 1) -> None:
        self._owners[job_id] = owner
        self.quotas.count(owner.use, sign=sign, is_stopping=owner.is_stopping)
        self._gpus_by_user[owner.user_id] += sign * owner.gpus
        if owner.array_id:
            self._tasks_by_array[owner.array_id] += sign

    def cap_reason(self, job: JobView) -> str:
        """Return which cap a job would exceed, or what holds it; "" if it may start."""
        if job.array_id and 0 < job.array_limit <= self._tasks_by_array[job.array_id]:
            return f"{job.array_limit} tasks of the array are running, which is its limit."
        caps, gpus = self.snapshot.caps, job.whole.gpu_count
        if not gpus:
            return ""
        for hold in self.snapshot.holds:
            if not hold.is_for_rentals and hold.covers(job):
                return hold.reason
        if caps.gpus_per_user is not None:
            used = self._gpus_by_user[job.user_id]
            if used + gpus > caps.gpus_per_user:
                return (
                    f"The user's jobs have {used:g} of at most {caps.gpus_per_user} GPUs, and this "
                    f"one requests {gpus:g}."
                )
        if caps.gpus is not None:
            used = sum(self._gpus_by_user.values())
            if used + gpus > caps.gpus:
                return (
                    f"The tenant's jobs have {used:g} of at most {caps.gpus} GPUs, and this one "
                    f"requests {gpus:g}."
                )
        return ""

    def data_of(self, job: JobView, place: int) -> dict[str, Any]:
        """Return the fields of a decision about the data of a job on an appliance."""
        if not job.datasets:
            return {}
        cached = int(self.data.cached_bytes(job.datasets)[place])
        return {"cached_bytes": cached, "dataset_bytes": total_bytes(job.datasets)}

    def failed_on(self, job: JobView) -> Mask:
        """Return the appliances where attempts of a job failed."""
        places = [self.ledger.index[ident] for ident in job.failed_on if ident in self.ledger.index]
        mask = np.zeros(self.ledger.size, np.bool_)
        mask[places] = True
        return mask

    def may_preempt(self, job: JobView) -> bool:
        """Return whether jobs may be stopped for a job."""
        return self.snapshot.allows_preemption and not job.is_preemptible

    def rules(self, reclaim: Verdict | None = None) -> Rules:
        """Return which running jobs may stop for a waiting one."""
        return Rules(self.quotas, self._owners, reclaim)


def sized(ledger: Ledger, job: JobView) -> JobView:
    """Return a job with the size of its slice, or one for a whole GPU in place of it.

    It gets a whole one if it names no profile, and none of the GPUs that it may use is cut into
    slices that suffice.
    """
    need, slices, shape = job.slice_need, ledger.slices, job.shape
    if need is None:
        return job
    if slices is not None:
        places = passing((*CHOSEN, *RENTED), ledger, shape, np.ones(ledger.size, np.bool_))
        if (ledger.eligible(shape) & places).any():
            return msgspec.structs.replace(job, gpu_milli=slices.milli(need))
    return job if need.profile else whole_gpu_for(job)


def whole_gpu_for(job: JobView) -> JobView:
    """Return a job that requests a whole GPU in place of a slice."""
    memory_bytes = job.slice_need.memory_bytes if job.slice_need else 0
    return msgspec.structs.replace(
        job,
        slice_need=None,
        gpus=1,
        gpu_milli=WHOLE_GPU,
        gpu_memory_bytes=memory_bytes,
        needs=job.needs - {Need.GPU_SLICE},
    )


def slice_text(ledger: Ledger, held: GPUSlice, place: int, slot: int) -> str:
    """Return what a job gets of a GPU, as a sentence."""
    slices, view = ledger.slices, ledger.views[place]
    gpu = f"GPU {slot}"
    if held.mode is not PartitionMode.MIG:
        shares = "a share" if held.shares == 1 else f"{held.shares} shares"
        return f"It gets {shares} of {gpu} under {MODE_NAMES[held.mode]}."
    last = held.start + held.slots - 1
    slots = f"slot {last}" if held.slots == 1 else f"slots {held.start} to {last}"
    text = f"It gets a {held.profile} instance in {slots} of {gpu}."
    is_alone = slices is not None and len(slices.parts_at(place, slot)) == 1
    if is_alone and slices is not None and slices.changes_layout(place, slot):
        text += f" {gpu} of {view.name} was idle, so its layout changes for this job."
    return text
