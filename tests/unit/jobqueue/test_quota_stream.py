"""A random stream of jobs of projects: guarantees are served, limits kept, nothing given twice."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf

import msgspec
import pytest

from jobqueue.placement.decisions import Action, Decision, Rule, in_order
from jobqueue.placement.gangs import decide_all
from jobqueue.placement.plan import Planner
from jobqueue.placement.views import (
    ApplianceView,
    JobView,
    ProjectView,
    QuotaView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import ALL_GPUS, QuotaKey
from jobqueue.projects.models import QuotaResource
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, job

MAX_WAITING = 6
CPUS = QuotaKey(QuotaResource.CPUS)
# Two groups of teams; a team lends part of its guarantee, another is limited, a third has none.
PROJECTS = [
    ProjectView(id="group", name="group", quotas=[QuotaView(key=ALL_GPUS, guaranteed=16)]),
    ProjectView(
        id="vision",
        name="vision",
        parent_id="group",
        shares=3,
        quotas=[QuotaView(key=ALL_GPUS, guaranteed=10, lending_limit=7)],
    ),
    ProjectView(
        id="video",
        name="video",
        parent_id="group",
        quotas=[
            QuotaView(key=ALL_GPUS, guaranteed=4, borrowing_limit=6),
            QuotaView(key=CPUS, guaranteed=20),
        ],
    ),
    ProjectView(id="audio", name="audio", quotas=[QuotaView(key=ALL_GPUS, guaranteed=8)]),
    ProjectView(id="text", name="text", quotas=[QuotaView(key=ALL_GPUS, maximum=12)]),
]
PARENTS = {project.id: project.parent_id for project in PROJECTS}
QUOTAS = {(project.id, quota.key): quota for project in PROJECTS for quota in project.quotas}


def path(project_id: str | None) -> Iterator[str]:
    while project_id is not None:
        yield project_id
        project_id = PARENTS[project_id]


def _limit(row: QuotaView) -> float:
    """Return the most that a project may use."""
    borrowing = inf if row.borrowing_limit is None else row.borrowing_limit
    return min(inf if row.maximum is None else row.maximum, row.guaranteed + borrowing)


def _kept_back(
    node: str, steps: list[str], key: QuotaKey, used: Counter[tuple[str, QuotaKey]]
) -> int:
    """Return what projects below a project, but not on a path, don't lend."""
    return sum(
        max(row.guaranteed - row.lending_limit - used[other, key], 0)
        for (other, row_key), row in QUOTAS.items()
        if row_key == key and row.lending_limit is not None
        if node in path(other) and other not in steps
    )


