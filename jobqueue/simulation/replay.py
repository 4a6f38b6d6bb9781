"""The replay: recorded jobs arrive, start where the queue's planner places them, and end.

Between two events nothing can change: a job that fitted nowhere fits only where a job has ended
since, or where an earlier job no longer waits. So each event looks at those appliances alone, and
at the first job of each group of equal ones.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import numpy as np

from jobqueue.placement.decisions import Decision
from jobqueue.placement.gangs import wait_for_all
from jobqueue.placement.quotas import Verdict
from jobqueue.placement.views import JobView, RunningJob
from jobqueue.simulation.order import ORDERS, START
from jobqueue.simulation.planner import ReplayPlanner, number_of, running_view, usual_jobs, view_of
from jobqueue.simulation.protection import Key, Protection
from jobqueue.simulation.recording import Recording
from jobqueue.simulation.results import Timeline, empty_timeline
from jobqueue.simulation.waiting import Free, Group, WaitingJobs
from protocol.gpu_slices import WHOLE_GPU

_REPORTED_EVERY = 1000
# The number of the job in the events at which a reservation ends.
_RESERVATION = -1
HeldKey = tuple[int, Group]


class Replay:
    """One replay of a recording.

    Args:
        recording: jobs, appliances and rules.
        report: is called now and then with the part of the jobs that have arrived, from 0 to 1.
    """

    def __init__(self, recording: Recording, report: Callable[[float], None]) -> None:
        self._jobs = recording.jobs
        self._report = report
        self.usual = usual_jobs(recording.jobs)
        self._order = ORDERS[recording.rules.order](recording)
        self._planner = ReplayPlanner(recording, self.usual)
        self._ledger = self._planner.ledger
        self._protection = Protection(
            self._ledger, self._key, self._is_held if self._planner.has_quotas else None
        )
        self._planner.protect(self._protection)
        self._by_project = self._planner.has_quotas or bool(self._planner.reserved)
        self._has_guarantees = self._planner.quotas.has_guarantees
        # What quotas say of jobs now, by group: whether they hold or cover them.
        self._verdicts: dict[Group, tuple[bool, bool]] = {}
        self._waiting = WaitingJobs(self._ledger.size)
        self._gangs: dict[Group, list[tuple[float, int]]] = {}
        self._places: dict[str, float] = {}
        # The keys of waiting jobs by id, where they don't change.
        self._keys: dict[str, Key] = {}
        self._has_keys = self._order.is_fixed and not self._has_guarantees
        # Whether no waiting job can start; one that a cap or a quota held may, until it is tried.
        # Orders by usage are ranked when a job is tried, so they try each.
        self._is_exact = self._has_keys and not (self._planner.is_limited or self._planner.reserved)
        self._bound_to: dict[int, str] = {}
        self._views: dict[int, JobView] = {}
        self._held: defaultdict[HeldKey, list[tuple[float, int]]] = defaultdict(list)
        self._on: dict[int, list[tuple[int, str]]] = {}
        self._runs: dict[int, int] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._now = 0.0
        self.timeline = empty_timeline(recording)
        self._model_places = {name: at for at, name in enumerate(self.timeline.model_names)}
        for place, end_at in self._reservation_ends():
            heapq.heappush(self._ends, (end_at, _RESERVATION, place))

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

    def _reservation_ends(self) -> Iterable[tuple[int, float]]:
        for reservation in self._planner.snapshot.reservations:
            for name in reservation.appliance_ids:
                for _, end in reservation.periods if name in self._ledger.index else ():
                    yield self._ledger.index[name], (end - START).total_seconds()

    def _end_until(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self._move_to(self._ends[0][0])
            changed: set[int] = set()
            users: set[int] = set()
            while self._ends and self._ends[0][0] <= self._now:
                _, number, run = heapq.heappop(self._ends)
                if number == _RESERVATION:
                    self._planner.drop_past_periods()
                    changed.add(run)
                # A run that was cut off has no end.
                elif self._runs.get(number) == run:
                    self.timeline.ends[number] = self._now
                    changed |= self._release(number)
                    users.add(self._jobs[number].user)
            self._fill_with_held(changed, users)

    def _move_to(self, now: float) -> None:
        self._now = now
        self._planner.now = START + timedelta(seconds=now)

    def _arrive(self, number: int, place: float) -> None:
        view = self._view(number)
        if not self._planner.is_possible(view):
            self.timeline.impossible.append(number)
            return
        self._queue(number, place)
        verdict = self._planner.admit(view)
        if verdict is None:
            self._hold(number, place)
            return
        # Where the first of its group waits in vain, so does a later one.
        is_behind = self._is_exact and self._waiting.is_behind(self._group(number, view), place)
        decisions = [] if is_behind else self._planner.start_among(verdict.job)
        if decisions:
            self._started(number, decisions)
        else:
            self._push(number, view, place)
            self._wait(number, verdict)
        if self._protection.opened:
            self._fill(set())

    def _push(self, number: int, view: JobView, place: float) -> None:
        """Add a job to those that wait for an appliance."""
        group = self._group(number, view)
        if view.nodes > 1:
            heapq.heappush(self._gangs.setdefault(group, []), (place, number))
        else:
            self._waiting.push(group, place, number, self._planner.feasible(view.shape)[0])

    def _wait(self, number: int, verdict: Verdict) -> None:
        """Bind a job to where it waits, and let others stop for it where they may."""
        job, at, victims = verdict.job, None, list[str]()
        if job.nodes > 1:
            victims = list(wait_for_all(self._planner, job, verdict).victims)
        elif verdict.guaranteed is not None:
            at, victims = self._planner.reclaim(verdict, verdict.guaranteed)
        if at is not None:
            self._bind(number, self._ledger.views[at].id)
            self._protection.add(at, job)
        elif job.nodes == 1:
            decision = self._planner.wait(job)
            self._bind(number, decision.appliance_id or "")
            victims = list(decision.victims)
        if victims:
            self._displace({number_of(job_id) for job_id in victims}, self._places[job.id])

    def _displace(self, victims: set[int], place: float) -> None:
        """Stop the victims at once; they wait behind the job that they make room for."""
        freed: set[int] = set()
        for number in sorted(victims):
            self.timeline.lost.append((number, float(self.timeline.starts[number]), self._now))
            self.timeline.starts[number] = np.nan
            freed |= self._release(number)
        self._fill(freed)
        for number in sorted(victims):
            self._arrive(number, math.nextafter(place, math.inf))

    def _started(self, number: int, decisions: Sequence[Decision]) -> None:
        job, ledger = self._jobs[number], self._ledger
        on = [(ledger.index[chosen.appliance_id or ""], chosen.job_id) for chosen in decisions]
        for at, _ in on:
            if at in self._protection.jobs and self._protection.is_before(str(number), at):
                # It may start later now than before, which leaves others the time until then.
                self._protection.opened.add(at)
        self._unqueue(number)
        run_seconds = job.run_seconds
        if job.time_limit_seconds:
            run_seconds = min(run_seconds, job.time_limit_seconds)
        self._runs[number] = run = self._runs.get(number, 0) + 1
        heapq.heappush(self._ends, (self._now + run_seconds, number, run))
        self._on[number] = on
        self.timeline.starts[number] = self._now
        if job.gpus:
            at = on[0][0]
            slot = ledger.allocations[at][-1].gpus[0]
            model = ledger.views[at].gpus[slot].model
            self.timeline.models[number] = self._model_places[model]
        self._order.started(job, self._now)
        self._verdicts.clear()
        for (at, _), decision in zip(on, decisions, strict=True):
            self._protection.touch(at)
            if self._planner.has_running_views:
                self._running(at).append(running_view(job, decision, now=self._planner.now))
        self._unbind(number)

    def _release(self, number: int) -> set[int]:
        """Take the resources of a job back; return the appliances that had it."""
        on = self._on.pop(number)
        for at, job_id in on:
            self._planner.end(at, job_id)
            self._protection.touch(at)
            if self._planner.has_running_views:
                running = self._running(at)
                running[:] = [other for other in running if other.job_id != job_id]
        self._order.ended(self._jobs[number], self._now)
        self._verdicts.clear()
        if math.isnan(self.timeline.starts[number]):
            self._runs[number] += 1
        else:
            self._runs.pop(number)
        return {at for at, _ in on}

    def _fill_with_held(self, freed: set[int], users: set[int]) -> None:
        """Start jobs where something was freed, and held ones that these users' ends let pass."""
        released = self._release_held(users)
        self._fill(freed)
        while released:
            has_started = False
            for number in released:
                if str(number) not in self._places:
                    has_started = has_started or number in self._on
                elif number not in self._bound_to and (verdict := self._admitted(number)):
                    self._wait(number, verdict)
            released = self._release_held(users) if has_started else []
            if released:
                self._fill(set(range(self._ledger.size)))

    def _release_held(self, users: set[int]) -> list[int]:
        """Let the first of each group of held jobs wait again that no cap or quota holds now."""
        is_any = self._planner.has_quotas or self._planner.snapshot.caps.gpus is not None
        released = []
        for key in [key for key in self._held if is_any or key[0] in users]:
            place, number = self._held[key][0]
            if self._admitted(number) is not None:
                heapq.heappop(self._held[key])
                if not self._held[key]:
                    del self._held[key]
                self._queue(number, place)
                self._push(number, self._view(number), place)
                released.append(number)
        return released

    def _admitted(self, number: int) -> Verdict | None:
        return self._planner.admit(self._view(number))

    def _fill(self, freed: set[int]) -> None:
        """Start waiting jobs on appliances where something was freed, in the order of the queue."""
        opened, tried = freed | self._protection.opened, set[int]()
        self._protection.opened.clear()
        while numbers := self._fitting(opened, tried):
            is_alone = self._has_keys and len(numbers) == 1
            number = next(iter(numbers)) if is_alone else min(numbers, key=self._key_of)
            verdict = self._admitted(number)
            if verdict is None:
                place = self._places[str(number)]
                self._pop(number, numbers[number])
                self._hold(number, place)
            else:
                decisions = self._planner.start_among(verdict.job, opened)
                if not decisions:
                    tried.add(number)
                    self._protect_anew(verdict)
                    continue
                self._pop(number, numbers[number])
                self._started(number, decisions)
            if self._protection.opened:
                opened |= self._protection.opened
                self._protection.opened.clear()
                tried.clear()

    def _protect_anew(self, verdict: Verdict) -> None:
        """Look for other appliances for a gang that should have started by now."""
        job, protection = verdict.job, self._protection
        if job.nodes > 1 and not protection.protects_gang(job.id, now=self._planner.now):
            protection.drop_gang(job.id)
            self._planner.may_displace = False
            wait_for_all(self._planner, job, Verdict(job))
            self._planner.may_displace = True

    def _fitting(self, places: set[int], tried: set[int]) -> dict[int, int | None]:
        """Return the first jobs of the groups that may start on one of these appliances.

        With each comes the slot of its group; gangs have none.
        """
        slots: set[int] = set()
        for at in places:
            spare = self._protection.spare(at, self._planner.now)
            passing_slots, barred_slots = self._waiting.fitting(
                at,
                self._free(at),
                spare,
                self._planner.now.timestamp(),
            )
            slots.update(passing_slots)
            slots.update(
                slot
                for slot in barred_slots
                if self._protection.is_before(str(self._waiting.heaps[slot][0][1]), at)
            )
        numbers: dict[int, int | None] = {self._waiting.heaps[at][0][1]: at for at in slots}
        if places:
            numbers |= {heap[0][1]: None for heap in self._gangs.values()}
        return {number: slot for number, slot in numbers.items() if number not in tried}

    def _free(self, at: int) -> Free:
        ledger = self._ledger
        milli: list[int] = ledger.gpu_free[:, at].tolist()
        return Free(
            milli.count(WHOLE_GPU),
            max(milli, default=0),
            float(ledger.cpus_free[at]),
            int(ledger.memory_free[at]),
        )

    def _key_of(self, number: int) -> Key:
        if self._has_keys:
            return self._keys[str(number)]
        place, lane = self._places[str(number)], self._order.lane(self._jobs[number])
        borrows = self._has_guarantees and not self._is_covered(number)
        return (borrows, *self._order.key(lane, place, self._now), number)

    def _key(self, job_id: str) -> Key | None:
        # Members of a gang wait as the first one.
        if self._has_keys:
            return self._keys.get(job_id)
        return self._key_of(int(job_id)) if job_id in self._places else None

    def _is_covered(self, number: int) -> bool:
        """Return whether a guarantee covers a job, which comes before others then."""
        return self._verdict(number)[1]

    def _is_held(self, job_id: str) -> bool:
        return self._verdict(int(job_id))[0]

    def _verdict(self, number: int) -> tuple[bool, bool]:
        view = self._view(number)
        group = self._group(number, view)
        verdict = self._verdicts.get(group)
        if verdict is None:
            checked = self._planner.quotas.check(view.whole)
            is_held = bool(checked.refusal)
            verdict = is_held, checked.guaranteed is not None and not is_held
            self._verdicts[group] = verdict
        return verdict

    def _hold(self, number: int, place: float) -> None:
        """Set a job aside that would exceed a cap or a quota; it is bound to no appliance."""
        key = self._jobs[number].user, self._group(number, self._view(number))
        heapq.heappush(self._held[key], (place, number))
        self._unqueue(number)
        self._unbind(number)

    def _queue(self, number: int, place: float) -> None:
        self._places[str(number)] = place
        if self._has_keys:
            job = self._jobs[number]
            key = self._order.key(self._order.lane(job), place, self._now)
            self._keys[str(number)] = (False, *key, number)
        self._order.queued(self._jobs[number], sign=1)

    def _unqueue(self, number: int) -> None:
        del self._places[str(number)]
        self._keys.pop(str(number), None)
        self._order.queued(self._jobs[number], sign=-1)

    def _unbind(self, number: int) -> None:
        self._protection.drop_gang(str(number))
        self._views.pop(number, None)
        bound = self._bound_to.pop(number, None)
        if bound is not None:
            self._protection.settle(self._ledger.index[bound])

    def _pop(self, number: int, slot: int | None) -> None:
        """Remove the first job of its group from those that wait."""
        if slot is not None:
            self._waiting.pop(slot)
            return
        group = self._group(number, self._view(number))
        heapq.heappop(self._gangs[group])
        if not self._gangs[group]:
            del self._gangs[group]

    def _group(self, number: int, view: JobView) -> Group:
        job = self._jobs[number]
        project = job.project if self._by_project else 0
        lane = self._order.lane(job)
        return Group(view.shape, job.time_limit_seconds, lane, project, job.nodes)

    def _running(self, at: int) -> list[RunningJob]:
        running = self._ledger.views[at].running
        assert isinstance(running, list)  # noqa: S101 - they were made so
        return running

    def _view(self, number: int) -> JobView:
        view = self._views.get(number)
        if view is None:
            view = view_of(number, self._jobs[number], bound_to=self._bound_to.get(number))
            if str(number) in self._places:
                self._views[number] = view
        return view

    def _bind(self, number: int, appliance_id: str) -> None:
        self._bound_to[number] = appliance_id
        self._views.pop(number, None)
