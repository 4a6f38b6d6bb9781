"""Preemption: which running jobs stop for a waiting one, and are queued again.

Only jobs that were declared preemptible stop. Where the tenant allows it, they stop for jobs that
are not, of the same or a higher priority. They also stop, whatever the tenant allows, for a job
that the guarantee of its project covers, while their own project borrows: a *reclaim*. The project
that uses the most for each of its shares is the first to lose jobs. Of the jobs of a project on an
appliance, those of the lowest priority go first, then those that started last. As few GPUs as
possible are taken, and no other project falls below its guarantee.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from jobqueue.placement.ledger import Allocation, Ledger, Mask
from jobqueue.placement.quotas import NOTHING, Quotas, Use, Verdict
from jobqueue.placement.reservations import Room, earliest_start
from jobqueue.placement.slices import Part
from jobqueue.placement.views import JobView, RunningJob
from protocol.gpu_slices import WHOLE_GPU

# Appliances that are examined for one job.
MAX_EXAMINED = 200


class Owner(NamedTuple):
    """Whose job has resources, and what counts towards caps and quotas."""

    user_id: str | None = None
    gpus: float = 0
    array_id: str | None = None
    use: Use = NOTHING
    is_stopping: bool = False


class Rules(NamedTuple):
    """Which running jobs may stop for a job.

    Attributes:
        quotas: of the projects.
        owners: of the running jobs, by id.
        reclaim: the verdict on a job that a guarantee covers; None for ordinary preemption.
    """

    quotas: Quotas
    owners: Mapping[str, Owner]
    reclaim: Verdict | None = None

    def is_stopping(self, running: RunningJob) -> bool:
        """Return whether a job stops anyway."""
        return running.is_stopping or self.owners[running.job_id].is_stopping

    def is_candidate(self, job: JobView, running: RunningJob) -> bool:
        """Return whether a running job may stop as far as it alone says."""
        if running.is_stopping:
            return True
        outranks = self.reclaim is not None or running.priority <= job.priority
        return running.is_preemptible and outranks

    def may_stop(self, job: JobView, victims: Sequence[RunningJob]) -> bool:
        """Return whether projects can lose these running jobs together."""
        guarantor = "" if self.reclaim is None else self.reclaim.guarantor
        uses = [
            self.owners[victim.job_id].use for victim in victims if not self.is_stopping(victim)
        ]
        return self.quotas.may_stop(job, guarantor, uses)

    def relative_use(
        self, job: JobView, running: RunningJob, victims: Sequence[RunningJob] = ()
    ) -> float:
        """Return what the project of a running job uses for each share once others have stopped.

        It is infinite for a job that stops anyway, and 0 in ordinary preemption.
        """
        if self.is_stopping(running):
            return np.inf
        if self.reclaim is None:
            return 0.0
        stopping = [self.owners[victim.job_id].use for victim in victims]
        use = self.owners[running.job_id].use
        return self.quotas.relative_use(job, use, self.reclaim.use, stopping)


def find_victims(
    job: JobView, ledger: Ledger, feasible: Mask, rules: Rules, *, now: datetime
) -> tuple[int | None, Sequence[RunningJob]]:
    """Return the appliance where the fewest GPUs must be taken from others, and their jobs.

    In a reclaim, the appliance with jobs of the project that uses the most comes first.

    Returns:
        The appliance, or None where stopping does not help, and the jobs to stop; no jobs if those
        that already stop there suffice.
    """
    best: tuple[tuple[float, ...], int, Sequence[RunningJob]] | None = None
    for place in _examined(job, ledger, feasible, rules):
        victims = victims_at(job, ledger, place, rules, now=now)
        if victims is not None:
            cost = _cost(job, rules, victims, now=now)
            best = min(best or (cost, place, victims), (cost, place, victims), key=lambda b: b[0])
    if best is None:
        return None, ()
    return best[1], [victim for victim in best[2] if not rules.is_stopping(victim)]


def picked_gpus(
    job: JobView, ledger: Ledger, place: int, freed: Iterable[Allocation]
) -> tuple[list[int], Part | None]:
    """Return the GPUs of an appliance for a job once others have stopped; free ones come first.

    With them comes the part that it gets of its only GPU, if it doesn't need whole ones.
    """
    room = Room(ledger, place, job.shape)
    now_free = set(room.fitting())
    for allocation in freed:
        room.free(allocation)
    slots = sorted(room.fitting(), key=lambda slot: slot not in now_free)[: job.gpus]
    return slots, room.part(slots[0]) if slots else None


def _cost(
    job: JobView, rules: Rules, victims: Sequence[RunningJob], *, now: datetime
) -> tuple[float, ...]:
    """Return the order of appliances: the lowest cost comes first."""
    new = [victim for victim in victims if not rules.is_stopping(victim)]
    gpus = sum(len(victim.gpu_uuids) * victim.gpu_milli / WHOLE_GPU for victim in new)
    if rules.reclaim is None or not new:
        return -np.inf if not new else 0.0, gpus
    lowest_use = min(rules.relative_use(job, victim) for victim in new)
    priority = max(victim.priority for victim in new)
    ran_for = max((now - (victim.assigned_at or now)).total_seconds() for victim in new)
    return -lowest_use, gpus, priority, ran_for


def _examined(job: JobView, ledger: Ledger, feasible: Mask, rules: Rules) -> Iterable[int]:
    # Whose jobs stop on a cluster is decided by its own queue.
    able = [
        place
        for place in np.flatnonzero(feasible & ~ledger.is_cluster).tolist()
        if any(rules.is_candidate(job, running) for running in ledger.views[place].running)
    ]
    bound = ledger.index.get(job.bound_to or "")
    return sorted(able, key=lambda place: place != bound)[:MAX_EXAMINED]


def victims_at(
    job: JobView, ledger: Ledger, place: int, rules: Rules, *, now: datetime
) -> Sequence[RunningJob] | None:
    """Return the jobs to stop on one appliance, or None if that is not enough."""
    allocations = {
        allocation.job_id: allocation._replace(ends_at=now)
        for allocation in ledger.allocations[place]
    }

    def suffices(victims: Sequence[RunningJob]) -> bool:
        freed = [allocations[victim.job_id] for victim in victims]
        return earliest_start(ledger, place, job.shape, freed, now=now) == now

    able = stoppable_jobs(job, ledger, place, rules)
    if not suffices(able):
        return None
    victims = list(able)
    for victim in reversed(able):
        fewer = [other for other in victims if other is not victim]
        if suffices(fewer):
            victims = fewer
    return victims


def stoppable_jobs(job: JobView, ledger: Ledger, place: int, rules: Rules) -> list[RunningJob]:
    """Return the jobs on an appliance that may stop together, the first to stop first."""
    # The running jobs of a view are in the order of their start.
    remaining = [
        running
        for running in reversed(ledger.views[place].running)
        if rules.is_candidate(job, running)
    ]
    able: list[RunningJob] = []
    while remaining:
        running = min(
            remaining,
            key=lambda running: (-rules.relative_use(job, running, able), running.priority),
        )
        remaining.remove(running)
        if rules.may_stop(job, [*able, running]):
            able.append(running)
    return able
