"""The plan: an appliance and GPUs for each waiting job, or the reasons why it waits.

Pure: a `Snapshot` of one tenant goes in, decisions come out, without any input or output.
So the same code places jobs, explains ("why is it pending?") and simulates ("what if?").

An appliance is *feasible* for a job when it is online, accepts jobs and its totals suffice; it is
*free* when its free resources suffice too. A job without a free appliance is *bound* to a feasible
one and waits there. `jobqueue/README.md` draws the flow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from jobqueue.placement.decisions import Action, Decision, Rule, stopping_text
from jobqueue.placement.filters import (
    FEASIBLE,
    Filter,
    Rejection,
    apply_filters,
    most_relevant_first,
    rejection,
)
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.plan_state import NO_SLICES, PlanState, sized, slice_text
from jobqueue.placement.preemption import find_victims
from jobqueue.placement.quotas import Verdict
from jobqueue.placement.rental_choice import offer_groups, rental_reason
from jobqueue.placement.reservations import earliest_start
from jobqueue.placement.views import ApplianceView, JobShape, JobView, RunningJob
from protocol.clusters import requested_gpus

NO_CONTRACT = "No contract lets its jobs run on rented appliances."


class Choice(NamedTuple):
    """Where a job starts.

    Attributes:
        skips_degraded: whether free appliances with degraded GPUs were passed.
        rental_reason: why it goes to a rented appliance; "" for an own one.
    """

    place: int
    gpus: Sequence[int]
    skips_degraded: bool = False
    rental_reason: str = ""


class Planner(PlanState):
    """Decides for jobs one by one."""

    def decide(self, job: JobView) -> Decision:
        """Decide for the next job in the order of the queue."""
        self._drop_claim(job)
        wanted = sized(self.ledger, job)
        decision = self._decide(wanted)
        if wanted.slice_need is job.slice_need:
            return decision
        return replace(decision, reason=f"{decision.reason} {NO_SLICES}")

    def _decide(self, job: JobView) -> Decision:
        verdict = self.quotas.check(job)
        held = self.cap_reason(job) or verdict.refusal
        if held:
            return Decision(job_id=job.id, action=Action.HELD, reason=held)
        started, rejections = self.start(verdict.job)
        if started is not None:
            return started
        feasible, _ = self.feasible(verdict.job.shape)
        if verdict.guaranteed is None:
            return self._wait(verdict.job, feasible, rejections)
        reclaimed = self._reclaim(verdict, verdict.guaranteed, rejections)
        if reclaimed is not None:
            return reclaimed
        waiting = self._wait(verdict.job, feasible, rejections)
        borrowers = self.quotas.borrowers(verdict)
        if not borrowers or waiting.waits_for_data:
            return waiting
        why = f"{borrowers}, but no preemptible job of theirs makes enough room."
        return replace(waiting, reason=f"{waiting.reason} {why}")

    def start(self, job: JobView) -> tuple[Decision | None, list[Rejection]]:
        """Assign a job to an appliance that is free; return None and the rejections if none is."""
        feasible, rejections = self.feasible(job.shape)
        owner = job.project_id if self.reserved else None
        far = self.far(job)
        key = (job.shape, job.time_limit, owner, b"" if far is None else far.tobytes())
        full = self._full.get(key)
        if full is None or full[0] != self.ledger.changes:
            # Nothing is freed within a plan: what was too much for such a job still is.
            if full is None:
                filters = self.free_filters(job)
                free, busy = apply_filters(
                    filters, self.ledger, job.shape, feasible, is_ranked=False
                )
                choice = self._choose(job, free) if free.any() else None
                if choice is not None:
                    return self._assign(job, choice, [*rejections, *busy]), []
            free, busy = apply_filters(self.free_filters(job), self.ledger, job.shape, feasible)
            busy += self._reserved_rejection(job, free)
            merged = most_relevant_first([*rejections, *busy])
            full = self._full[key] = self.ledger.changes, merged
        return None, full[1]

    def _choose(self, job: JobView, free: Mask) -> Choice | None:
        """Return the appliance and its GPUs; None where an earlier job would be delayed."""
        is_healthy = free
        has_tiers = self.ledger.has_degraded and bool(job.gpus)
        if has_tiers:
            healthy = self.ledger.with_room(job.shape) & ~self.ledger.degraded
            is_healthy = (np.count_nonzero(healthy, axis=0) >= job.gpus) | self.ledger.is_cluster
        bound = self.ledger.index.get(job.bound_to or "")
        # A place where a job would delay an earlier one is not tried again for that shape.
        barred = self._barred.setdefault(
            (job.shape, job.time_limit), np.zeros(self.ledger.size, np.bool_)
        )
        for tier in self._tiers(job, free, is_healthy if has_tiers else None):
            candidates = tier & ~barred
            while candidates.any():
                if bound is not None and candidates[bound]:
                    place, gpus = bound, self.ledger.pick_gpus(bound, job.shape)
                else:
                    place, gpus = self._policy.choose(job.shape, candidates)
                if not self.reservations.would_delay(job, place, gpus, now=self.now):
                    skips = has_tiers and bool(is_healthy[place] and (free & ~is_healthy).any())
                    return Choice(place, gpus, skips, self._rental_reason(job, place, free))
                barred[place], candidates[place] = True, False
        return None

    def _tiers(self, job: JobView, free: Mask, is_healthy: Mask | None) -> Iterator[Mask]:
        """Yield the parts of the free appliances in the order in which a job prefers them.

        Own ones come before rented ones; of these, the best offers come first.
        """
        parts = [free]
        # A job that has failed somewhere goes elsewhere first, a trial is the last resort.
        for avoided in (self.failed_on(job), self.ledger.on_trial):
            if avoided.any():
                parts = [*(part & ~avoided for part in parts), *(part & avoided for part in parts)]
        is_rented = self.ledger.is_rented
        groups = (part & ~is_rented for part in parts)
        rented = (group for part in parts for group in offer_groups(self.ledger, part))
        for group in chain(groups, rented if self.ledger.grants else ()):
            tiers = [group] if is_healthy is None else [group & is_healthy, group & ~is_healthy]
            yield from self.data.split(tiers, job.datasets)

    def _rental_reason(self, job: JobView, place: int, free: Mask) -> str:
        if not self.ledger.is_rented[place]:
            return ""
        has_own = bool((self.feasible(job.shape)[0] & ~self.ledger.is_rented).any())
        return rental_reason(self.ledger, place, free, has_own=has_own)

    def _assign(self, job: JobView, choice: Choice, rejections: list[Rejection]) -> Decision:
        place, gpus = choice.place, choice.gpus
        view, is_trial = self.ledger.views[place], bool(self.ledger.on_trial[place])
        if is_trial:
            # No other job is placed there until this one has started.
            self.ledger.on_trial[place] = False
            self._feasible.clear()
        gpu_slice = self.occupy(job, place, gpus)
        policy, reason = self.snapshot.policy, f"{view.name} was {self._policy.title}."
        if is_trial:
            policy, reason = Rule.TRIAL, f"{view.name} is quarantined, and this job tries it."
        elif choice.rental_reason:
            policy, reason = Rule.RENTED, choice.rental_reason
        elif job.requested:
            policy, reason = Rule.REQUESTED, f"{view.name} was requested and is free."
        elif choice.skips_degraded:
            reason = f"{view.name} was {self._policy.title} with enough healthy GPUs."
        elif job.bound_to == view.id:
            policy = Rule.LEAST_RECENTLY_USED
            reason = f"{view.name}, which the job waited for, is free now."
        elif job.bound_to:
            before = self._name_of(job.bound_to)
            reason = f"{view.name} became free before {before}, which the job waited for."
        if gpu_slice is not None:
            reason = f"{reason} {slice_text(self.ledger, gpu_slice, place, gpus[0])}"
        return Decision(
            job_id=job.id,
            action=Action.ASSIGN,
            reason=f"{reason}{self.data.sentence(job.datasets, place)}",
            appliance_id=view.id,
            policy=policy,
            gpu_uuids=uuids(view, gpus),
            gpu_slice=gpu_slice,
            rejections=most_relevant_first(rejections),
            is_trial=is_trial,
            is_on_cluster=view.cluster is not None,
            rental=view.rental,
            **self.data_of(job, place),
        )

    def _wait(self, job: JobView, feasible: Mask, rejections: list[Rejection]) -> Decision:
        fetching = self._fetch_first(job, feasible, rejections)
        return fetching or self._wait_for_room(job, feasible, rejections)

    def _wait_for_room(self, job: JobView, feasible: Mask, rejections: list[Rejection]) -> Decision:
        rented = feasible & self.ledger.is_rented
        feasible = feasible & ~self.ledger.is_rented
        rule = Rule.REQUESTED if job.requested else Rule.LEAST_RECENTLY_USED
        place, victims = self._preempt(job, feasible)
        bound = self.ledger.index.get(job.bound_to or "")
        if place is None and bound is not None and self._may_stay(job, bound, feasible, rejections):
            place = bound
        if place is not None and not victims and feasible[place] and self._may_queue(place):
            return self._queue(job, place, rejections)
        if place is not None and place == bound:
            self._protect(job, bound)
            view = self.ledger.views[bound]
            return Decision(
                job_id=job.id,
                action=Action.STAY,
                reason=f"Waiting for {view.name}{stopping_text(victims)}.",
                appliance_id=view.id,
                policy=rule,
                rejections=rejections,
                victims=[victim.job_id for victim in victims],
            )
        if place is None and not feasible.any() and rented.any():
            return self._wait_for_rented(job, rented, rejections)
        if place is None and not feasible.any():
            reason = "No appliance can run the job right now."
            if job.rental is not None and not self.ledger.grants:
                reason = f"{reason} {NO_CONTRACT}"
            return Decision(
                job_id=job.id,
                action=Action.UNPLACED,
                reason=reason,
                rejections=rejections,
            )
        if place is None:
            place = self._least_recently_used(job, feasible)
            if self._may_queue(place):
                return self._queue(job, place, rejections)
        view = self.ledger.views[place]
        self.ledger.use(place)
        self._protect(job, place)
        reason = self._binding_reason(job, view.name)
        if victims:
            reason = f"The job waits for {view.name}{stopping_text(victims)}."
        return Decision(
            job_id=job.id,
            action=Action.BIND,
            reason=reason,
            appliance_id=view.id,
            policy=rule,
            rejections=rejections,
            victims=[victim.job_id for victim in victims],
        )

    def _protect(self, job: JobView, place: int) -> None:
        """Protect a job where it waits, unless it could not start there yet."""
        far = self.far(job)
        if far is None or not far[place]:
            self.reservations.add(place, job)

    def _fetch_first(
        self, job: JobView, feasible: Mask, rejections: Sequence[Rejection]
    ) -> Decision | None:
        """Let a job wait without GPUs where it has room, until its data is there.

        It stays where it is bound, if it can start there sooner than its data is elsewhere.

        Returns:
            None if it waits for something else.
        """
        far = self.far(job)
        if far is None:
            return None
        free, _ = apply_filters(self._room_filters(job), self.ledger, job.shape, feasible & far)
        free &= self.data_wait.with_room(job)
        choice = self._choose(job, free) if free.any() else None
        if choice is None:
            return None
        place, bound = choice.place, self.ledger.index.get(job.bound_to or "")
        if bound is not None and bound != place and feasible[bound]:
            running = self.ledger.allocations[bound]
            start = earliest_start(self.ledger, bound, job.shape, running, now=self.now)
            here = max(start, self.data_wait.near_at(job, bound))
            if here <= self.data_wait.near_at(job, place):
                if not free[bound]:
                    return None
                place = bound
        self.data_wait.promise(job, place)
        view = self.ledger.views[place]
        is_new = place != bound or job.data_wait_since is None
        if is_new:
            self.ledger.use(place)
        return Decision(
            job_id=job.id,
            action=Action.BIND if is_new else Action.STAY,
            reason=self.fetching_reason(job, [place]),
            appliance_id=view.id,
            policy=self.snapshot.policy,
            rejections=rejections,
            waits_for_data=True,
            **self.data_of(job, place),
        )

    def fetching_reason(self, job: JobView, places: Sequence[int]) -> str:
        """Return what a job waits for whose data is fetched to some appliances."""
        slowest = max(places, key=lambda place: self.data.seconds(job.datasets)[place])
        name = self.ledger.views[slowest].name
        text = self.data.waiting_text(job.datasets, slowest)
        return f"{name} fetches its data: {text}. Others use the GPUs meanwhile."

    def _wait_for_rented(
        self, job: JobView, rented: Mask, rejections: Sequence[Rejection]
    ) -> Decision:
        """Let a job wait for whichever rented appliance is free first; protect it on the best one.

        It isn't bound to it: others may take what becomes free there.
        """
        best = next(offer_groups(self.ledger, rented))
        self.reservations.add(self._least_recently_used(job, best), job)
        return Decision(
            job_id=job.id,
            action=Action.WAIT,
            reason="No rented appliance is free. The job starts on the first that has room.",
            policy=Rule.RENTED,
            rejections=rejections,
        )

    def _may_queue(self, place: int) -> bool:
        """Return whether a job may wait in the queue of a cluster, of which this is the place."""
        room = self.ledger.clusters.get(place)
        return room is not None and room.has_queue_room

    def _queue(self, job: JobView, place: int, rejections: Sequence[Rejection]) -> Decision:
        """Let a job wait in the queue of a cluster, where it counts towards caps and quotas."""
        view, gpus = self.ledger.views[place], self.ledger.pick_gpus(place, job.shape)
        self.occupy(job, place, gpus)
        reason = f"No appliance is free. {view.name} queues the job."
        if job.requested:
            reason = f"{view.name} was requested and is busy. It queues the job."
        return Decision(
            job_id=job.id,
            action=Action.ASSIGN,
            reason=reason,
            appliance_id=view.id,
            policy=Rule.REQUESTED if job.requested else Rule.LEAST_RECENTLY_USED,
            gpu_uuids=uuids(view, gpus),
            rejections=rejections,
            is_queued=True,
            is_on_cluster=True,
        )

    def _least_recently_used(self, job: JobView, feasible: Mask) -> int:
        preferred = feasible & ~self.ledger.on_trial & ~self.failed_on(job)
        candidates = preferred if preferred.any() else feasible
        last_used = np.where(candidates, self.ledger.last_used, np.iinfo(np.int64).max)
        return int(np.argmin(last_used))

    def _preempt(self, job: JobView, feasible: Mask) -> tuple[int | None, Sequence[RunningJob]]:
        if not self.may_preempt(job):
            return None, ()
        reserved = self.reservations.jobs
        # Somebody else may take what would become free on a rented one.
        open_to_it = feasible & ~(self.ledger.on_trial | self.ledger.is_rented)
        open_to_it = self.near(job, open_to_it & ~self.kept_places(job))
        open_to_it[[place for place in reserved if reserved[place].id != job.id]] = False
        return find_victims(job, self.ledger, open_to_it, self.rules(), now=self.now)

    def _reclaim(
        self, verdict: Verdict, job: JobView, rejections: Sequence[Rejection]
    ) -> Decision | None:
        """Let jobs of projects that borrow stop for one that a guarantee covers."""
        feasible = self.feasible(job.shape)[0] & ~(self.ledger.on_trial | self.ledger.is_rented)
        feasible = self.near(job, feasible & ~self.kept_places(job))
        place, victims = find_victims(job, self.ledger, feasible, self.rules(verdict), now=self.now)
        if place is None:
            return None
        self._claim(job, place, victims)
        view = self.ledger.views[place]
        guarantor = self.quotas.name_of(verdict.guarantor)
        is_bound = job.bound_to == view.id
        return Decision(
            job_id=job.id,
            action=Action.STAY if is_bound else Action.BIND,
            reason=(
                f"The job waits for {view.name}{stopping_text(victims)}. The guarantee of "
                f"{guarantor!r} covers it."
            ),
            appliance_id=view.id,
            policy=Rule.RECLAIM,
            rejections=rejections,
            victims=[victim.job_id for victim in victims],
            guarantor=guarantor,
        )

    def _may_stay(
        self, job: JobView, bound: int, feasible: Mask, rejections: Sequence[Rejection]
    ) -> bool:
        if feasible[bound]:
            return True
        # A few seconds without a heartbeat are no reason to rebind a waiting job.
        _, why = apply_filters(FEASIBLE, self.ledger, job.shape, _only(bound, self.ledger.size))
        return bool(rejections) and why[0].code == "stale"

    def _reserved_rejection(self, job: JobView, free: Mask) -> list[Rejection]:
        places = np.flatnonzero(free)
        if not places.size:
            return []
        return [rejection(self._reserved_filter(free), self.ledger, job.shape, places)]

    def _reserved_filter(self, free: Mask) -> Filter:
        def fact(_ledger: Ledger, _shape: JobShape, place: int) -> str:
            earlier = self.reservations.jobs[place]
            minutes = int((self.now - earlier.submitted_at).total_seconds() // 60)
            return f"reserved for {earlier.name!r}, which has waited {minutes} min"

        return Filter("reserved_for_earlier_job", lambda *_: free, fact)

    def _binding_reason(self, job: JobView, name: str) -> str:
        if job.requested:
            return f"{name} was requested and is busy. The job waits for it."
        reason = f"No appliance is free. The job waits for {name}, the least recently used."
        if job.bound_to:
            return f"{self._name_of(job.bound_to)} accepts no jobs at present. {reason}"
        return reason

    def _name_of(self, ident: str) -> str:
        place = self.ledger.index.get(ident)
        return "the previous appliance" if place is None else self.ledger.views[place].name


def uuids(view: ApplianceView, gpus: Sequence[int]) -> tuple[str, ...]:
    """Return the UUIDs of some GPUs of an appliance; for a cluster, those that stand for any."""
    if view.cluster is not None:
        return tuple(requested_gpus(len(gpus)))
    return tuple(view.gpus[slot].uuid for slot in gpus)


def _only(place: int, size: int) -> Mask:
    mask = np.zeros(size, np.bool_)
    mask[place] = True
    return mask
