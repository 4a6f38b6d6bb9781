"""The order of the queue: priorities that age, caps, and preemption where the tenant allows it."""

# ruff: noqa: ANN401 - builders pass any field on

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec import structs

from jobqueue.placement.decisions import Action, Decision, in_order
from jobqueue.placement.views import PRIORITY_POINT, Caps, JobView, RunningJob, Snapshot
from tests.cast import NOON
from tests.unit.jobqueue.builders import appliance, gpu_uuid, job, plan


def decide(appliances: list[Any], *jobs: JobView, **rules: Any) -> list[Decision]:
    return plan(Snapshot(now=NOON, appliances=appliances, jobs=jobs, **rules))


def running(name: str, slots: range, **changes: Any) -> RunningJob:
    uuids = [gpu_uuid("dgx-01", slot) for slot in slots]
    return RunningJob(job_id=name, name=name, gpu_uuids=uuids, **changes)


def test_a_higher_priority_goes_first_but_a_job_that_waited_long_enough_before_it() -> None:
    urgent = job("urgent", priority=2)
    patient, recent = (
        job(name, submitted_at=NOON - 2 * PRIORITY_POINT + timedelta(seconds=seconds))
        for name, seconds in [("patient", -1), ("recent", 1)]
    )
    assert [ordered_job.id for ordered_job in in_order([recent, urgent, patient])] == [
        "patient",
        "urgent",
        "recent",
    ]


def test_a_plan_considers_jobs_in_the_order_of_the_queue() -> None:
    decisions = decide([appliance("mini", gpus=1)], job("a", gpus=1), job("b", gpus=1, priority=1))
    assert [(decision.job_id, decision.action) for decision in decisions] == [
        ("b", Action.ASSIGN),
        ("a", Action.BIND),
    ]


def test_a_cap_holds_the_jobs_of_one_user_back_and_lets_others_pass() -> None:
    fleet = replace(appliance("dgx-01"), running=[running("r", range(2), user_id="bob")])
    first, second, third, fourth = decide(
        [fleet],
        job("a", gpus=2, user_id="bob"),
        job("b", gpus=1, user_id="bob"),
        job("c", user_id="bob"),
        job("d", gpus=1, user_id="alice"),
        caps=Caps(gpus_per_user=4, gpus=5),
    )
    assert [decision.action for decision in (first, second, third, fourth)] == [
        Action.ASSIGN,
        Action.HELD,
        Action.ASSIGN,
        Action.ASSIGN,
    ]
    assert second.reason == ("The user's jobs have 4 of at most 4 GPUs, and this one requests 1.")
    [held] = decide([fleet], job("e", gpus=4, user_id="alice"), caps=Caps(gpus=5))
    assert re.search("2 of at most 5 GPUs.* 4", held.reason)


def test_a_job_displaces_the_fewest_preemptible_gpus_where_the_tenant_allows_it() -> None:
    fleet = replace(
        appliance("dgx-01"),
        running=[
            running("firm", range(2)),
            running("high", range(2, 4), is_preemptible=True, priority=9),
            running("large", range(4, 7), is_preemptible=True),
            running("small", range(7, 8), is_preemptible=True),
        ],
    )
    wants = job("train", gpus=1)
    [refused] = decide([fleet], wants)
    assert (refused.action, list(refused.victims)) == (Action.BIND, [])
    [decision] = decide([fleet], wants, allows_preemption=True)
    assert (decision.action, list(decision.victims)) == (Action.BIND, ["small"])
    assert re.search("dgx-01.*'small'", decision.reason)
    [both] = decide([fleet], structs.replace(wants, gpus=4), allows_preemption=True)
    assert sorted(both.victims) == ["large", "small"]
    for change in ({"gpus": 5}, {"is_preemptible": True}, {"priority": -1}):
        [none] = decide([fleet], structs.replace(wants, **change), allows_preemption=True)
        assert list(none.victims) == []


def test_what_stops_already_is_enough_and_goes_to_the_job_that_it_stops_for() -> None:
    stopping = running("old", range(4), is_preemptible=True, is_stopping=True)
    other = running("new", range(4, 8), is_preemptible=True)
    fleet = replace(appliance("dgx-01"), running=[stopping, other])
    first, second = decide(
        [fleet],
        job("a", gpus=4, bound_to="dgx-01"),
        job("b", gpus=4),
        allows_preemption=True,
    )
    assert (first.action, list(first.victims)) == (Action.STAY, [])
    assert list(second.victims) == []
