"""Policies by name, shares of GPUs in thousandths, and what telemetry sees."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from jobqueue.placement.decisions import Action
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.views import JobShape, JobView, RunningJob, Snapshot
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, gpu_uuid, job, plan


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("first_free_else_lru", "dgx-01"),
        ("best_fit", "dgx-03"),
        ("spread", "dgx-02"),
    ],
)
def test_a_policy_chooses_by_what_is_free(policy: str, chosen: str) -> None:
    fleet = [busy("dgx-01", free_gpus=4), appliance("dgx-02"), busy("dgx-03", free_gpus=2)]
    [decision] = plan(Snapshot(now=NOON, appliances=fleet, jobs=[job("a", gpus=1)], policy=policy))
    assert (decision.appliance_id, decision.policy) == (chosen, policy)


def test_least_fragmentation_leaves_whole_what_usual_jobs_need() -> None:
    usual = [(JobShape(gpus=4, cpus=1), 9.0), (JobShape(gpus=1, cpus=1), 1.0)]
    fleet = [busy("dgx-01", free_gpus=4), busy("dgx-02", free_gpus=5)]
    [decision] = plan(
        Snapshot(
            now=NOON,
            appliances=fleet,
            jobs=[job("a", gpus=1)],
            policy="least_fragmentation",
            workload=usual,
        )
    )
    # dgx-01 would lose four GPUs for most jobs, dgx-02 none.
    assert decision.appliance_id == "dgx-02"


def test_least_fragmentation_keeps_the_cores_that_free_gpus_need() -> None:
    usual = [(JobShape(gpus=1, cpus=8), 1.0)]
    fleet = [appliance("dgx-01", cpus=64), appliance("dgx-02", cpus=96)]
    [decision] = plan(
        Snapshot(
            now=NOON,
            appliances=fleet,
            jobs=[job("prepare", cpus=16)],
            policy="least_fragmentation",
            workload=usual,
        )
    )
    assert decision.appliance_id == "dgx-02"


def test_least_fragmentation_keeps_what_only_a_quarter_of_the_usual_jobs_can_use() -> None:
    usual = [(JobShape(gpus=1, cpus=12), 3.0), (JobShape(gpus=1, cpus=3), 1.0)]
    shared = RunningJob(job_id="r", gpu_uuids=[gpu_uuid("dgx", 0)], gpu_milli=500, cpus=16)
    fleet = [
        appliance("dgx", gpus=5, cpus=64, running=[shared]),
        appliance("edge", gpus=1, cpus=8),
    ]
    [decision] = plan(
        Snapshot(
            now=NOON,
            appliances=fleet,
            jobs=[job("a", gpus=1, gpu_milli=470, cpus=8)],
            policy="least_fragmentation",
            workload=usual,
        )
    )
    # On dgx, cores for one of four large jobs are lost, but small ones can still use its GPUs.
    assert decision.appliance_id == "dgx"


def test_shares_of_a_gpu_fill_one_before_the_next_and_never_more_than_it_has() -> None:
    jobs = [job(f"job-{number}", gpus=1, gpu_milli=400) for number in range(5)]
    decisions = plan(Snapshot(now=NOON, appliances=[appliance("mini", gpus=2)], jobs=jobs))
    assert [decision.gpu_uuids for decision in decisions[:4]] == [
        (gpu_uuid("mini", slot),) for slot in (0, 0, 1, 1)
    ]
    assert decisions[4].action is Action.BIND
    assert str(decisions[4].rejections[0]) == "mini: 0 of 2 GPUs free, 0.4 of 1 requested"


def test_a_gpu_that_a_program_outside_of_jobs_uses_is_not_free() -> None:
    view = appliance("dgx-01", gpus=2)
    first, second = view.gpus
    fleet = [replace(view, gpus=(replace(first, is_used_outside=True), second))]
    first_decision, second_decision = plan(
        Snapshot(now=NOON, appliances=fleet, jobs=[job("a", gpus=1), job("b", gpus=1)])
    )
    assert first_decision.gpu_uuids == (second.uuid,)
    assert second_decision.action is Action.BIND
    assert second_decision.rejections[0].code == "gpus_used_outside"
    assert (
        str(second_decision.rejections[0])
        == "dgx-01: 0 of 2 GPUs free, 1 used outside of jobs, 1 requested"
    )


def test_models_and_labels_are_required_of_an_appliance() -> None:
    plain = appliance("dgx-01", gpus=1)
    h100 = replace(plain, gpus=(replace(plain.gpus[0], model="H100"),))
    named = replace(h100, id="dgx-02", name="dgx-02", labels=frozenset({("rack", "7")}))
    asked = job("a", gpus=1, gpu_models=frozenset({"H100"}), labels=frozenset({("rack", "7")}))
    [decision] = plan(Snapshot(now=NOON, appliances=[plain, h100, named], jobs=[asked]))
    assert decision.appliance_id == "dgx-02"
    assert str(decision.rejections[0]) == "dgx-01: lacks the label rack=7 (and 1 more)"
    [other] = plan(
        Snapshot(now=NOON, appliances=[plain], jobs=[structs.replace(asked, labels=frozenset())])
    )
    assert str(other.rejections[0]) == "dgx-01: has 0 GPUs of that kind, 1 H100 requested"


@st.composite
def jobs_of_any_shape(draw: st.DrawFn) -> list[JobView]:
    """A few jobs, some of them for a share of a GPU."""
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        gpus = draw(st.integers(0, 4))
        milli = draw(st.sampled_from([100, 470, 810, 1000])) if gpus == 1 else 1000
        jobs.append(
            job(
                f"job-{number:02}",
                gpus=gpus,
                gpu_milli=milli,
                cpus=draw(st.sampled_from([0.5, 8, 40])),
                memory_bytes=draw(st.sampled_from([1, 200])) * GIB,
            )
        )
    return jobs


@given(jobs=jobs_of_any_shape(), policy=st.sampled_from(POLICY_NAMES))
def test_no_policy_gives_more_than_there_is(jobs: list[JobView], policy: str) -> None:
    shared = RunningJob(job_id="r", gpu_uuids=[gpu_uuid("b", 0)], gpu_milli=300, cpus=4)
    fleet = [appliance("a", gpus=2), appliance("b", gpus=4, running=[shared])]
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=jobs, policy=policy))
    by_id = {waiting_job.id: waiting_job for waiting_job in jobs}
    started = [decision for decision in decisions if decision.action is Action.ASSIGN]
    used = {gpu_uuid("b", 0): 300}
    for decision in started:
        assert len(decision.gpu_uuids) == by_id[decision.job_id].gpus
        for uuid in decision.gpu_uuids:
            used[uuid] = used.get(uuid, 0) + by_id[decision.job_id].gpu_milli
    assert max(used.values()) <= 1000
    for view in fleet:
        here = [by_id[decision.job_id] for decision in started if decision.appliance_id == view.id]
        assert (
            sum(started_job.cpus for started_job in here) + sum(r.cpus for r in view.running)
            <= view.cpus
        )
        assert sum(started_job.memory_bytes for started_job in here) <= view.memory_bytes
