"""A replay follows the rules of projects and gangs: quotas, reservations, fair shares."""

import random
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.errors import InvalidInputError
from jobqueue.fairshare.accounts import Projects
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.points import Shares, order_queue
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.fairshare.usage import Account, decayed_seconds
from jobqueue.placement.views import PRIORITY_POINT
from jobqueue.projects.models import Project, QuotaResource
from jobqueue.projects.quotas import QuotaRequest
from jobqueue.simulation.order import START, Points
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    RecordedProject,
    RecordedReservation,
    Recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Timeline, figures
from jobqueue.simulation.scenarios import Changes, scenarios

GIB = 1024**3
HOUR = timedelta(hours=1)


def a_job(at: float, run: float, gpus: int = 4, **fields: Any) -> RecordedJob:  # noqa: ANN401 - of a job
    return RecordedJob(submitted_seconds=at, run_seconds=run, gpus=gpus, **fields)


def fleet(*names: str) -> list[RecordedAppliance]:
    """Appliances of four GPUs each."""
    h100 = RecordedGPU(model="H100", memory_bytes=80 * GIB)
    return [
        RecordedAppliance(name=name, cpus=64, memory_bytes=512 * GIB, gpus=(h100,) * 4)
        for name in names
    ]


def replayed(*jobs: RecordedJob, names: tuple[str, ...] = ("a",), **fields: Any) -> Timeline:  # noqa: ANN401 - of a recording
    return Replay(recorded(*jobs, names=names, **fields), lambda _part: None).run()


def recorded(*jobs: RecordedJob, names: tuple[str, ...] = ("a",), **fields: Any) -> Recording:  # noqa: ANN401 - of a recording
    return Recording(appliances=fleet(*names), jobs=list(jobs), **fields)


def gpu_quota(project: int, **limits: Any) -> RecordedProject:  # noqa: ANN401 - of a quota
    quota = QuotaRequest(resource=QuotaResource.GPUS, **limits)
    return RecordedProject(project=project, quotas=(quota,))


def test_the_members_of_a_gang_start_together_and_nothing_delays_them() -> None:
    timeline = replayed(
        a_job(0, 50, time_limit_seconds=100),
        a_job(1, 10, nodes=2, time_limit_seconds=60),
        # On the other appliance this one would end in time, and that one would not.
        a_job(2, 5, time_limit_seconds=40),
        a_job(3, 5, time_limit_seconds=200),
        names=("a", "b"),
    )
    assert timeline.starts.tolist() == [0, 50, 2, 60]
    assert timeline.ends.tolist() == [50, 60, 7, 65]


def test_a_gang_that_is_larger_than_the_fleet_is_left_out() -> None:
    timeline = replayed(a_job(0, 10, nodes=3), a_job(0, 10), names=("a", "b"))
    assert timeline.impossible == [0]


def test_the_gpus_of_all_members_count() -> None:
    recording = recorded(a_job(0, 100, nodes=2), a_job(100, 0), names=("a", "b"))
    results = figures(recording, Replay(recording, lambda _part: None).run())
    assert results.allocated_ratio == 1.0
    assert results.sizes[-1].size == "5 to 8 GPUs"


def test_a_maximum_holds_jobs_and_a_later_one_of_another_project_passes() -> None:
    jobs = [a_job(0, 10, 2, project=1), a_job(1, 10, 2, project=1), a_job(2, 10, 2, project=2)]
    assert replayed(*jobs, projects=[gpu_quota(1, maximum=2)]).starts.tolist() == [0, 10, 2]


def test_a_held_job_comes_before_later_ones_as_soon_as_its_quota_allows() -> None:
    jobs = [
        a_job(0, 10, 4, project=1),
        a_job(1, 10, 4, project=1),
        *(a_job(2 + number, 10, 4, project=2) for number in range(3)),
    ]
    starts = replayed(*jobs, projects=[gpu_quota(1, maximum=4)]).starts.tolist()
    assert starts == [0, 10, 20, 30, 40]


def test_a_guarantee_is_reclaimed_from_a_borrower() -> None:
    jobs = [
        a_job(0, 100, 2, project=1, is_preemptible=True),
        a_job(0, 100, 2, project=1, is_preemptible=True),
        a_job(10, 20, 2, project=2),
    ]
    timeline = replayed(*jobs, projects=[gpu_quota(2, guaranteed=2)])
    # The youngest of the borrower's jobs is displaced, and starts anew at the end.
    assert timeline.starts.tolist() == [0, 30, 10]
    assert timeline.lost == [(1, 0.0, 10.0)]
    without = replayed(*jobs, projects=[gpu_quota(2, maximum=4)])
    assert without.lost == []


def test_jobs_of_others_start_only_after_a_reservation() -> None:
    nightly = RecordedReservation(appliances=("a",), periods=((50, 100), (300, 400)), project=1)
    jobs = [
        a_job(0, 10, 2, time_limit_seconds=40),
        a_job(20, 10, 2, time_limit_seconds=40),
        a_job(60, 10, 2, project=1),
        a_job(110, 10, 2, time_limit_seconds=191),
    ]
    timeline = replayed(*jobs, reservations=[nightly])
    assert timeline.starts.tolist() == [0, 100, 60, 400]


