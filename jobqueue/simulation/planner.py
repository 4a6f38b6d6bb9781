"""The planner of the queue in a replay, where it goes on from event to event."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import numpy as np
from msgspec import structs

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.filters import FREE, passing
from jobqueue.placement.gangs import capacity, start_all
from jobqueue.placement.ledger import Mask
from jobqueue.placement.plan import Choice, Planner, uuids
from jobqueue.placement.preemption import find_victims
from jobqueue.placement.quotas import Verdict
from jobqueue.placement.slices import Part
from jobqueue.placement.views import (
    UNLIMITED,
    Caps,
    JobShape,
    JobView,
    ProjectView,
    QuotaView,
    ReservationView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.quotas import LIMITS
from jobqueue.simulation.order import START
from jobqueue.simulation.protection import Protection
from jobqueue.simulation.recording import RecordedJob, RecordedReservation, Recording
from protocol.gpu_slices import GPUSlice

# After all limits, and before the end that backfill assumes of a job without one.
_ENDLESS = START + 1.5 * UNLIMITED
# The usual jobs, for `least_fragmentation`, are taken from this many, evenly spread.
_USUAL_JOBS = 1000
# What a planner remembers by shape is dropped beyond this, where every job has another one.
_MAX_SHAPES = 2000
# The members of a gang after the first have its number with this and their own.
_MEMBER = "+"


class ReplayPlanner(Planner):
    """Places the jobs of a recording one by one; `now` moves with the events."""

    def __init__(self, recording: Recording, usual: Sequence[tuple[JobShape, float]]) -> None:
        rules = recording.rules
        projects = _projects(recording)
        self.has_running_views = rules.allows_preemption or any(
            quota.guaranteed for project in projects for quota in project.quotas
        )
        views = [appliance.view() for appliance in recording.appliances]
        for view in views if self.has_running_views else ():
            # The planner looks for victims in the views.
            object.__setattr__(view, "running", [])
        super().__init__(
            Snapshot(
                now=START,
                appliances=views,
                jobs=(),
                policy=rules.policy,
                caps=Caps(gpus_per_user=rules.max_gpus_per_user, gpus=rules.max_gpus),
                allows_preemption=rules.allows_preemption,
                workload=usual,
                projects=projects,
                reservations=_reservations(recording),
            )
        )
        self.may_displace = True
        self.has_quotas = bool(projects)
        self.is_limited = self.has_quotas or self.snapshot.caps != Caps()
        self._possible: dict[tuple[JobShape, int], bool] = {}
        # No recorded job has failed anywhere.
        self._nowhere: Mask = np.zeros(self.ledger.size, np.bool_)

    def protect(self, protection: Protection) -> None:
        """Use reservations that last."""
        self.reservations = self.protection = protection

    def is_possible(self, job: JobView) -> bool:
        """Return whether a job would fit if all appliances were idle."""
        key = job.shape, job.nodes
        is_possible = self._possible.get(key)
        if is_possible is None:
            feasible, _ = self.feasible(job.shape)
            is_possible = bool(feasible.any())
            if len(job.members) > 1:
                is_possible = capacity(self.ledger, job.shape, feasible) >= len(job.members)
            self._possible[key] = is_possible
        return is_possible

    def failed_on(self, _job: JobView) -> Mask:
        """Return the appliances where attempts of a job failed: none."""
        return self._nowhere

    def admit(self, job: JobView) -> Verdict | None:
        """Return what quotas say of a job, limited to the models it may use; None: it is held."""
        if not self.is_limited:
            return Verdict(job)
        if self.cap_reason(job):
            return None
        verdict = self.quotas.check(job.whole)
        if verdict.refusal:
            return None
        if len(job.members) > 1:
            limited = structs.replace(job, gpu_models=verdict.job.gpu_models)
            return verdict._replace(job=limited)
        return verdict

    def start_among(self, job: JobView, places: Collection[int] | None = None) -> list[Decision]:
        """Start a job on one of these appliances, or on any; a gang starts anywhere.

        Returns:
            A decision for each member; none if the job can't start.
        """
        if len(job.members) > 1:
            return start_all(self, job)
        shape = job.shape
        wanted, _ = self.feasible(shape)
        if places is not None:
            if len(places) == 1 and not self.reserved:
                (place,) = places
                return self._start_at(job, shape, place) if wanted[place] else []
            among = np.zeros(self.ledger.size, np.bool_)
            among[list(places)] = True
            wanted = wanted & among
        filters = self.free_filters(job) if self.reserved else FREE
        free = passing(filters, self.ledger, shape, wanted)
        if not free.any():
            return []
        free = self.protection.admitted(job, free, now=self.now)
        self._barred.clear()
        choice = self._choose(job, free) if free.any() else None
        return [] if choice is None else [self._assign(job, choice, [])]

    def _start_at(self, job: JobView, shape: JobShape, place: int) -> list[Decision]:
        """Start a job on an appliance, without a look at the others."""
        ledger = self.ledger
        gpus = ledger.pick_gpus(place, shape)
        if (
            len(gpus) < shape.gpus
            or shape.cpus > ledger.cpus_free[place] + CPU_TOLERANCE
            or shape.memory_bytes > ledger.memory_free[place]
            or not self.protection.admits(job, place, now=self.now)
        ):
            return []
        if ledger.index.get(job.bound_to or "") != place:
            gpus = self._policy.gpus_at(shape, place)
        if self.reservations.would_delay(job, place, gpus, now=self.now):
            return []
        return [self._assign(job, Choice(place, gpus), [])]

    def _assign(self, job: JobView, choice: Choice, _rejections: object) -> Decision:
        """Start a job; nobody reads why."""
        self.occupy(job, choice.place, choice.gpus)
        view = self.ledger.views[choice.place]
        return Decision(
            job_id=job.id,
            action=Action.ASSIGN,
            reason="",
            appliance_id=view.id,
            gpu_uuids=uuids(view, choice.gpus) if self.has_running_views else (),
        )

    def occupy(
        self, job: JobView, place: int, gpus: Sequence[int], part: Part | None = None
    ) -> GPUSlice | None:
        """Give a job its resources."""
        gpu_slice = super().occupy(job, place, gpus, part)
        if job.time_limit is None:
            # In each plan of the queue, all jobs without a limit end at the same time.
            allocations = self.ledger.allocations[place]
            allocations[-1] = allocations[-1]._replace(ends_at=_ENDLESS)
        return gpu_slice

    def wait(self, job: JobView) -> Decision:
        """Bind a job that doesn't start, which may displace others."""
        return self._wait(job, self.feasible(job.shape)[0], [])

    def may_preempt(self, job: JobView) -> bool:
        """Return whether jobs may be stopped for a job."""
        return self.may_displace and super().may_preempt(job)

    def reclaim(self, verdict: Verdict, job: JobView) -> tuple[int | None, list[str]]:
        """Return where jobs stop for one that a guarantee covers, and their ids; None: nowhere."""
        feasible = self.feasible(job.shape)[0] & ~self.kept_places(job)
        place, victims = find_victims(job, self.ledger, feasible, self.rules(verdict), now=self.now)
        return place, [victim.job_id for victim in victims]

    def drop_past_periods(self) -> None:
        """Forget the periods of reservations that are over, of which there may be many."""
        for reservation in self.snapshot.reservations:
            periods = reservation.periods
            while isinstance(periods, list) and periods and periods[0][1] <= self.now:
                del periods[0]

    def end(self, place: int, job_id: str) -> None:
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
            self._possible.clear()


