"""The replay: recorded jobs arrive, start where the queue's planner places them, and end.

Between two events nothing can change: a job that fitted nowhere fits only where a job has ended
since, or where an earlier job no longer waits. So each event looks at those appliances alone, and
at the first job of each group of equal ones.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from jobqueue.placement.filters import FREE, passing
from jobqueue.placement.ledger import Allocation, Mask
from jobqueue.placement.plan import Decision, Planner
from jobqueue.placement.views import (
    UNLIMITED,
    Caps,
    JobShape,
    JobView,
    RunningJob,
    Snapshot,
)
from jobqueue.simulation.order import ORDERS
from jobqueue.simulation.protection import Key, Protection
from jobqueue.simulation.recording import RecordedJob, Recording
from jobqueue.simulation.waiting import Free, Group, Spare, WaitingJobs
from protocol.gpu_slices import WHOLE_GPU

# Any day will do.
_START = datetime(2000, 1, 1, tzinfo=UTC)
# After all limits, and before the end that backfill assumes of a job without one.
_ENDLESS = _START + 1.5 * UNLIMITED
# The usual jobs, for `least_fragmentation`, are taken from this many, evenly spread.
_USUAL_JOBS = 1000
# What a planner remembers by shape is dropped beyond this, where every job has another one.
_MAX_SHAPES = 2000
_REPORTED_EVERY = 1000


@dataclass(slots=True)
class Timeline:
    """What happened; NaN where a job never started.

    Attributes:
        starts: when each job started for the last time, in seconds.
        ends: when it ended.
        models: the index in `model_names` of the GPUs of each job; -1 without GPUs.
        lost: the runs that preemption cut off: the job, from, until.
        impossible: the jobs that fit no appliance, even if it is idle.
    """

    starts: np.ndarray
    ends: np.ndarray
    models: np.ndarray
    model_names: list[str]
    lost: list[tuple[int, float, float]] = field(default_factory=list)
    impossible: list[int] = field(default_factory=list)


class ReplayPlanner(Planner):
    """The planner of the queue, which here goes on from event to event."""

    def protect(self, protection: Protection) -> None:
        """Use reservations that last."""
        self.reservations = self.protection = protection

    def start_among(self, job: JobView, places: Mask | None = None) -> Decision | None:
        """Start a job on one of these appliances, or on any; None if it can't."""
        feasible, _ = self.feasible(job.shape)
        wanted = feasible if places is None else feasible & places
        free = passing(FREE, self.ledger, job.shape, wanted)
        if not free.any():
            return None
        free = self.protection.admitted(job, free, now=self.now)
        self._barred.clear()
        choice = self._choose(job, free) if free.any() else None
        if choice is None:
            return None
        decision = self._assign(job, *choice, [])
        if job.time_limit is None:
            # In each plan of the queue, all jobs without a limit end at the same time.
            allocations = self.ledger.allocations[choice[0]]
            allocations[-1] = allocations[-1]._replace(ends_at=_ENDLESS)
        return decision

    def wait(self, job: JobView) -> Decision:
        """Bind a job that doesn't start, which may displace others."""
        return self._wait(job, self.feasible(job.shape)[0], [])

    def over_cap(self, job: JobView) -> bool:
        """Return whether a cap holds the job."""
        return bool(self.cap_reason(job))

    def end(self, place: int, job_id: str) -> Allocation:
        """Take the resources of a job back."""
        ended = next(
            allocation
            for allocation in self.ledger.allocations[place]
            if allocation.job_id == job_id
        )
        self.ledger.release(place, ended)
        self._count(job_id, self._owners[job_id], sign=-1)
        del self._owners[job_id]
        if len(self._feasible) > _MAX_SHAPES:
            self._feasible.clear()
        return ended