@dataclass
class Cluster:
    """Four appliances of eight GPUs with what runs and waits, as the dispatcher would move it."""

    random: random.Random
    now: datetime = NOON
    waiting: dict[str, JobView] = field(default_factory=dict)
    running: dict[str, tuple[str, RunningJob, JobView]] = field(default_factory=dict)
    count: int = 0

    def submit(self) -> None:
        self.count += 1
        name = f"job-{self.count:05}"
        nodes = self.random.choice([1] * 8 + [2])
        self.waiting[name] = job(
            name,
            nodes=nodes,
            members=[name, *(f"{name}/{rank}" for rank in range(1, nodes))],
            submitted_at=self.now,
            project_id=self.random.choice([*PARENTS, None]),
            gpus=self.random.choice([0, 1, 1, 1, 2, 2, 4, 8] if nodes == 1 else [1, 2, 4]),
            cpus=float(self.random.choice([1, 2, 4])),
            is_preemptible=self.random.random() < 0.7,
            priority=self.random.choice([-1, 0, 0, 1]),
        )

    def end_jobs(self) -> None:
        """End what stops, which is queued again, and a few others."""
        for name, (_, running_job, view) in list(self.running.items()):
            if running_job.is_stopping:
                del self.running[name]
                self.waiting[view.id] = msgspec.structs.replace(view, submitted_at=self.now)
            elif self.random.random() < 0.06 and view.nodes == 1:
                del self.running[name]
        # Gangs end as a whole.
        gangs = {view.id for _, _, view in self.running.values() if view.nodes > 1}
        ended = {ident for ident in sorted(gangs) if self.random.random() < 0.06}
        self.running = {
            name: entry for name, entry in self.running.items() if entry[2].id not in ended
        }

    def snapshot(self) -> Snapshot:
        views: list[ApplianceView] = []
        for name in "abcd":
            on_it = [running_job for at, running_job, _ in self.running.values() if at == name]
            views.append(replace(appliance(name), running=on_it))
        return Snapshot(
            now=self.now, appliances=views, jobs=list(self.waiting.values()), projects=PROJECTS
        )

    def place(self) -> dict[str, Decision]:
        planner = Planner(self.snapshot())
        jobs = in_order(planner.snapshot.jobs)
        covered = planner.quotas.guaranteed_first(jobs)
        ordered = [*covered, *(view for view in jobs if view not in covered)]
        decisions = {view.id: decide_all(planner, view) for view in ordered}
        for ident, of_job in decisions.items():
            self._apply(self.waiting[ident], of_job)
        return {ident: of_job[0] for ident, of_job in decisions.items()}

    def _apply(self, view: JobView, decisions: list[Decision]) -> None:
        victims = {victim for decision in decisions for victim in decision.victims}
        stopping = {self.running[victim][2].id for victim in victims}
        for name, (at, running_job, victim_view) in list(self.running.items()):
            if victim_view.id in stopping:  # a gang stops as a whole
                assert running_job.is_preemptible
                stopped = msgspec.structs.replace(running_job, is_stopping=True)
                self.running[name] = at, stopped, victim_view
        first = decisions[0]
        self.waiting[view.id] = msgspec.structs.replace(
            view,
            bound_to=first.appliance_id if first.action in {Action.BIND, Action.STAY} else None,
        )
        starting = [decision for decision in decisions if decision.action is Action.ASSIGN]
        assert len(starting) in {0, view.nodes}, "a gang starts as a whole"
        for decision in starting:
            self.waiting.pop(view.id, None)
            names = ("project_id", "cpus", "memory_bytes", "priority", "is_preemptible")
            self.running[decision.job_id] = (
                decision.appliance_id or "",
                RunningJob(
                    job_id=decision.job_id,
                    gpu_uuids=decision.gpu_uuids,
                    assigned_at=self.now,
                    **{name: getattr(view, name) for name in names},
                ),
                view,
            )

    def used(self, *, is_staying: bool = False) -> Counter[tuple[str, QuotaKey]]:
        used: Counter[tuple[str, QuotaKey]] = Counter()
        for _, running_job, _ in self.running.values():
            # What starts in a pass after a job was decided lets others be stopped in the next.
            is_new = running_job.assigned_at == self.now
            for node in path(running_job.project_id):
                if not (is_staying and (running_job.is_stopping or is_new)):
                    used[node, ALL_GPUS] += len(running_job.gpu_uuids)
                    used[node, CPUS] += int(running_job.cpus)
        return used

    def check_resources(self) -> None:
        uuids = [
            uuid for _, running_job, _ in self.running.values() for uuid in running_job.gpu_uuids
        ]
        assert len(uuids) == len(set(uuids))
        for name in "abcd":
            on_it = [running_job for at, running_job, _ in self.running.values() if at == name]
            assert sum(running_job.cpus for running_job in on_it) <= 64
            assert sum(running_job.memory_bytes for running_job in on_it) <= 512 * GIB

    def check_limits(self) -> None:
        used = self.used()
        for place, quota in QUOTAS.items():
            if quota.maximum is not None:
                assert used[place] <= quota.maximum, place
            if quota.borrowing_limit is not None:
                assert used[place] <= quota.guaranteed + quota.borrowing_limit, place

    def check_guarantees(self, decisions: dict[str, Decision]) -> None:
        """Check that no borrower goes on that could make room for a job within a guarantee."""
        used, staying = self.used(), self.used(is_staying=True)
        for view in self.waiting.values():
            if decisions[view.id].policy == Rule.RECLAIM:
                for node in path(view.project_id):
                    used[node, ALL_GPUS] += view.whole.gpus
                    used[node, CPUS] += int(view.whole.cpus)
        for view in self.waiting.values():
            guarantor = self._guarantor(view, used) if view.nodes == 1 else None
            if guarantor is None or decisions[view.id].policy == Rule.RECLAIM:
                continue
            for _, running_job, _ in self.running.values():
                assert not (
                    self._makes_room(view, running_job)
                    and self._may_lose(view, guarantor, running_job, staying)
                ), (decisions[view.id], running_job)

    @staticmethod
    def _guarantor(view: JobView, used: Counter[tuple[str, QuotaKey]]) -> str | None:
        """Return the topmost project whose guarantees cover a job with GPUs."""
        guarantors: list[str] = []
        steps = list(path(view.project_id))
        for key, amount in ((ALL_GPUS, view.gpus), (CPUS, int(view.cpus))):
            rows = [(node, QUOTAS[node, key]) for node in steps if (node, key) in QUOTAS]
            if any(used[node, key] + amount > _limit(row) for node, row in rows):
                return None
            if not amount or not any(row.guaranteed for _, row in rows):
                continue
            covering = [
                node
                for node, row in rows
                if used[node, key] + amount + _kept_back(node, steps, key, used) <= row.guaranteed
            ]
            if not covering:
                return None
            guarantors.append(covering[0])
        return max(guarantors, key=steps.index) if view.gpus and guarantors else None

    def _makes_room(self, view: JobView, running_job: RunningJob) -> bool:
        return (
            running_job.is_preemptible
            and not running_job.is_stopping
            and running_job.assigned_at != self.now  # else the next pass stops it
            and len(running_job.gpu_uuids) >= view.gpus
            and running_job.cpus >= view.cpus
        )

    @staticmethod
    def _may_lose(
        view: JobView,
        guarantor: str,
        running_job: RunningJob,
        staying: Counter[tuple[str, QuotaKey]],
    ) -> bool:
        """Return whether the job's projects are above their guarantees without it."""
        own = set(path(view.project_id))
        steps = list(path(running_job.project_id))
        amounts = {ALL_GPUS: len(running_job.gpu_uuids), CPUS: int(running_job.cpus)}
        return guarantor not in steps and all(
            staying[node, key] - amount >= QUOTAS[node, key].guaranteed
            for node in steps
            for key, amount in amounts.items()
            if node not in own and (node, key) in QUOTAS
        )


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 260), pytest.param(2, 10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])],
)
def test_a_random_stream_of_jobs_keeps_every_quota(seed: int, steps: int) -> None:
    cluster = Cluster(random.Random(seed))  # noqa: S311 - no secrets
    seen: Counter[str] = Counter()
    for _ in range(steps):
        cluster.now += timedelta(minutes=1)
        cluster.end_jobs()
        for _ in range(cluster.random.choice([0, 1, 2, 3])):
            if len(cluster.waiting) < MAX_WAITING:
                cluster.submit()
        decisions = cluster.place()
        cluster.check_resources()
        cluster.check_limits()
        cluster.check_guarantees(decisions)
        seen.update(decision.action.value for decision in decisions.values())
        seen["victims"] += sum(len(decision.victims) for decision in decisions.values())
    # The stream has met what it is about.
    assert min(seen["assign"], seen["held"], seen["victims"], seen["wait"]) > steps / 20, seen
