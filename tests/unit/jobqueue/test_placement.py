"""Placement: snapshots in, decisions out, no database anywhere."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobqueue.executors.abilities import Need
from jobqueue.placement.decisions import Action, Decision, Rule
from jobqueue.placement.views import ApplianceView, GPUView, JobView, Snapshot
from tenants.models import ApplianceState
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, job, plan

# What only some cluster honors.
OF_CLUSTERS = {
    Need.NO_IMAGE,
    Need.SLURM_OPTIONS,
    Need.RAY_OPTIONS,
    Need.KUBERNETES_OPTIONS,
}


def decide(appliances: list[ApplianceView], *jobs: JobView) -> list[Decision]:
    snapshot = Snapshot(now=NOON, appliances=tuple(appliances), jobs=jobs)
    return plan(snapshot)


def test_a_job_goes_to_the_first_free_appliance_by_name() -> None:
    [decision] = decide([appliance("dgx-02"), appliance("dgx-01")], job("train", gpus=2))
    assert decision.action is Action.ASSIGN
    assert decision.appliance_id == "dgx-01"
    assert decision.gpu_uuids == ("GPU-dgx-01-0", "GPU-dgx-01-1")
    assert decision.policy == "first_free_else_lru"
    assert decision.reason == "dgx-01 was the first free appliance."


def test_a_busy_appliance_is_passed_over_with_the_figures() -> None:
    [decision] = decide([busy("dgx-01", free_gpus=3), appliance("dgx-02")], job("train", gpus=4))
    assert decision.appliance_id == "dgx-02"
    [rejection] = decision.rejections
    assert (rejection.code, str(rejection)) == (
        "gpus_busy",
        "dgx-01: 3 of 8 GPUs free, 4 requested",
    )


def test_a_job_that_needs_no_gpu_is_given_none() -> None:
    [decision] = decide([busy("dgx-01")], job("clean"))
    assert (decision.action, decision.gpu_uuids) == (Action.ASSIGN, ())


def test_two_jobs_of_one_plan_never_get_the_same_gpu() -> None:
    jobs = [job(f"job-{number}", gpus=3) for number in range(4)]
    decisions = decide([appliance("dgx-01"), appliance("dgx-02")], *jobs)
    given = [uuid for decision in decisions for uuid in decision.gpu_uuids]
    assert len(given) == len(set(given)) == 12
    assert [d.appliance_id for d in decisions] == ["dgx-01", "dgx-01", "dgx-02", "dgx-02"]


def test_the_cores_and_memory_that_one_job_takes_are_gone_for_the_next() -> None:
    first = job("first", cpus=40, memory_bytes=100 * GIB)
    for second, code, fact in [
        (job("second", cpus=30), "cpus_busy", "24 of 64 CPU cores free, 30 requested"),
        (
            job("second", memory_bytes=450 * GIB),
            "memory_busy",
            "412 GiB of 512 GiB of memory free, 450 GiB requested",
        ),
    ]:
        decision = decide([appliance("dgx-01")], first, second)[1]
        assert decision.action is Action.BIND
        assert decision.rejections[0].code == code
        assert str(decision.rejections[0]) == f"dgx-01: {fact}"


def test_many_fractions_of_a_core_fill_an_appliance_exactly() -> None:
    jobs = [job(f"job-{number}", cpus=0.1) for number in range(10)]
    decisions = decide([appliance("mini", cpus=1.0)], *jobs)
    assert {decision.action for decision in decisions} == {Action.ASSIGN}


def test_when_all_are_busy_a_job_is_bound_to_the_least_recently_used_appliance() -> None:
    fleet = [
        busy("dgx-01", last_used_at=NOON - timedelta(hours=1)),
        busy("dgx-02", last_used_at=NOON - timedelta(hours=3)),
        busy("dgx-03", last_used_at=NOON - timedelta(hours=2)),
    ]
    [decision] = decide(fleet, job("train", gpus=1))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-02")
    assert decision.policy is Rule.LEAST_RECENTLY_USED
    assert decision.gpu_uuids == ()
    assert "dgx-02, the least recently used" in decision.reason
    [rejection] = decision.rejections
    assert [example.appliance for example in rejection.examples] == ["dgx-01", "dgx-02", "dgx-03"]


def test_an_appliance_that_was_never_used_counts_as_the_least_recently_used() -> None:
    fleet = [busy("dgx-01", last_used_at=NOON - timedelta(days=9)), busy("dgx-02")]
    [decision] = decide(fleet, job("train", gpus=1))
    assert decision.appliance_id == "dgx-02"


def test_jobs_that_must_wait_are_spread_over_the_appliances() -> None:
    fleet = [busy("dgx-01"), busy("dgx-02")]
    decisions = decide(fleet, *(job(f"job-{number}", gpus=1) for number in range(4)))
    assert [d.appliance_id for d in decisions] == ["dgx-01", "dgx-02", "dgx-01", "dgx-02"]


def test_a_job_is_never_bound_where_it_could_not_run_at_all() -> None:
    small = appliance("aaa-small", gpus=1)
    [decision] = decide([small, busy("dgx-01")], job("train", gpus=4))
    assert decision.appliance_id == "dgx-01"
    assert [rejection.code for rejection in decision.rejections] == ["gpus_busy", "too_few_gpus"]
    assert str(decision.rejections[1]) == "aaa-small: has 1 GPU, 4 requested"


def test_a_bound_job_stays_while_everything_is_busy() -> None:
    fleet = [busy("dgx-01"), busy("dgx-02")]
    [decision] = decide(fleet, job("train", gpus=1, bound_to="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.STAY, "dgx-02")


def test_a_bound_job_starts_where_it_waits_once_there_is_room() -> None:
    fleet = [appliance("dgx-01"), busy("dgx-02", free_gpus=1)]
    [decision] = decide(fleet, job("train", gpus=1, bound_to="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.ASSIGN, "dgx-02")
    assert decision.gpu_uuids == ("GPU-dgx-02-7",)
    assert decision.reason.startswith("dgx-02, which the job waited for")


def test_a_bound_job_moves_when_another_appliance_is_free_first() -> None:
    fleet = [busy("dgx-01", free_gpus=1), busy("dgx-02")]
    [decision] = decide(fleet, job("train", gpus=1, bound_to="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.ASSIGN, "dgx-01")
    assert decision.reason.startswith("dgx-01 became free before dgx-02")


@pytest.mark.parametrize(
    "changes",
    [
        {"is_drained": True},
        {"state": ApplianceState.UNREACHABLE},
        {"state": ApplianceState.LOST},
        {"executors": ()},
    ],
)
def test_a_bound_job_is_bound_elsewhere_when_its_appliance_takes_no_more(
    changes: dict[str, Any],
) -> None:
    fleet = [busy("dgx-01"), busy("dgx-02", **changes)]
    [decision] = decide(fleet, job("train", gpus=1, bound_to="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-01")
    assert decision.reason.startswith("dgx-02 accepts no jobs")


def test_a_bound_job_sits_out_a_short_silence_of_its_appliance() -> None:
    fleet = [busy("dgx-01"), appliance("dgx-02", state=ApplianceState.STALE)]
    [decision] = decide(fleet, job("train", gpus=1, bound_to="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.STAY, "dgx-02")


def test_a_bound_job_with_nowhere_left_to_go_is_unplaced() -> None:
    [decision] = decide([appliance("dgx-01", is_drained=True)], job("train", bound_to="dgx-01"))
    assert (decision.action, decision.appliance_id) == (Action.UNPLACED, None)


def test_a_bound_job_outlives_the_removal_of_its_appliance() -> None:
    [decision] = decide([busy("dgx-01")], job("train", gpus=1, bound_to="gone"))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-01")


@pytest.mark.parametrize(
    ("changes", "code", "fact"),
    [
        ({"state": ApplianceState.ENROLLED}, "not_online", "enrolled, no heartbeat yet"),
        (
            {"state": ApplianceState.STALE},
            "stale",
            "no recent heartbeat, accepts no new jobs until it reports again",
        ),
        ({"state": ApplianceState.UNREACHABLE}, "not_online", "unreachable"),
        ({"state": ApplianceState.LOST}, "not_online", "lost"),
        ({"is_drained": True}, "drained", "drained, accepts no new jobs"),
        ({"executors": ()}, "no_executor", "has no executor"),
        ({"gpus": ()}, "too_few_gpus", "has 0 GPUs, 2 requested"),
        ({"cpus": 2.0}, "too_few_cpus", "has 2 CPU cores, 4 requested"),
        (
            {"memory_bytes": GIB},
            "too_little_memory",
            "has 1 GiB of memory, 2 GiB requested",
        ),
        (
            {"gpus": (GPUView("a", 16 * GIB), GPUView("b", 80 * GIB))},
            "gpu_memory_too_small",
            "has 1 GPU of that memory, 2 with 40 GiB requested",
        ),
        (
            {"gpus": (GPUView("a", 0), GPUView("b", 80 * GIB))},
            "gpu_memory_too_small",
            "has 1 GPU of that memory and 1 of unknown memory, 2 with 40 GiB requested",
        ),
    ],
)
def test_an_infeasible_appliance_is_rejected_with_its_reason(
    changes: dict[str, Any], code: str, fact: str
) -> None:
    asked = job("train", gpus=2, gpu_memory_bytes=40 * GIB, cpus=4, memory_bytes=2 * GIB)
    [decision] = decide([replace(appliance("dgx-01"), **changes)], asked)
    assert decision.action is Action.UNPLACED
    [rejection] = decision.rejections
    assert (rejection.code, str(rejection)) == (code, f"dgx-01: {fact}")


@pytest.mark.parametrize(
    ("executors", "needs", "fact"),
    [
        (("marathon", "metronome"), {Need.PORTS}, "metronome publishes no ports"),
        (("marathon", "chronos"), {Need.IMAGE_COMMAND}, "chronos requires a command"),
        (("marathon", "docker"), {Need.SERVICE, Need.WORKING_DIR}, "marathon runs jobs with GPUs"),
        (("docker", "metronome"), {Need.SHARED_MEMORY}, "metronome runs jobs with GPUs"),
    ],
)
def test_an_appliance_whose_executor_would_drop_a_field_is_rejected_with_the_reason(
    executors: tuple[str, ...], needs: set[Need], fact: str
) -> None:
    fleet = [appliance("mesos-1", executors=executors), appliance("z-docker")]
    asked = job("train", gpus=1, needs=frozenset(needs))
    [decision] = decide(fleet, asked)
    assert decision.appliance_id == "z-docker"
    [decision] = decide(fleet[:1], asked)
    [rejection] = decision.rejections
    assert rejection.code == "executor_limit"
    assert fact in str(rejection)


@pytest.mark.parametrize(
    ("executors", "needs"),
    [
        (("docker",), set(Need) - OF_CLUSTERS),
        (("simulated",), set(Need) - OF_CLUSTERS),
        (("marathon", "metronome"), {Need.SERVICE, Need.PORTS}),
        (("marathon", "docker"), {Need.PORTS, Need.WORKING_DIR}),
    ],
)
def test_an_executor_that_honors_the_fields_runs_the_job(
    executors: tuple[str, ...], needs: set[Need]
) -> None:
    fleet = [appliance("dgx-01", executors=executors)]
    [decision] = decide(fleet, job("train", gpus=1, needs=frozenset(needs)))
    assert decision.appliance_id == "dgx-01"


def test_a_job_gets_the_smallest_gpus_that_suffice() -> None:
    gpus = (GPUView("large", 80 * GIB), GPUView("small", 16 * GIB), GPUView("mid", 40 * GIB))
    fleet = [replace(appliance("mixed"), gpus=gpus)]
    [decision] = decide(fleet, job("train", gpus=1, gpu_memory_bytes=32 * GIB))
    assert decision.gpu_uuids == ("mid",)


def test_a_requested_appliance_is_the_only_one_considered() -> None:
    fleet = [appliance("dgx-01"), appliance("dgx-02")]
    [decision] = decide(fleet, job("train", requested="dgx-02"))
    assert (decision.appliance_id, decision.policy) == ("dgx-02", Rule.REQUESTED)
    assert decision.rejections[0].code == "not_requested"


def test_a_job_waits_on_its_requested_appliance_though_another_is_free() -> None:
    fleet = [appliance("dgx-01"), busy("dgx-02")]
    [decision] = decide(fleet, job("train", gpus=1, requested="dgx-02"))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-02")
    assert decision.policy is Rule.REQUESTED


def test_an_earlier_job_gets_the_gpu_that_a_later_one_also_wants() -> None:
    fleet = [busy("dgx-01", free_gpus=1)]
    earlier, later = (job(name, gpus=1, bound_to="dgx-01") for name in ("earlier", "later"))
    decisions = decide(fleet, earlier, later)
    assert [decision.action for decision in decisions] == [Action.ASSIGN, Action.STAY]


def test_a_job_without_a_time_limit_does_not_pass_one_that_it_could_delay() -> None:
    large = job("large", gpus=8, bound_to="dgx-01", submitted_at=NOON - timedelta(minutes=12))
    decisions = decide([busy("dgx-01", free_gpus=2)], large, job("small", gpus=1))
    assert [decision.action for decision in decisions] == [Action.STAY, Action.BIND]
    [rejection] = decisions[1].rejections
    assert rejection.code == "reserved_for_earlier_job"
    assert str(rejection) == "dgx-01: reserved for 'large', which has waited 12 min"


def test_without_appliances_a_job_is_unplaced() -> None:
    [decision] = decide([], job("train"))
    assert (decision.action, list(decision.rejections)) == (Action.UNPLACED, [])


def test_the_same_snapshot_always_gives_the_same_plan() -> None:
    fleet = [busy("dgx-01", free_gpus=3), busy("dgx-02"), appliance("dgx-03", gpus=2)]
    jobs = [job(f"job-{number}", gpus=number % 4) for number in range(12)]
    assert decide(fleet, *jobs) == decide(fleet[::-1], *jobs)
