"""Explain why a job waits, what would have to free up, and when it is expected to start.

The same planner that places jobs is asked about one of them. The expected start plays on from the
snapshot: jobs end at their time limits, and each time the jobs up to this one are placed again.
Jobs that end earlier or are submitted later with a higher priority change it.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
import numpy as np

from core.quantities import format_size
from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.decisions import Action, Decision, in_order
from jobqueue.placement.filters import Rejection
from jobqueue.placement.gangs import decide_all
from jobqueue.placement.host_filters import count_free
from jobqueue.placement.ledger import IN_QUEUE, Ledger
from jobqueue.placement.plan import Planner
from jobqueue.placement.views import UNLIMITED, JobView, Part, Snapshot
from protocol.gpu_slices import WHOLE_GPU

# The expected start is unknown with more jobs ahead, or after so many ends of jobs.
MAX_AHEAD = 500
MAX_ENDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastErrors:
    """By how much past forecasts were too early or too late: the median and the 90th percentile."""

    count: int
    median_seconds: float
    p90_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one job.

    Attributes:
        position: its place in the queue, from 1.
        queue_length: how many jobs wait.
        decision: what placement decides for it now.
        needs: what would have to free up, on the appliance where the least is missing.
        data: which appliances have the most of its datasets; "" without any.
        expected_start_at: by time limits; None if that can't be told.
        assumption: what is taken for granted about a job that is not submitted.
        parts: what its points are the sum of, where the queue is ordered by points.
        rank: its user's place in the tree of fair shares, from 1; None without one.
        user_count: how many users have a rank.
        past_errors: how wrong the tenant's forecasts were lately; None if none is settled.
    """

    position: int
    queue_length: int
    decision: Decision
    needs: str
    data: str = ""
    expected_start_at: datetime | None
    assumption: str = ""
    parts: Sequence[Part] = ()
    rank: int | None = None
    user_count: int = 0
    past_errors: ForecastErrors | None = None

    @property
    def points(self) -> float:
        """Return the sum of the parts."""
        return sum(part.points for part in self.parts)

    @property
    def rejections(self) -> Sequence[Rejection]:
        """Return why appliances were rejected, the most relevant reason first."""
        return self.decision.rejections


def explain_jobs(snapshot: Snapshot, job_ids: Collection[str]) -> dict[str, Explanation]:
    """Explain waiting jobs of the snapshot, by id."""
    jobs, remaining = in_order(snapshot.jobs), set(job_ids)
    planner, waiting = Planner(snapshot), []
    covered = planner.quotas.guaranteed_first(jobs)
    is_covered = {job.id for job in covered}
    jobs = [*covered, *(job for job in jobs if job.id not in is_covered)]
    explanations: dict[str, Explanation] = {}
    for place, job in enumerate(jobs):
        if not remaining:
            break
        decision = decide_all(planner, job)[0]
        is_starting = decision.action is Action.ASSIGN
        if not is_starting:
            waiting.append(_bound(job, decision))
        if job.id in remaining:
            remaining.remove(job.id)
            # What a gang waits for is on several appliances; its reason names them.
            is_gang = decision.action is Action.WAIT and len(job.members) > 1
            may_start = not is_gang and decision.action not in {Action.ASSIGN, Action.HELD}
            explanations[job.id] = Explanation(
                position=place + 1,
                queue_length=len(jobs),
                decision=decision,
                needs=_needs(planner, job) if may_start else "",
                data=planner.data.summary(job.datasets, planner.feasible(job.shape)[0]),
                # When one starts that waits in a cluster's queue, that cluster decides.
                expected_start_at=snapshot.now if is_starting and not decision.is_queued else None,
            )
    starts = _expected_starts(planner, waiting, set(explanations))
    return {
        ident: replace(
            explanation, expected_start_at=starts.get(ident, explanation.expected_start_at)
        )
        for ident, explanation in explanations.items()
    }


