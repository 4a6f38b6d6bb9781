"""Gangs in placement: where all members fit, what they wait for, and that they start together."""

# ruff: noqa: ANN401, S311 - builders pass any field on, and the stream is repeatable

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from jobqueue.placement.decisions import Action, Decision, Rule
from jobqueue.placement.views import (
    ApplianceView,
    Caps,
    JobView,
    ProjectView,
    QuotaView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import ALL_GPUS
from tests.cast import NOON
from tests.unit.jobqueue.builders import appliance, busy, gpu_uuid, job, plan

HOUR = timedelta(hours=1)


def gang(name: str, nodes: int, *, gpus: int = 8, **changes: Any) -> JobView:
    """A waiting gang whose members need some GPUs each."""
    members = [name, *(f"{name}/{rank}" for rank in range(1, nodes))]
    return job(name, gpus=gpus, nodes=nodes, members=members, array_id=name, **changes)


def places(decisions: list[Decision]) -> Counter[str]:
    """The number of members that start on each appliance."""
    assigned = [made for made in decisions if made.action is Action.ASSIGN]
    return Counter(made.appliance_id or "" for made in assigned)


def until(name: str, hours: int, *, gpus: int = 8, **changes: Any) -> RunningJob:
    """A job on the first GPUs of an appliance that ends by its limit in some hours."""
    uuids = [gpu_uuid(name, index) for index in range(gpus)]
    ends_at = NOON + hours * HOUR
    return RunningJob(job_id=f"on-{name}", gpu_uuids=uuids, ends_at=ends_at, **changes)


@pytest.mark.parametrize(
    ("fleet", "nodes", "gpus", "expected"),
    [
        ([busy("a", free_gpus=4), appliance("b")], 4, 2, {"b": 4}),
        ([busy("a", free_gpus=4), busy("b", free_gpus=6), appliance("c")], 2, 2, {"a": 2}),
        (
            [appliance("a", site="n"), appliance("b", site="s"), appliance("c", site="s")],
            2,
            8,
            "bc",
        ),
        (
            [
                appliance("a", site="s", nvlink_domain="x"),
                appliance("b", site="s"),
                appliance("c", site="s", nvlink_domain="x"),
            ],
            2,
            8,
            "ac",
        ),
        ([appliance("a", site="n"), appliance("b", site="s"), busy("c", free_gpus=2)], 2, 8, "ab"),
    ],
    ids=["fewest", "fullest that suffices", "one site", "one NVLink domain", "anywhere"],
)
def test_members_are_placed_as_close_together_as_they_fit(
    fleet: list[ApplianceView], nodes: int, gpus: int, expected: Any
) -> None:
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=[gang("train", nodes, gpus=gpus)]))
    assert places(decisions) == Counter(expected)
    assert len({uuid for made in decisions for uuid in made.gpu_uuids}) == nodes * gpus


def test_a_gang_that_does_not_fit_holds_nothing_and_says_what_it_waits_for() -> None:
    fleet = [appliance("a"), appliance("b", running=[until("b", 2)])]
    waiting, alone = plan(
        Snapshot(
            now=NOON,
            appliances=fleet,
            jobs=[gang("train", 2), job("small", gpus=1, submitted_at=NOON + HOUR)],
        )
    )[1:]
    assert waiting.action is Action.WAIT
    assert waiting.reason == (
        "1 of 2 members fit now, and all start together. The gang waits for a, b."
    )
    assert alone.action is Action.BIND, "without a limit it would delay the gang"


def test_short_jobs_are_backfilled_around_a_gang() -> None:
    fleet = [appliance("a"), appliance("b", running=[until("b", 2)])]
    late = {"submitted_at": NOON + HOUR, "gpus": 8}
    jobs = [
        gang("train", 2),
        job("two hours", time_limit=2 * HOUR, **late),
        job("three hours", time_limit=3 * HOUR, **late),
    ]
    decisions = {
        made.job_id: made for made in plan(Snapshot(now=NOON, appliances=fleet, jobs=jobs))
    }
    assert decisions["two hours"].appliance_id == "a"
    assert decisions["two hours"].action is Action.ASSIGN
    assert decisions["three hours"].action is not Action.ASSIGN
    assert "reserved for 'train'" in str(decisions["three hours"].rejections)


def test_two_gangs_never_wait_for_each_other() -> None:
    fleet = [appliance(name) for name in "abc"]
    first, second = gang("first", 2), gang("second", 2, submitted_at=NOON + HOUR)
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=[first, second]))
    assert [made.action for made in decisions] == [Action.ASSIGN] * 2 + [Action.WAIT] * 2


def test_a_gang_larger_than_what_accepts_jobs_is_unplaced() -> None:
    fleet = [appliance("a"), appliance("b", is_drained=True)]
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=[gang("train", 2)]))
    assert {made.action for made in decisions} == {Action.UNPLACED}
    assert decisions[0].reason == "The appliances that accept jobs hold 1 of the gang's 2 members."