@pytest.mark.parametrize("order", ["fair_tree", pytest.param("drf", marks=pytest.mark.nightly)])
def test_projects_are_served_by_their_shares(order: str) -> None:
    jobs = [
        a_job(0, 600, 1, project=project, user=project, cpus=1)
        for _ in range(600)
        for project in (1, 2)
    ]
    # The last submission ends the period that is measured.
    jobs.append(a_job(45_000, 1, 0))
    weights = OrderSettings(age_weight=1, half_life_days=0.1)
    recording = recorded(
        *jobs,
        rules=QueueRules(order=order, ordering=weights),
        projects=[RecordedProject(project=1, shares=3), RecordedProject(project=2)],
    )
    results = figures(recording, Replay(recording, lambda _part: None).run())
    served = {project.project: project.served_ratio for project in results.projects}
    assert served[1] == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("policy", ["fair_tree", "drf"])
def test_jobs_are_in_the_order_of_the_queue_by_the_same_points(policy: str) -> None:
    drawn = random.Random(5)  # noqa: S311 - an experiment
    jobs = [
        a_job(
            number,
            10,
            drawn.randint(0, 4),
            user=number,
            project=number % 3,
            priority=drawn.randint(-50, 50),
            cpus=drawn.randint(1, 32),
        )
        for number in range(12)
    ]
    settings = OrderSettings(policy=OrderPolicy(policy), size_weight=500, cpu_usage_weight=0.1)
    recording = recorded(
        *jobs,
        rules=QueueRules(order=policy, ordering=settings),
        projects=[RecordedProject(project=1, shares=5)],
        names=("a", "b", "c"),
    )
    order = Points(recording)
    ran = [a_job(0, 0, 2, user=user, project=user % 3) for user in (0, 1, 2, 3)]
    for job in ran:
        order.started(job, 0.0)
    order.ended(ran[0], 3600.0)
    for job in jobs:
        order.queued(job, sign=1)
    keys = [order.key(order.lane(job), order.place(job), 7200.0) for job in jobs]
    replayed_order = sorted(range(len(jobs)), key=lambda number: keys[number])

    rows = [
        SimpleNamespace(
            id=str(number),
            queue_at=START
            + timedelta(seconds=job.submitted_seconds)
            - job.priority * PRIORITY_POINT,
            priority=job.priority,
            project_id=str(job.project) if job.project else None,
            user_id=str(job.user),
            gpus=job.gpus,
            cpus=job.cpus,
            memory_bytes=job.memory_bytes,
        )
        for number, job in enumerate(jobs)
    ]
    decayed = partial(decayed_seconds, START, at=START + 2 * HOUR, half_life=settings.half_life)
    rate = 2 + 0.1
    until = {0: START + HOUR} | dict.fromkeys((1, 2, 3), START + 2 * HOUR)
    running = Resources(2, 1, 0)
    shares = Shares(
        projects=Projects(
            {
                str(number): Project(id=str(number), name=str(number), shares=weight)
                for number, weight in ((1, 5), (2, 1))
            },
            {},
        ),
        usage={
            Account(str(user % 3) if user % 3 else "", str(user)): rate * decayed(end)
            for user, end in until.items()
        },
        running={
            Account(str(user % 3) if user % 3 else "", str(user)): running for user in (1, 2, 3)
        },
        fleet=Resources(12, 192, 3 * 512 * GIB),
    )
    expected = order_queue(rows, shares, settings, now=START + 2 * HOUR)
    assert [str(number) for number in replayed_order] == expected.ids


def test_shares_divide_what_the_project_above_has() -> None:
    projects = [
        RecordedProject(project=1, shares=2),
        RecordedProject(project=2, parent=1, shares=3),
        RecordedProject(project=3, parent=1, shares=1),
    ]
    assert recorded(projects=projects).shares() == {1: 2, 2: 1.5, 3: 0.5}


def test_other_shares_and_quotas_are_a_scenario() -> None:
    recording = recorded(a_job(0, 1, project=1), projects=[gpu_quota(1, maximum=2)])
    changes = Changes(
        shares=("vision=3",),
        quotas=("vision:gpus:none", "vision:H100 gpus:guaranteed=1,maximum=4"),
    )
    _, changed = scenarios(recording, changes, names={"vision": 1})
    assert changed.name == "other shares, other quotas"
    [project] = changed.recording.projects
    assert project.shares == 3
    [quota] = project.quotas
    assert (quota.gpu_model, quota.guaranteed, quota.maximum) == ("H100", 1, 4)


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("shares", "1=0", "1 to 1000000"),
        ("shares", "7=1", "no project '7'"),
        ("quotas", "1:gpus", "not PROJECT:RESOURCE:LIMITS"),
        ("quotas", "1:tpus:maximum=1", "Resources are gpus, cpus, memory_bytes"),
        ("quotas", "1:gpus:most=1", "is no limit"),
        ("quotas", "1:gpus:guaranteed=4,maximum=2", "enter at least that"),
    ],
)
def test_shares_and_quotas_are_refused_with_the_reason(field: str, text: str, problem: str) -> None:
    changes = msgspec.convert({field: (text,)}, Changes)
    with pytest.raises(InvalidInputError, match=problem) as refused:
        scenarios(recorded(a_job(0, 1, project=1)), changes)
    assert list(refused.value.errors) == [field]


@pytest.mark.parametrize(
    ("projects", "problem"),
    [
        ([RecordedProject(project=1, parent=2)], "below 2, which is missing"),
        (
            [RecordedProject(project=1, parent=2), RecordedProject(project=2, parent=1)],
            "below itself",
        ),
        ([RecordedProject(project=1), RecordedProject(project=1)], "listed twice"),
    ],
)
def test_trees_that_are_none_are_refused(projects: list[RecordedProject], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        scenarios(recorded(a_job(0, 1), projects=projects), Changes())