def _bound(job: JobView, decision: Decision) -> JobView:
    """Return a waiting job as it is from now on, if it waits for data."""
    if not decision.waits_for_data or job.members:
        return job
    return msgspec.structs.replace(job, bound_to=decision.appliance_id)


def _expected_starts(
    planner: Planner, waiting: list[JobView], targets: Collection[str]
) -> dict[str, datetime]:
    """Return when those of the waiting jobs start that are targets, where that can be told."""
    starts: dict[str, datetime] = {}
    pending = {job.id for job in waiting} & set(targets)
    if not pending or len(waiting) > MAX_AHEAD:
        return starts
    horizon = planner.now + UNLIMITED / 2
    ends = [
        (allocation.ends_at, place)
        for place, of in enumerate(planner.ledger.allocations)
        for allocation in of
        if allocation.node != IN_QUEUE
    ]
    ends += planner.reserved.ends(planner.now)
    ends += [
        (planner.data_wait.near_at(job, place), place)
        for job in waiting
        if planner.far(job) is not None
        for ident in planner.data_wait.places_of(job)
        if (place := planner.ledger.index.get(ident)) is not None
    ]
    heapq.heapify(ends)
    for _ in range(MAX_ENDS):
        if not ends or ends[0][0] > horizon or not pending - starts.keys():
            break
        at, place = heapq.heappop(ends)
        places = {place}
        while ends and ends[0][0] == at:
            places.add(heapq.heappop(ends)[1])
        for started_end in planner.release(places, at):
            heapq.heappush(ends, started_end)
        still_waiting = []
        for job in waiting:
            decisions = decide_all(planner, job)
            if decisions[0].action is not Action.ASSIGN:
                still_waiting.append(job)
                continue
            pending -= {job.id} if decisions[0].is_queued else set()
            if job.id in pending:
                starts[job.id] = at
            for started in {planner.ledger.index[made.appliance_id or ""] for made in decisions}:
                heapq.heappush(ends, (planner.ledger.allocations[started][-1].ends_at, started))
        waiting = still_waiting
    return starts


def _needs(planner: Planner, job: JobView) -> str:
    """Return what is missing on the feasible appliance where that is the least."""
    shape, ledger = job.shape, planner.ledger
    feasible, _ = planner.feasible(shape)
    if not feasible.any():
        return ""
    hosts = feasible & ~ledger.is_cluster
    if not hosts.any():
        name = ledger.views[int(np.argmax(feasible))].name
        return f"room on a node of {name}, or in its queue"
    gpus = np.maximum(shape.gpus - count_free(ledger, shape), 0)
    cpus = np.maximum(shape.cpus - ledger.cpus_free, 0)
    memory = np.maximum(shape.memory_bytes - ledger.memory_free, 0)
    kinds = (gpus > 0) + (cpus > CPU_TOLERANCE) * 1 + (memory > 0)
    order = np.lexsort((memory, cpus, gpus, kinds))
    place = int(next(at for at in order if hosts[at]))
    missing = _missing(ledger, job, place, int(gpus[place]), float(cpus[place]))
    if not missing:
        return ""
    return f"{' and '.join(missing)} on {ledger.views[place].name}"


def _missing(ledger: Ledger, job: JobView, place: int, gpus: int, cpus: float) -> list[str]:
    parts = []
    if gpus and job.slice_need is not None:
        parts.append(f"room for {job.slice_need}")
    elif gpus:
        suffix = "" if job.gpu_milli == WHOLE_GPU else " with enough capacity"
        parts.append(f"{gpus} more GPU{'' if gpus == 1 else 's'}{suffix}")
    if cpus > CPU_TOLERANCE:
        parts.append(f"{cpus:g} more CPU core{'' if cpus == 1 else 's'}")
    memory_bytes = job.memory_bytes - int(ledger.memory_free[place])
    if memory_bytes > 0:
        parts.append(f"{format_size(memory_bytes)} more memory")
    return parts