def test_a_gang_preempts_as_few_jobs_as_it_needs() -> None:
    small = {"is_preemptible": True}
    fleet = [
        appliance("a", running=[until("a", 9, gpus=4, **small)]),
        appliance("b", running=[until("b", 9, gpus=8, **small)]),
        appliance("c", running=[until("c", 9, gpus=8)]),
    ]
    decisions = plan(
        Snapshot(
            now=NOON, appliances=fleet, jobs=[gang("train", 3, gpus=4)], allows_preemption=True
        )
    )
    assert [made.action for made in decisions] == [Action.WAIT] * 3
    assert [sorted(made.victims) for made in decisions] == [["on-b"], [], []]


def test_members_count_together_towards_a_cap() -> None:
    fleet = [appliance("a"), appliance("b")]
    decisions = plan(
        Snapshot(now=NOON, appliances=fleet, jobs=[gang("train", 2)], caps=Caps(gpus=8))
    )
    assert {made.action for made in decisions} == {Action.HELD}
    assert "requests 16" in decisions[0].reason


class Stream:
    """A fleet under a random stream of jobs and gangs, of which the planner decides each step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = NOON
        self.fleet = [appliance(f"a{number}", gpus=8, site=f"s{number % 2}") for number in range(6)]
        self.running: dict[str, list[RunningJob]] = {view.name: [] for view in self.fleet}
        self.waiting: dict[str, JobView] = {}
        self.started: Counter[str] = Counter()
        self.number = 0

    def arrive(self) -> None:
        self.number += 1
        limit = (
            timedelta(minutes=self.random.randint(1, 90)) if self.random.random() < 0.9 else None
        )
        fields = {"submitted_at": self.now, "time_limit": limit}
        name = f"j{self.number:05}"
        gpus = self.random.choice([1, 2, 4, 8])
        nodes = self.random.choice([1, 1, 1, 2, 3, 4, 6])
        view = (
            gang(name, nodes, gpus=gpus, **fields) if nodes > 1 else job(name, gpus=gpus, **fields)
        )
        self.waiting[name] = view

    def step(self) -> None:
        """Let a minute pass: jobs end, others start."""
        self.now += timedelta(minutes=1)
        for name, jobs in self.running.items():
            self.running[name] = [
                other
                for other in jobs
                if (other.ends_at or NOON + 999 * HOUR) > self.now and self.random.random() > 0.01
            ]
        if self.waiting:
            self.apply()

    def apply(self) -> None:
        views = [replace(view, running=self.running[view.name]) for view in self.fleet]
        jobs = sorted(self.waiting.values(), key=lambda view: view.order)
        decisions = plan(Snapshot(now=self.now, appliances=views, jobs=jobs))
        starting: Counter[str] = Counter()
        for made in decisions:
            leader = self.waiting[made.job_id.split("/")[0]]
            if made.action is not Action.ASSIGN:
                if made.action is Action.BIND:
                    self.waiting[leader.id] = msgspec.structs.replace(
                        leader, bound_to=made.appliance_id
                    )
                continue
            starting[leader.id] += 1
            ends_at = self.now + leader.time_limit if leader.time_limit else None
            self.running[made.appliance_id or ""].append(
                RunningJob(
                    job_id=made.job_id,
                    gpu_uuids=made.gpu_uuids,
                    cpus=1.0,
                    memory_bytes=leader.memory_bytes,
                    ends_at=ends_at,
                )
            )
        for name, count in starting.items():
            assert count == self.waiting.pop(name).nodes, "a gang starts as a whole"
        for jobs_on in self.running.values():
            uuids = [uuid for other in jobs_on for uuid in other.gpu_uuids]
            assert len(uuids) == len(set(uuids)), "no GPU is allocated twice"


@pytest.mark.parametrize(
    "steps", [60, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
def test_no_gang_of_a_random_stream_is_stranded(steps: int) -> None:
    stream = Stream(seed=7)
    for _ in range(steps):
        if len(stream.waiting) < 12 and stream.random.random() < 0.5:
            stream.arrive()
        stream.step()
        oldest = min((view.submitted_at for view in stream.waiting.values()), default=stream.now)
        assert stream.now - oldest < 24 * HOUR, "the front of the queue moves on"
    while stream.waiting:
        assert stream.now < NOON + timedelta(days=10), "the rest starts, too"
        stream.step()


def test_a_gang_within_a_guarantee_reclaims_as_a_whole_and_above_a_maximum_is_held() -> None:
    quotas = [QuotaView(key=ALL_GPUS, guaranteed=16, maximum=24)]
    projects = [ProjectView(id="p", name="vision", quotas=quotas)]
    fleet = [
        appliance("a", running=[until("a", 9, is_preemptible=True)]),
        appliance("b", running=[until("b", 9, is_preemptible=True)]),
        appliance("c", running=[until("c", 9, is_preemptible=True)]),
        appliance("d"),
    ]
    covered, beyond = gang("covered", 2, project_id="p"), gang("beyond", 4, project_id="p")
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=[covered], projects=projects))
    assert [made.policy for made in decisions] == [Rule.RECLAIM] * 2
    assert len(decisions[0].victims) == 1, "the other member fits on d"
    assert "The guarantee of 'vision' covers it." in decisions[0].reason
    (held, *_) = plan(Snapshot(now=NOON, appliances=fleet, jobs=[beyond], projects=projects))
    assert held.action is Action.HELD
    assert "this job requests 32" in held.reason
