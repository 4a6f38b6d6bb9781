"""What is kept for later: for earlier jobs, by backfill, and for projects at reserved times.

Backfill: a later job may use an appliance that an earlier one waits for, if it can't delay it. The
earlier job's start is the time at which it fits once running jobs have reached their time limits.
Jobs without a limit are assumed to run for `UNLIMITED`, so a job without one never passes by ending
in time, only by using what the earlier job leaves over. The first job in the queue that is bound to
an appliance is protected there (EASY backfill).

At reserved times, only the jobs of a project start on some appliances, or none. A job of another
project doesn't start where its time limit would end after a reservation begins; one without a limit
never starts there. Where only some GPUs are reserved, others may use the rest.

Source: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates
in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.filters import RESERVED_CODE, Filter
from jobqueue.placement.ledger import Allocation, Ledger, Mask
from jobqueue.placement.slices import Part, fitting_part
from jobqueue.placement.views import (
    UNLIMITED,
    JobShape,
    JobView,
    ReservationView,
    Snapshot,
    period_text,
)
from protocol.gpu_slices import WHOLE_GPU


class Reservations:
    """The appliances that earlier jobs wait for, with the time at which each can start."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.jobs: dict[int, JobView] = {}
        self.gangs = 0
        self._not_before: dict[int, datetime] = {}
        self._starts: dict[int, tuple[int, datetime]] = {}

    def add(self, place: int, job: JobView, *, not_before: datetime | None = None) -> None:
        """Protect a job on the appliance that it waits for, unless an earlier one is.

        Args:
            place: the appliance.
            job: the job, or as many members of a gang as wait for this appliance.
            not_before: when the other members of the gang can start.
        """
        # The queue of a cluster protects its jobs itself.
        if place not in self.jobs and place not in self._ledger.clusters:
            self.jobs[place] = job
            if not_before is not None:
                self._not_before[place] = not_before

    def would_delay(self, job: JobView, place: int, gpus: Sequence[int], *, now: datetime) -> bool:
        """Return whether a job that starts now would delay the one that is protected there."""
        earlier = self.jobs.get(place)
        if earlier is None or earlier.id == job.id:
            return False
        ledger, running = self._ledger, self._ledger.allocations[place]
        version = int(ledger.version[place])
        cached = self._starts.get(place)
        if cached is None or cached[0] != version:
            start = earliest_start(ledger, place, earlier.shape, running, now=now)
            start = max(start, self._not_before.get(place, start))
            self._starts[place] = cached = (version, start)
        # Without a limit it ends after everything that runs.
        ends_at = now + (job.time_limit or 2 * UNLIMITED)
        new = ledger.allocation(place, job, gpus, ends_at)
        return earliest_start(ledger, place, earlier.shape, running, new, now=now) > cached[1]


def earliest_start(
    ledger: Ledger,
    place: int,
    shape: JobShape,
    running: Sequence[Allocation],
    *starting: Allocation,
    now: datetime,
) -> datetime:
    """Return when a job fits on an appliance, once jobs have reached their limits.

    Args:
        ledger: the resources, of which `running` have theirs already, and `starting` not yet.
        place: the appliance.
        shape: what the job requires.
        running: the allocations on the appliance.
        starting: further ones, which start now.
        now: the time of the plan.
    """
    room = Room(ledger, place, shape)
    cpus, memory_bytes = float(ledger.cpus_free[place]), int(ledger.memory_free[place])
    for allocation in starting:
        cpus, memory_bytes = cpus - allocation.cpus, memory_bytes - allocation.memory_bytes
        room.take(allocation)
    ends = sorted([*running, *starting], key=lambda allocation: allocation.ends_at)
    at = now
    for ended in [None, *ends]:
        if ended is not None:
            at = max(ended.ends_at, now)
            cpus, memory_bytes = cpus + ended.cpus, memory_bytes + ended.memory_bytes
            room.free(ended)
        if (
            len(room.fitting()) >= shape.gpus
            and cpus >= shape.cpus - CPU_TOLERANCE
            and memory_bytes >= shape.memory_bytes
        ):
            return at
    return now + 3 * UNLIMITED


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