class Replay:
    """One replay of a recording.

    Args:
        recording: jobs, appliances and rules.
        report: is called now and then with the part of the jobs that have arrived, from 0 to 1.
    """

    def __init__(self, recording: Recording, report: Callable[[float], None]) -> None:
        self._jobs, rules = recording.jobs, recording.rules
        self._report = report
        self.usual = _usual(recording.jobs)
        self._order = ORDERS[rules.order](recording.shares)
        self._preempts = rules.allows_preemption
        views = [appliance.view() for appliance in recording.appliances]
        if self._preempts:
            # The planner looks for victims in the views.
            for view in views:
                object.__setattr__(view, "running", [])
        self._planner = ReplayPlanner(
            Snapshot(
                now=_START,
                appliances=views,
                jobs=(),
                policy=rules.policy,
                caps=Caps(gpus_per_user=rules.max_gpus_per_user, gpus=rules.max_gpus),
                allows_preemption=rules.allows_preemption,
                workload=self.usual,
            )
        )
        self._ledger = self._planner.ledger
        self._protection = Protection(self._ledger, self._key)
        self._planner.protect(self._protection)
        self._waiting = WaitingJobs(self._ledger.size)
        self._places: dict[str, float] = {}
        self._bound_to: dict[int, str] = {}
        self._held: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._on: dict[int, int] = {}
        self._runs: dict[int, int] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._now = 0.0
        count = len(recording.jobs)
        names = sorted({gpu.model for appliance in recording.appliances for gpu in appliance.gpus})
        self._model_places = {name: index for index, name in enumerate(names)}
        self.timeline = Timeline(
            starts=np.full(count, np.nan),
            ends=np.full(count, np.nan),
            models=np.full(count, -1, np.int16),
            model_names=names,
        )

    def run(self) -> Timeline:
        """Replay all jobs to their ends."""
        count = len(self._jobs)
        for number, job in enumerate(self._jobs):
            self._end_until(job.submitted_seconds)
            self._move_to(job.submitted_seconds)
            self._arrive(number, self._order.place(job))
            if number % _REPORTED_EVERY == 0:
                self._report(number / count)
        self._end_until(math.inf)
        self._report(1.0)
        return self.timeline

    def _end_until(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self._move_to(self._ends[0][0])
            changed: set[int] = set()
            users: set[int] = set()
            while self._ends and self._ends[0][0] <= self._now:
                _, number, run = heapq.heappop(self._ends)
                # A run that was cut off has no end.
                if self._runs.get(number) == run:
                    self.timeline.ends[number] = self._now
                    changed.add(self._release(number))
                    users.add(self._jobs[number].user)
            self._fill(changed)
            self._retry_held(users)

    def _move_to(self, now: float) -> None:
        self._now = now
        self._planner.now = _START + timedelta(seconds=now)

    def _arrive(self, number: int, place: float) -> None:
        view = self._view(number)
        feasible, _ = self._planner.feasible(view.shape)
        if not feasible.any():
            self.timeline.impossible.append(number)
            return
        self._places[view.id] = place
        if self._planner.over_cap(view):
            self._hold(number, place)
            return
        decision = self._planner.start_among(view)
        if decision is not None:
            self._started(number, decision)
        else:
            self._waiting.push(self._group(number, view), place, number, feasible)
            self._wait(number, view)
        if self._protection.opened:
            self._fill(set())

    def _wait(self, number: int, view: JobView) -> None:
        decision = self._planner.wait(view)
        self._bound_to[number] = decision.appliance_id or ""
        if decision.victims:
            self._displace(decision, self._places[view.id])

    def _displace(self, decision: Decision, place: float) -> None:
        """Stop the victims at once; they wait behind the job that they make room for."""
        victims = [int(job_id) for job_id in decision.victims]
        for number in victims:
            self.timeline.lost.append((number, float(self.timeline.starts[number]), self._now))
            self.timeline.starts[number] = np.nan
            at = self._release(number)
        self._fill({at})
        for number in victims:
            self._arrive(number, math.nextafter(place, math.inf))

    def _started(self, number: int, decision: Decision) -> None:
        job, at = self._jobs[number], self._ledger.index[decision.appliance_id or ""]
        job_id = str(number)
        if at in self._protection.jobs and self._protection.is_before(job_id, at):
            # It may start later now than before, which leaves others the time until then.
            self._protection.opened.add(at)
        del self._places[job_id]
        run_seconds = job.run_seconds
        if job.time_limit_seconds:
            run_seconds = min(run_seconds, job.time_limit_seconds)
        self._runs[number] = run = self._runs.get(number, 0) + 1
        heapq.heappush(self._ends, (self._now + run_seconds, number, run))
        self._on[number] = at
        self.timeline.starts[number] = self._now
        view = self._ledger.views[at]
        if job.gpus:
            slot = self._ledger.allocations[at][-1].gpus[0]
            self.timeline.models[number] = self._model_places[view.gpus[slot].model]
        self._order.started(job, self._now)
        self._protection.touch(at)
        if self._preempts:
            self._running(at).append(_running(job, job_id, decision))
        self._unbind(number)

    def _release(self, number: int) -> int:
        at = self._on.pop(number)
        self._planner.end(at, str(number))
        self._order.ended(self._jobs[number], self._now)
        self._protection.touch(at)
        if math.isnan(self.timeline.starts[number]):
            self._runs[number] += 1
        else:
            self._runs.pop(number)
        if self._preempts:
            running = self._running(at)
            running[:] = [other for other in running if other.job_id != str(number)]
        return at

    def _fill(self, freed: set[int]) -> None:
        """Start waiting jobs on appliances where something was freed, in the order of the queue."""
        opened, tried = freed | self._protection.opened, set[int]()
        self._protection.opened.clear()
        while slots := self._fitting(opened) - tried:
            slot = min(slots, key=self._head)
            place, number = self._waiting.heaps[slot][0]
            view = self._view(number)
            if self._planner.over_cap(view):
                self._waiting.pop(slot)
                self._hold(number, place)
            else:
                among = np.zeros(self._ledger.size, np.bool_)
                among[list(opened)] = True
                decision = self._planner.start_among(view, among)
                if decision is None:
                    tried.add(slot)
                    continue
                self._waiting.pop(slot)
                self._started(number, decision)
            if self._protection.opened:
                opened |= self._protection.opened
                self._protection.opened.clear()
                tried.clear()

    def _fitting(self, places: set[int]) -> set[int]:
        """Return the groups whose first job may start on one of these appliances."""
        slots: set[int] = set()
        for at in places:
            spare = self._protection.spare(at, self._planner.now)
            passing_slots, barred_slots = self._waiting.fitting(
                at,
                self._free(at),
                None if spare is None else Spare(*spare),
                self._planner.now.timestamp(),
            )
            slots.update(passing_slots)
            slots.update(
                slot
                for slot in barred_slots
                if self._protection.is_before(str(self._waiting.heaps[slot][0][1]), at)
            )
        return slots

    def _free(self, at: int) -> Free:
        ledger = self._ledger
        milli = ledger.gpu_free[:, at]
        return Free(
            int(np.count_nonzero(milli == WHOLE_GPU)),
            int(milli.max(initial=0)),
            float(ledger.cpus_free[at]),
            int(ledger.memory_free[at]),
        )

    def _head(self, slot: int) -> Key:
        place, number = self._waiting.heaps[slot][0]
        return self._order.rank(self._order.lane(self._jobs[number]), self._now), place, number

    def _key(self, job_id: str) -> Key | None:
        place = self._places.get(job_id)
        if place is None:
            return None
        number = int(job_id)
        return self._order.rank(self._order.lane(self._jobs[number]), self._now), place, number

    def _hold(self, number: int, place: float) -> None:
        """Set a job aside that would exceed a cap; it is bound to no appliance."""
        heapq.heappush(self._held[self._jobs[number].user], (place, number))
        del self._places[str(number)]
        self._unbind(number)

    def _unbind(self, number: int) -> None:
        bound = self._bound_to.pop(number, None)
        if bound is not None:
            self._protection.settle(self._ledger.index[bound])

    def _retry_held(self, users: set[int]) -> None:
        """Consider held jobs anew, now that jobs of these users have ended."""
        caps = self._planner.snapshot.caps
        for user in list(self._held) if caps.gpus is not None else users & self._held.keys():
            held = self._held.pop(user)
            while held:
                place, number = heapq.heappop(held)
                self._arrive(number, place)
                if self._held.get(user):
                    # This one is held again, and so are those behind it.
                    held += self._held.pop(user)
                    heapq.heapify(held)
                    self._held[user] = held
                    break

    def _group(self, number: int, view: JobView) -> Group:
        job = self._jobs[number]
        return Group(view.shape, job.time_limit_seconds, self._order.lane(job))

    def _running(self, at: int) -> list[RunningJob]:
        running = self._ledger.views[at].running
        assert isinstance(running, list)  # noqa: S101 - they were made so
        return running

    def _view(self, number: int) -> JobView:
        job = self._jobs[number]
        limit = job.time_limit_seconds
        return JobView(
            id=str(number),
            name="",
            submitted_at=_START + timedelta(seconds=job.submitted_seconds),
            user_id=str(job.user),
            project_id=str(job.project) if job.project else None,
            gpus=job.gpus,
            gpu_milli=job.gpu_milli,
            gpu_memory_bytes=job.gpu_memory_bytes,
            gpu_models=frozenset(job.gpu_models),
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
            requested=job.appliance or None,
            bound_to=self._bound_to.get(number),
            priority=job.priority,
            is_preemptible=job.is_preemptible,
            time_limit=timedelta(seconds=limit) if limit else None,
        )


def _running(job: RecordedJob, job_id: str, decision: Decision) -> RunningJob:
    return RunningJob(
        job_id=job_id,
        user_id=str(job.user),
        gpu_uuids=decision.gpu_uuids,
        gpu_milli=job.gpu_milli,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        priority=job.priority,
        is_preemptible=job.is_preemptible,
    )


def _usual(jobs: Sequence[RecordedJob]) -> list[tuple[JobShape, float]]:
    """Return the shapes of jobs, evenly spread over the recording, with their numbers."""
    step = max(1, len(jobs) // _USUAL_JOBS)
    shapes = Counter(
        JobShape(
            gpus=job.gpus,
            gpu_milli=job.gpu_milli,
            gpu_memory_bytes=job.gpu_memory_bytes,
            gpu_models=frozenset(job.gpu_models),
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
        )
        for job in jobs[::step]
    )
    return [(shape, float(count)) for shape, count in shapes.items()]
