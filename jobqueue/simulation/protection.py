"""Protection of earlier jobs from backfill, as arrays that follow the events of a replay.

In the queue, each plan adds the reservations anew, in the order of the queue, so a job sees only
those of jobs before it. A replay is one long plan: here each appliance has all the jobs that are
bound to it, and a job is delayed only by the first of them, and only if that one comes before it.
"""

import heapq
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.reservations import Reservations, earliest_start
from jobqueue.placement.views import JobView

Key = tuple[bool, float, float, int]
# Instants are compared as floats here, which are coarser than a microsecond.
_TOLERANCE = 1e-3
# As many appliances are looked at one by one faster than all of them at once.
_FEW = 8


class Spare(NamedTuple):
    """When the protected job of an appliance can start, and what it leaves over from then on."""

    starts_at: float
    milli: int
    cpus: float
    memory_bytes: int

    def admits(self, job: JobView, now: float) -> bool:
        """Return whether a job would end by then, or needs no more than what is left over."""
        limit = job.time_limit.total_seconds() if job.time_limit else np.inf
        return now + limit <= self.starts_at + _TOLERANCE or (
            job.gpus * job.gpu_milli <= self.milli
            and job.cpus <= self.cpus + CPU_TOLERANCE
            and job.memory_bytes <= self.memory_bytes
        )