class ReservedTimes:
    """The reservations of a snapshot by the place of the appliance in the ledger."""

    def __init__(self, ledger: Ledger, snapshot: Snapshot) -> None:
        self._ledger = ledger
        self._at: defaultdict[int, list[ReservationView]] = defaultdict(list)
        for reservation in snapshot.reservations:
            for ident in reservation.appliance_ids:
                if ident in ledger.index:
                    self._at[ledger.index[ident]].append(reservation)
        self._projects: dict[str, str | None] = {}
        if self._at:
            self._projects = {
                running.job_id: running.project_id
                for view in snapshot.appliances
                for running in view.running
            }

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, job: JobView) -> None:
        """Note the project of a job that has started."""
        self._projects[job.id] = job.project_id

    def ends(self, now: datetime) -> Iterator[tuple[datetime, int]]:
        """Yield when reservations end that go on or are next, with their places."""
        for place, reservations in self._at.items():
            for reservation in reservations:
                period = reservation.period(now)
                if period is not None:
                    yield period[1], place

    def filter_for(self, job: JobView, now: datetime) -> Filter:
        """Return the filter that rejects the appliances that are kept from a job."""
        reasons = {
            place: reason
            for place in self._at
            if (reason := self._reason(place, job, now)) is not None
        }

        def rejects(ledger: Ledger, _shape: JobShape) -> Mask:
            mask = np.zeros(ledger.size, np.bool_)
            mask[list(reasons)] = True
            return mask

        return Filter(RESERVED_CODE, rejects, lambda _ledger, _shape, place: reasons[place])

    def _reason(self, place: int, job: JobView, now: datetime) -> str | None:
        ends_at = now + (job.time_limit or UNLIMITED)
        for reservation in self._at[place]:
            period = reservation.period(now)
            is_own = job.project_id is not None and job.project_id in reservation.project_ids
            if period is None or is_own or ends_at <= period[0]:
                continue
            if reservation.gpus is not None and self._fits_beside(place, job, reservation, now):
                continue
            return f"{_kept(reservation)} from {period_text(*period)}; {_limit_text(job, ends_at)}"
        return None

    def _fits_beside(
        self, place: int, job: JobView, reservation: ReservationView, now: datetime
    ) -> bool:
        """Return whether the reserved GPUs are free at the begin in spite of a job of others."""
        period = reservation.period(now)
        if period is None or not job.gpus:
            return True
        usable = sum(not gpu.is_failed for gpu in self._ledger.views[place].gpus)
        if place in self._ledger.clusters:
            usable = len(self._ledger.views[place].gpu_models)
        taken: defaultdict[str | None, float] = defaultdict(float)
        for allocation in self._ledger.allocations[place]:
            project_id = self._projects.get(allocation.job_id)
            if allocation.ends_at > period[0] and project_id not in reservation.project_ids:
                taken[project_id] += len(allocation.gpus) * allocation.gpu_milli / WHOLE_GPU
        reserved: float = reservation.gpus or 0
        for other in self._at[place]:
            if other is reservation or job.project_id in other.project_ids:
                continue
            if _overlap(period, other.period(now)):
                used = sum(taken[project_id] for project_id in other.project_ids)
                reserved += max(0, (other.gpus or 0) - used)
        return usable - sum(taken.values()) - job.gpu_count >= reserved


def _overlap(period: tuple[datetime, datetime], other: tuple[datetime, datetime] | None) -> bool:
    return other is not None and other[0] < period[1] and period[0] < other[1]


def _kept(reservation: ReservationView) -> str:
    gpus = "" if reservation.gpus is None else f"{reservation.gpus} GPUs "
    if reservation.holder:
        return f"{gpus}reserved by {reservation.holder}"
    if not reservation.project:
        return f"{gpus}kept free for {reservation.name!r}"
    return f"{gpus}reserved for project {reservation.project}"


def _limit_text(job: JobView, ends_at: datetime) -> str:
    if job.time_limit is None:
        return "the job has no time limit"
    return f"the job's limit ends at {ends_at:%Y-%m-%d %H:%M} UTC"