def view_of(number: int, job: RecordedJob, *, bound_to: str | None) -> JobView:
    """Return a recorded job as it waits."""
    limit = job.time_limit_seconds
    return JobView(
        id=str(number),
        name="",
        submitted_at=START + timedelta(seconds=job.submitted_seconds),
        user_id=str(job.user),
        project_id=str(job.project) if job.project else None,
        gpus=job.gpus,
        gpu_milli=job.gpu_milli,
        gpu_memory_bytes=job.gpu_memory_bytes,
        gpu_models=frozenset(job.gpu_models),
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        requested=job.appliance or None,
        bound_to=bound_to,
        priority=job.priority,
        is_preemptible=job.is_preemptible,
        time_limit=timedelta(seconds=limit) if limit else None,
        nodes=job.nodes,
        members=_members(number, job.nodes) if job.nodes > 1 else (),
    )


def _members(number: int, nodes: int) -> list[str]:
    return [str(number), *(f"{number}{_MEMBER}{member}" for member in range(1, nodes))]


def number_of(job_id: str) -> int:
    """Return the number of the recorded job that has an id, or a member with it."""
    return int(job_id.partition(_MEMBER)[0])


def running_view(job: RecordedJob, decision: Decision, *, now: datetime) -> RunningJob:
    """Return a job, or a member of a gang, that has started."""
    return RunningJob(
        job_id=decision.job_id,
        user_id=str(job.user),
        project_id=str(job.project) if job.project else None,
        gpu_uuids=decision.gpu_uuids,
        gpu_milli=job.gpu_milli,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        priority=job.priority,
        is_preemptible=job.is_preemptible,
        assigned_at=now,
    )


def usual_jobs(jobs: Sequence[RecordedJob]) -> list[tuple[JobShape, float]]:
    """Return the shapes of jobs, evenly spread over the recording, with their numbers."""
    step = max(1, len(jobs) // _USUAL_JOBS)
    shapes: Counter[JobShape] = Counter()
    for job in jobs[::step]:
        shape = JobShape(
            gpus=job.gpus,
            gpu_milli=job.gpu_milli,
            gpu_memory_bytes=job.gpu_memory_bytes,
            gpu_models=frozenset(job.gpu_models),
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
        )
        shapes[shape] += job.nodes
    return [(shape, float(count)) for shape, count in shapes.items()]


def _projects(recording: Recording) -> list[ProjectView]:
    """Return the projects if any has quotas; otherwise none, as in the queue."""
    if not any(project.quotas for project in recording.projects):
        return []
    return [
        ProjectView(
            id=str(project.project),
            name=str(project.project),
            parent_id=str(project.parent) if project.parent else None,
            shares=project.shares,
            quotas=[
                QuotaView(key=quota.key, **{name: getattr(quota, name) for name in LIMITS})
                for quota in project.quotas
            ],
        )
        for project in recording.projects
    ]


def _reservations(recording: Recording) -> list[ReservationView]:
    parents = {project.project: project.parent for project in recording.projects}

    def path(number: int) -> set[int]:
        return {number, *(path(parents[number]) if parents.get(number) else ())}

    def below(reservation: RecordedReservation) -> frozenset[str]:
        wanted = reservation.project
        inside = {number for number in parents if wanted in path(number)} | {wanted}
        return frozenset(map(str, inside)) if wanted else frozenset()

    return [
        ReservationView(
            name=str(number),
            project=str(reservation.project or ""),
            project_ids=below(reservation),
            appliance_ids=reservation.appliances,
            gpus=reservation.gpus,
            # A list, from which periods that are over are removed.
            periods=[
                (START + timedelta(seconds=begin), START + timedelta(seconds=end))
                for begin, end in reservation.periods
            ],
        )
        for number, reservation in enumerate(recording.reservations)
    ]