class Protection(Reservations):
    """The jobs bound to each appliance; the first in the order is protected.

    Args:
        ledger: the resources.
        key: returns the place of a waiting job in the whole queue; None if it doesn't wait.
        is_held: whether a quota holds a waiting job now, which protects nothing then; None where
            there are no quotas.

    Attributes:
        opened: the appliances where another job is protected than before, so that jobs may pass
            which could not.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: Callable[[str], Key | None],
        is_held: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(ledger)
        self._is_held = is_held
        self.opened: set[int] = set()
        self._key = key
        self._bound: dict[int, list[tuple[Key, str, JobView]]] = {}
        # Where gangs are protected, and when all of their members can start.
        self._gangs: dict[str, tuple[datetime, list[int]]] = {}
        # By appliance, and the same as arrays.
        self._spares: dict[int, Spare] = {}
        self._starts_at = np.full(ledger.size, np.inf)
        self._spare_milli = np.zeros(ledger.size, np.int64)
        self._spare_cpus = np.zeros(ledger.size)
        self._spare_memory = np.zeros(ledger.size, np.int64)
        self._stale: set[int] = set()

    def add(self, place: int, job: JobView, *, not_before: datetime | None = None) -> None:
        """Bind a waiting job, or members of a waiting gang, to an appliance."""
        key = self._key(job.id)
        if key is None:
            return
        if not_before is not None:
            self._gangs.setdefault(job.id, (not_before, []))[1].append(place)
        heapq.heappush(self._bound.setdefault(place, []), (key, job.id, job))
        self.settle(place)

    def protects_gang(self, job_id: str, *, now: datetime) -> bool:
        """Return whether a gang is protected, and could not have started yet."""
        return job_id in self._gangs and self._gangs[job_id][0] > now

    def drop_gang(self, job_id: str) -> None:
        """Protect a gang no longer."""
        _, places = self._gangs.pop(job_id, (None, ()))
        self.gangs -= bool(places)
        for place in places:
            others = [bound for bound in self._bound.get(place, ()) if bound[1] != job_id]
            heapq.heapify(others)
            self._bound[place] = others
            self.settle(place)

    def settle(self, place: int) -> None:
        """Protect the first job that still waits for an appliance."""
        bound = self._bound.get(place)
        if bound is None:
            return
        while bound and self._key(bound[0][1]) is None:
            heapq.heappop(bound)
        before = self.jobs.pop(place, None)
        self._not_before.pop(place, None)
        if bound:
            self.jobs[place] = bound[0][2]
            if bound[0][1] in self._gangs:
                self._not_before[place] = self._gangs[bound[0][1]][0]
        else:
            del self._bound[place]
            self._spares.pop(place, None)
            self._starts_at[place] = np.inf
        if before is not self.jobs.get(place):
            self._starts.pop(place, None)
            self.touch(place)
            if before is not None:
                self.opened.add(place)

    def touch(self, place: int) -> None:
        """Note that resources of an appliance were allocated or freed, or who is protected."""
        if place in self.jobs:
            self._stale.add(place)
        else:
            self._stale.discard(place)

    def would_delay(self, job: JobView, place: int, gpus: Sequence[int], *, now: datetime) -> bool:
        """Return whether a job that starts now would delay an earlier one that is protected."""
        earlier = self.jobs.get(place)
        if earlier is None or self.is_before(job.id, place):
            return False
        return super().would_delay(job, place, gpus, now=now)

    def admitted(self, job: JobView, free: Mask, *, now: datetime) -> Mask:
        """Return the free appliances where a job may pass; `would_delay` is exact about these."""
        if not self.jobs:
            return free
        places = np.flatnonzero(free)
        if places.size <= _FEW:
            free = free.copy()
            free[[at for at in places.tolist() if not self.admits(job, at, now=now)]] = False
            return free
        for place in [at for at in self._stale if free[at]]:
            self._refresh(place, now)
        limit = job.time_limit.total_seconds() if job.time_limit else np.inf
        passes: Mask = now.timestamp() + limit <= self._starts_at + _TOLERANCE
        passes |= (
            (job.gpus * job.gpu_milli <= self._spare_milli)
            & (job.cpus <= self._spare_cpus + CPU_TOLERANCE)
            & (job.memory_bytes <= self._spare_memory)
        )
        barred = np.flatnonzero(free & ~passes).tolist()
        own = self._key(job.id) if barred else None
        for place in barred:
            passes[place] = self._is_before(job.id, own, place)
        return free & passes

    def admits(self, job: JobView, place: int, *, now: datetime) -> bool:
        """Return whether a job may pass on an appliance, as `admitted` does."""
        spare = self.spare(place, now)
        return spare is None or spare.admits(job, now.timestamp()) or self.is_before(job.id, place)

    def spare(self, place: int, now: datetime) -> Spare | None:
        """Return when the protected job can start, and what it leaves over; None if there is no
        such job."""
        if place not in self.jobs:
            return None
        if place in self._stale:
            self._refresh(place, now)
        return self._spares[place]

    def is_before(self, job_id: str, place: int) -> bool:
        """Return whether a job comes before the one protected there, or is that one."""
        return self._is_before(job_id, self._key(job_id), place)

    def _is_before(self, job_id: str, key: Key | None, place: int) -> bool:
        earlier = self.jobs[place].id
        if job_id == earlier:
            return True
        other = self._key(earlier)
        if key is not None and other is not None and key < other:
            return True
        return self._is_held is not None and self._is_held(earlier)

    def _refresh(self, place: int, now: datetime) -> None:
        ledger, earlier = self._ledger, self.jobs[place]
        running = ledger.allocations[place]
        start = earliest_start(ledger, place, earlier.shape, running, now=now)
        start = max(start, self._not_before.get(place, start))
        over = [allocation for allocation in running if allocation.ends_at <= start]
        milli = int(ledger.gpu_free[:, place].sum())
        milli += sum(len(ended.gpus) * ended.gpu_milli for ended in over)
        spare = Spare(
            start.timestamp(),
            milli - earlier.gpus * earlier.gpu_milli,
            float(ledger.cpus_free[place]) + sum(ended.cpus for ended in over) - earlier.cpus,
            int(ledger.memory_free[place])
            + sum(ended.memory_bytes for ended in over)
            - earlier.memory_bytes,
        )
        self._spares[place] = spare
        self._starts_at[place], self._spare_milli[place] = spare.starts_at, spare.milli
        self._spare_cpus[place], self._spare_memory[place] = spare.cpus, spare.memory_bytes
        self._stale.discard(place)
