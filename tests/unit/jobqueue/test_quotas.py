"""Quotas: projects borrow what others leave idle, up to limits, and reclaim their guarantees."""

# ruff: noqa: ANN401 - builders pass any field on

from dataclasses import replace
from typing import Any

from jobqueue.placement.decisions import Action, Rule
from jobqueue.placement.views import (
    ApplianceView,
    GPUView,
    JobView,
    ProjectView,
    QuotaView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import ALL_GPUS, QuotaKey
from jobqueue.projects.models import QuotaResource
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, gpu_uuid, job, plan

CPUS = QuotaKey(QuotaResource.CPUS)
MEMORY = QuotaKey(QuotaResource.MEMORY_BYTES)


def project(name: str, *quotas: QuotaView, **changes: Any) -> ProjectView:
    return ProjectView(id=name, name=name, quotas=quotas, **changes)


def gpus(guaranteed: int, **limits: Any) -> QuotaView:
    return QuotaView(key=ALL_GPUS, guaranteed=guaranteed, **limits)


def running(name: str, project_id: str | None, slots: range, **changes: Any) -> RunningJob:
    """A preemptible job on GPUs of `a`."""
    fields: dict[str, Any] = {
        "job_id": name,
        "name": name,
        "project_id": project_id,
        "gpu_uuids": [gpu_uuid("a", slot) for slot in slots],
        "is_preemptible": True,
        "cpus": 1.0,
        "memory_bytes": GIB,
        "assigned_at": NOON,
    }
    return RunningJob(**(fields | changes))


def decide(
    *jobs: JobView, projects: list[ProjectView], on: ApplianceView, **changes: Any
) -> dict[str, Any]:
    snapshot = Snapshot(now=NOON, appliances=[on], jobs=jobs, projects=projects, **changes)
    return {decision.job_id: decision for decision in plan(snapshot)}


def test_a_project_borrows_up_to_its_maximum_and_its_borrowing_limit() -> None:
    two = [project("vision", gpus(2, maximum=5)), project("audio", gpus(2, borrowing_limit=1))]
    wanted = [
        job("v1", project_id="vision", gpus=5),
        job("v2", project_id="vision", gpus=1),
        job("a1", project_id="audio", gpus=3),
        job("a2", project_id="audio", gpus=1),
    ]
    decisions = decide(*wanted, projects=two, on=appliance("a"))
    assert decisions["v1"].action is decisions["a1"].action is Action.ASSIGN
    assert decisions["v2"].action is decisions["a2"].action is Action.HELD
    assert decisions["v2"].reason == (
        "Project 'vision' uses 5 of its maximum of 5 GPUs, and this job requests 1."
    )
    assert decisions["a2"].reason == (
        "Project 'audio' uses 3 GPUs. It is guaranteed 2 and may borrow 1, and this job requests 1."
    )


def test_a_job_counts_towards_the_projects_above_its_own() -> None:
    tree = [project("group", gpus(0, maximum=4)), project("vision", parent_id="group")]
    on = appliance("a", running=[running("r", "group", range(3))])
    decisions = decide(job("v", project_id="vision", gpus=2), projects=tree, on=on)
    assert "Project 'group' uses 3 of its maximum of 4 GPUs" in decisions["v"].reason


def test_nobody_borrows_what_others_keep_back() -> None:
    two = [project("vision", gpus(4, lending_limit=1)), project("audio")]
    jobs = [job("a1", project_id="audio", gpus=5), job("a2", gpus=1), job("v", gpus=4)]
    jobs[2] = job("v", project_id="vision", gpus=3)
    decisions = decide(*jobs, projects=two, on=appliance("a"))
    assert decisions["a1"].action is decisions["v"].action is Action.ASSIGN
    assert decisions["a2"].reason == (
        "Of 3 GPUs left idle, 'vision' keeps back 3, and this job requests 1."
    )


def test_quotas_count_gpus_of_a_model_and_leave_the_others_open() -> None:
    models = ["NVIDIA H100"] * 4 + ["NVIDIA A100"] * 4
    mixed = [
        GPUView(gpu_uuid("a", slot), 80 * GIB, model=model) for slot, model in enumerate(models)
    ]
    h100 = QuotaView(key=QuotaKey(QuotaResource.GPUS, "h100"), maximum=2)
    wanted = [
        job("v1", project_id="vision", gpus=2, gpu_models=frozenset({"NVIDIA H100"})),
        job("v2", project_id="vision", gpus=1, gpu_models=frozenset({"NVIDIA H100"})),
        job("v3", project_id="vision", gpus=2),
    ]
    on = replace(appliance("a"), gpus=mixed)
    decisions = decide(*wanted, projects=[project("vision", h100)], on=on)
    assert decisions["v2"].action is Action.HELD
    assert "2 of its maximum of 2 h100 GPUs" in decisions["v2"].reason
    assert list(decisions["v3"].gpu_uuids) == [gpu_uuid("a", 4), gpu_uuid("a", 5)]


def test_quotas_count_cores_and_memory_too() -> None:
    limits = [QuotaView(key=CPUS, maximum=4), QuotaView(key=MEMORY, maximum=8 * GIB)]
    wanted = [
        job("cores", project_id="vision", cpus=5),
        job("memory", project_id="vision", memory_bytes=9 * GIB),
    ]
    decisions = decide(*wanted, projects=[project("vision", *limits)], on=appliance("a"))
    assert "uses 0 of its maximum of 4 CPU cores, and this job requests 5" in (
        decisions["cores"].reason
    )
    assert "uses 0 B of memory of its maximum of 8 GiB" in decisions["memory"].reason


def test_a_guarantee_is_reclaimed_from_the_highest_use_for_each_share() -> None:
    three = [
        project("vision", gpus(2)),
        project("audio", shares=4),
        project("text", shares=1),
    ]
    on = appliance(
        "a",
        running=[
            running("audio-1", "audio", range(4)),
            running("text-old", "text", range(4, 6)),
            running("text-low", "text", range(6, 7), priority=-1),
            running("text-new", "text", range(7, 8)),
        ],
    )
    wanted = [job("v1", project_id="vision", gpus=1), job("v2", project_id="vision", gpus=1)]
    decisions = decide(*wanted, projects=three, on=on)
    assert [list(decisions[name].victims) for name in ("v1", "v2")] == [["text-low"], ["text-new"]]
    assert decisions["v1"].policy is Rule.RECLAIM
    assert "where 'text-low' must stop for it" in decisions["v1"].reason
    assert "The guarantee of 'vision' covers it" in decisions["v1"].reason


def test_no_project_loses_its_own_guarantee_in_a_reclaim() -> None:
    two = [project("vision", gpus(4)), project("audio", gpus(4))]
    on = appliance(
        "a", running=[running("a1", "audio", range(4)), running("a2", "audio", range(4, 8))]
    )
    decisions = decide(job("v", project_id="vision", gpus=4), projects=two, on=on)
    assert list(decisions["v"].victims) == ["a2"]
    larger = [project("vision", gpus(2)), project("audio", gpus(6))]
    decisions = decide(job("v", project_id="vision", gpus=2), projects=larger, on=on)
    assert decisions["v"].victims == []


def test_jobs_that_are_not_preemptible_are_not_reclaimed_and_who_borrows_is_named() -> None:
    two = [project("vision", gpus(4)), project("audio")]
    on = appliance("a", running=[running("a1", "audio", range(8), is_preemptible=False)])
    decisions = decide(job("v", project_id="vision", gpus=1), projects=two, on=on)
    assert decisions["v"].action is Action.BIND
    assert decisions["v"].victims == []
    assert "'audio' borrows 8 GPUs" in decisions["v"].reason


def test_a_job_that_would_borrow_reclaims_nothing() -> None:
    two = [project("vision", gpus(2)), project("audio")]
    on = appliance("a", running=[running("a1", "audio", range(8))])
    decisions = decide(job("v", project_id="vision", gpus=3), projects=two, on=on)
    assert decisions["v"].victims == []


def test_what_is_reclaimed_is_not_given_to_a_job_that_borrows() -> None:
    two = [project("vision", gpus(2)), project("audio")]
    on = appliance("a", running=[running("a1", "audio", range(8), is_stopping=True)])
    later = [job("v", project_id="vision", gpus=2), job("x", project_id="audio", gpus=7)]
    decisions = decide(*later, projects=two, on=on)
    assert (decisions["v"].policy, decisions["v"].appliance_id) == (Rule.RECLAIM, "a")
    assert decisions["x"].action is Action.BIND


def test_an_ordinary_preemption_leaves_other_projects_their_guarantees() -> None:
    two = [project("vision"), project("audio", gpus(8))]
    on = appliance("a", running=[running("a1", "audio", range(8))])
    wanted = job("v", project_id="vision", gpus=1, priority=9)
    decisions = decide(wanted, projects=two, on=on, allows_preemption=True)
    assert decisions["v"].victims == []
    decisions = decide(wanted, projects=[two[0], project("audio")], on=on, allows_preemption=True)
    assert decisions["v"].victims == ["a1"]
