"""Preemption: which running jobs stop for a waiting one, where the tenant allows it.

Only jobs that were declared preemptible stop, and only for jobs that are not, of the same or a
higher priority. They are queued again. As few GPUs as possible are taken; of the jobs on an
appliance, those of the lowest priority go first, then those that started last.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np

from jobqueue.placement.backfill import earliest_start
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.views import JobView, RunningJob

# Appliances that are examined for one job.
MAX_EXAMINED = 200


def find_victims(
    job: JobView, ledger: Ledger, feasible: Mask, *, now: datetime
) -> tuple[int | None, Sequence[RunningJob]]:
    """Return the appliance where the fewest GPUs must be taken from others, and their jobs.

    Returns:
        The appliance, or None where stopping does not help, and the jobs to stop; no jobs if those
        that already stop there suffice.
    """
    best: tuple[int, int, Sequence[RunningJob]] | None = None
    for place in _examined(job, ledger, feasible):
        victims = victims_at(job, ledger, place, now=now)
        if victims is not None:
            cost = sum(len(victim.gpu_uuids) for victim in victims if not victim.is_stopping)
            best = min(best or (cost, place, victims), (cost, place, victims), key=lambda b: b[0])
    if best is None:
        return None, ()
    return best[1], [victim for victim in best[2] if not victim.is_stopping]


def _examined(job: JobView, ledger: Ledger, feasible: Mask) -> Iterable[int]:
    able = [
        place
        for place in np.flatnonzero(feasible).tolist()
        if any(may_stop(job, running) for running in ledger.views[place].running)
    ]
    bound = ledger.index.get(job.bound_to or "")
    return sorted(able, key=lambda place: place != bound)[:MAX_EXAMINED]


def may_stop(job: JobView, running: RunningJob) -> bool:
    """Return whether a running job may be stopped for a waiting one, or stops already."""
    return running.is_stopping or (running.is_preemptible and running.priority <= job.priority)


def victims_at(
    job: JobView, ledger: Ledger, place: int, *, now: datetime
) -> Sequence[RunningJob] | None:
    """Return the jobs to stop on one appliance, or None if that is not enough."""
    allocations = {
        allocation.job_id: allocation._replace(ends_at=now)
        for allocation in ledger.allocations[place]
    }

    def suffices(victims: Sequence[RunningJob]) -> bool:
        freed = [allocations[victim.job_id] for victim in victims]
        return earliest_start(ledger, place, job.shape, freed, now=now) == now

    # The running jobs of a view are in the order of their start.
    able = [
        running_job
        for running_job in reversed(ledger.views[place].running)
        if may_stop(job, running_job)
    ]
    able.sort(key=lambda running_job: (not running_job.is_stopping, running_job.priority))
    if not suffices(able):
        return None
    victims = list(able)
    for victim in reversed(able):
        fewer = [other for other in victims if other is not victim]
        if suffices(fewer):
            victims = fewer
    return victims
