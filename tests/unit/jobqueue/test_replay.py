"""The replay of recorded jobs does what the queue's planner would do at each event."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from msgspec import structs

from jobqueue.placement.decisions import Action, in_order
from jobqueue.placement.plan import Planner
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from jobqueue.placement.views import JobView, RunningJob, Snapshot
from jobqueue.projects.models import QuotaResource
from jobqueue.projects.quotas import QuotaRequest
from jobqueue.simulation.planner import ReplayPlanner, usual_jobs
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    RecordedProject,
    Recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Timeline

GIB = 1024**3
START = datetime(2000, 1, 1, tzinfo=UTC)


def an_appliance(name: str, *, gpus: int, cpus: float = 16) -> RecordedAppliance:
    return RecordedAppliance(
        name=name, cpus=cpus, memory_bytes=64 * GIB, gpus=(RecordedGPU(model="H100"),) * gpus
    )


def replayed(recording: Recording) -> Timeline:
    return Replay(recording, lambda _part: None).run()


def random_recording(seed: int, policy: str) -> Recording:
    """More jobs than the appliances can run at once, in a few sizes and with a few limits."""
    drawn = random.Random(seed)  # noqa: S311 - an experiment
    jobs, at = [], 0
    for _ in range(60):
        at += drawn.choice([0, 1, 3, 9])
        run = drawn.randint(1, 60)
        gpus = drawn.choice([0, 1, 1, 2, 4])
        jobs.append(
            RecordedJob(
                submitted_seconds=at,
                run_seconds=run,
                time_limit_seconds=drawn.choice([0, 60, 90]),
                gpus=gpus,
                gpu_milli=drawn.choice([300, 700, 1000]) if gpus == 1 else 1000,
                cpus=drawn.choice([1, 4, 10]),
                memory_bytes=drawn.choice([1, 30]) * GIB,
                priority=drawn.choice([0, 0, 1]),
                project=drawn.choice([0, 1, 2]),
            )
        )
    fleet = [an_appliance("a", gpus=4), an_appliance("b", gpus=2), an_appliance("c", gpus=4)]
    return Recording(appliances=fleet, jobs=jobs, rules=QueueRules(policy=policy))


class PlannedAnew:
    """The same jobs through a new plan of the whole queue at each event, as dispatch does."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.views = {appliance.name: appliance.view() for appliance in recording.appliances}
        self.waiting: dict[int, JobView] = {}
        self.ends: dict[int, tuple[float, str]] = {}
        self.starts = np.full(len(recording.jobs), np.nan)
        self.uses = 0
        self.usual = usual_jobs(recording.jobs)
        self.projects = ReplayPlanner(recording, self.usual).snapshot.projects

    def run(self) -> Sequence[float]:
        for number, job in enumerate(self.recording.jobs):
            self.end_until(job.submitted_seconds)
            self.waiting[number] = self.view(number)
            self.plan(job.submitted_seconds)
        self.end_until(math.inf)
        return self.starts.tolist()

    def end_until(self, until: float) -> None:
        while self.ends and min(self.ends.values())[0] <= until:
            now = min(self.ends.values())[0]
            for number in [ended for ended, (at, _) in self.ends.items() if at == now]:
                name = self.ends.pop(number)[1]
                running = [job for job in self.views[name].running if job.job_id != f"{number:03}"]
                self.views[name] = replace(self.views[name], running=running)
            self.plan(now)

    def plan(self, now: float) -> None:
        planner = Planner(
            Snapshot(
                now=START + timedelta(seconds=now),
                appliances=list(self.views.values()),
                jobs=(),
                policy=self.recording.rules.policy,
                workload=self.usual,
                projects=self.projects,
            )
        )
        for view in in_order(list(self.waiting.values())):
            decision, number = planner.decide(view), int(view.id)
            if decision.action is Action.BIND:
                self.waiting[number] = structs.replace(view, bound_to=decision.appliance_id)
            if decision.action is Action.ASSIGN:
                self.start(number, decision.appliance_id or "", decision.gpu_uuids, now)
            if decision.action in {Action.ASSIGN, Action.BIND}:
                self.use(decision.appliance_id or "")

    def start(self, number: int, name: str, gpu_uuids: Sequence[str], now: float) -> None:
        job, view = self.recording.jobs[number], self.waiting.pop(number)
        run = min(job.run_seconds, job.time_limit_seconds or math.inf)
        self.starts[number] = now
        self.ends[number] = now + run, name
        at = START + timedelta(seconds=now)
        running = RunningJob(
            job_id=view.id,
            project_id=view.project_id,
            gpu_uuids=gpu_uuids,
            gpu_milli=view.gpu_milli,
            cpus=view.cpus,
            memory_bytes=view.memory_bytes,
            ends_at=at + view.time_limit if view.time_limit else None,
        )
        old = self.views[name]
        self.views[name] = replace(old, running=[*old.running, running])

    def use(self, name: str) -> None:
        self.uses += 1
        used_at = START + timedelta(microseconds=self.uses)
        self.views[name] = replace(self.views[name], last_used_at=used_at)

    def view(self, number: int) -> JobView:
        job = self.recording.jobs[number]
        submitted_at = START + timedelta(seconds=job.submitted_seconds)
        limit = timedelta(seconds=job.time_limit_seconds) if job.time_limit_seconds else None
        return JobView(
            id=f"{number:03}",
            name="",
            submitted_at=submitted_at,
            project_id=str(job.project) if job.project else None,
            gpus=job.gpus,
            gpu_milli=job.gpu_milli,
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
            priority=job.priority,
            time_limit=limit,
        )


@pytest.mark.parametrize(
    ("seed", "policy"),
    [
        pytest.param(seed, policy, marks=() if number % 4 == seed else pytest.mark.nightly)
        for number, policy in enumerate(POLICY_NAMES)
        for seed in range(4)
    ],
)
def test_every_job_starts_when_the_planner_of_the_queue_would_start_it(
    seed: int, policy: str
) -> None:
    recording = random_recording(seed, policy)
    assert replayed(recording).starts.tolist() == PlannedAnew(recording).run()


@pytest.mark.parametrize("seed", range(3))
def test_no_project_exceeds_its_quota_and_jobs_wait_as_long_as_in_the_queue(seed: int) -> None:
    recording = random_recording(seed, DEFAULT_POLICY)
    maxima = {1: 4, 2: 5}
    recording.projects = [
        RecordedProject(
            project=project,
            quotas=(QuotaRequest(resource=QuotaResource.GPUS, maximum=maximum),),
        )
        for project, maximum in maxima.items()
    ]
    timeline = replayed(recording)
    for start in timeline.starts:
        runs = (timeline.starts <= start) & (start < timeline.ends)
        used = dict.fromkeys((0, *maxima), 0.0)
        for job, is_running in zip(recording.jobs, runs, strict=True):
            used[job.project] += is_running * job.gpus * job.gpu_milli / 1000
        assert all(used[project] <= maximum + 1e-9 for project, maximum in maxima.items())
    submitted = np.array([job.submitted_seconds for job in recording.jobs])
    planned = np.array(PlannedAnew(recording).run())
    # Of equal held jobs, only the first joins those that wait, so not every start is the same.
    mean = float((planned - submitted).mean())
    assert float((timeline.starts - submitted).mean()) == pytest.approx(mean, rel=0.1)
