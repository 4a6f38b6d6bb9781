"""Backfill: a later job may use an appliance that an earlier one waits for, if it can't delay it.

The earlier job's start is the time at which it fits once running jobs have reached their time
limits. Jobs without a limit are assumed to run for `UNLIMITED`, so a job without one never passes
by ending in time, only by using what the earlier job leaves over. The first job in the queue that
is bound to an appliance is protected there (EASY backfill).

Source: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates
in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.
"""

from collections.abc import Sequence
from datetime import datetime

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.ledger import Allocation, Ledger
from jobqueue.placement.room import Room
from jobqueue.placement.views import UNLIMITED, JobShape, JobView


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
