"""Placement on connectors of clusters: snapshots in, decisions out."""

# ruff: noqa: ANN401 - builders pass any field on

import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.executors.abilities import Need
from jobqueue.placement.decisions import Action, Decision, Rule
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.views import (
    ApplianceView,
    Caps,
    JobView,
    ProjectView,
    QuotaView,
    ReservationView,
    RunningJob,
    Snapshot,
)
from jobqueue.projects.guarantees import QuotaKey
from jobqueue.projects.models import QuotaResource
from protocol.clusters import ClusterQueue, NodeState, requested_gpus
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, job, plan
from tests.unit.jobqueue.cluster_builders import connector, full, node

UNKNOWN_MEMORY = (
    "no node has GPUs of that kind, whose memory the cluster does not report, 1 with 1 GiB "
    "requested"
)
MINUTE = timedelta(minutes=1)


def decide(fleet: list[ApplianceView], *jobs: JobView, **rules: Any) -> list[Decision]:
    return plan(Snapshot(now=NOON, appliances=fleet, jobs=jobs, **rules))


def waiting(name: str, *, gpus: int = 0, **changes: Any) -> RunningJob:
    """A job in the cluster's queue."""
    return RunningJob(job_id=name, gpu_uuids=requested_gpus(gpus), assigned_at=NOON, **changes)


def test_a_job_goes_to_the_connector_of_a_cluster_with_room_which_chooses_the_gpus() -> None:
    [decision] = decide([busy("dgx"), connector("slurm-a", node("n1"))], job("train", gpus=2))
    assert (decision.action, decision.appliance_id) == (Action.ASSIGN, "slurm-a")
    assert decision.gpu_uuids == ("requested-0", "requested-1")
    assert decision.is_on_cluster
    assert not decision.is_queued
    assert decision.reason == "slurm-a was the first free appliance."


def test_without_room_anywhere_the_job_waits_in_the_queue_of_the_cluster() -> None:
    fleet = [connector("slurm-a", full("n1"))]
    [decision] = decide(fleet, job("train", gpus=2))
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, True)
    assert decision.gpu_uuids == ("requested-0", "requested-1")
    assert decision.policy == Rule.LEAST_RECENTLY_USED
    assert decision.reason == "No appliance is free. slurm-a queues the job."
    [rejection] = decision.rejections
    assert (rejection.code, str(rejection)) == (
        "cluster_busy",
        "slurm-a: no node has room, 0 of Vedette's jobs wait in its queue",
    )


def test_a_full_cluster_and_busy_appliances_share_the_waiting_jobs() -> None:
    jobs = [job(f"job-{number}", gpus=8 if number % 2 else 2) for number in range(4)]
    fleet = [busy("dgx"), connector("slurm-a", full("n1", gpus=8))]
    decisions = decide(fleet, *jobs)
    assert [(made.action, made.appliance_id) for made in decisions] == [
        (Action.BIND, "dgx"),
        (Action.ASSIGN, "slurm-a"),
        (Action.BIND, "dgx"),
        (Action.ASSIGN, "slurm-a"),
    ]


def test_a_requested_cluster_queues_the_job() -> None:
    fleet = [appliance("dgx"), connector("slurm-a", full("n1"))]
    [decision] = decide(fleet, job("train", gpus=2, requested="slurm-a"))
    assert decision.reason == "slurm-a was requested and is busy. It queues the job."
    assert (decision.action, decision.policy) == (Action.ASSIGN, Rule.REQUESTED)


def test_no_more_than_so_many_jobs_wait_in_the_queue_of_a_cluster() -> None:
    held = waiting("early", gpus=4)
    fleet = [connector("slurm-a", full("n1"), running=[held], max_waiting=3)]
    decisions = decide(fleet, *(job(f"job-{number}", gpus=1) for number in range(4)))
    actions = [decision.action for decision in decisions]
    assert actions == [Action.ASSIGN, Action.ASSIGN, Action.BIND, Action.BIND]
    assert "3 of Vedette's jobs wait in its queue" in str(decisions[-1].rejections[0])
    # Once the queue is shorter, the bound job goes there.
    fleet = [connector("slurm-a", full("n1"), running=[held], max_waiting=3)]
    [decision] = decide(fleet, job("job-3", gpus=1, bound_to="slurm-a"))
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, True)
    fleet = [connector("slurm-a", full("n1"), running=[held], max_waiting=1)]
    [decision] = decide(fleet, job("job-3", gpus=1, bound_to="slurm-a"))
    assert decision.action is Action.STAY


def test_a_plan_places_no_more_than_the_nodes_have_room_for() -> None:
    jobs = [job(f"job-{number}", gpus=3) for number in range(3)]
    decisions = decide([connector("slurm-a", node("n1"), node("n2"))], *jobs)
    assert [decision.is_queued for decision in decisions] == [False, False, True]


@pytest.mark.parametrize(
    ("running", "is_queued"),
    [
        (waiting("early", gpus=4), True),
        (waiting("early", gpus=4, started_at=NOON - timedelta(seconds=5), node="n1"), True),
        # By now it is in the report, which says that the node is idle.
        (waiting("early", gpus=4, started_at=NOON - 5 * MINUTE, node="n1"), False),
    ],
)
def test_what_the_report_does_not_have_yet_is_taken_from_the_nodes(
    running: RunningJob, *, is_queued: bool
) -> None:
    [decision] = decide([connector("slurm-a", node("n1"), running=[running])], job("a", gpus=1))
    assert decision.is_queued is is_queued


@pytest.mark.parametrize(
    ("cluster", "wanted", "code", "fact"),
    [
        (
            connector("slurm-a", node("n1"), node("n2", gpus=2)),
            job("a", gpus=8),
            "no_node_fits",
            "the largest node has 4 GPUs, 8 requested",
        ),
        (
            connector("slurm-a", node("n1"), node("n2", gpus=8, gpu_model="A100")),
            job("a", gpus=8, gpu_models=frozenset({"H100"})),
            "no_node_fits",
            "the largest node of that kind has 4 GPUs, 8 H100 requested",
        ),
        (
            connector("slurm-a", node("n1", gpu_memory_bytes=0)),
            job("a", gpus=1, gpu_memory_bytes=GIB),
            "no_node_fits",
            UNKNOWN_MEMORY,
        ),
        (
            connector("slurm-a", node("n1"), node("big", gpus=0, cpus=256)),
            job("a", gpus=1, cpus=128),
            "no_node_fits",
            "the largest node with such GPUs has 64 CPU cores, 128 requested",
        ),
        (
            connector("slurm-a", node("n1")),
            job("a", memory_bytes=1024 * GIB),
            "no_node_fits",
            "the largest node has 512 GiB of memory, 1 TiB requested",
        ),
        (
            connector("slurm-a", node("n1", state=NodeState.DOWN), node("n2", gpus=0)),
            job("a", gpus=1),
            "nodes_down",
            "the nodes that are large enough are down",
        ),
        (connector("slurm-a"), job("a"), "nodes_down", "has reported no nodes"),
        (
            connector("slurm-a", node("n1"), problem="slurmctld: Unable to contact"),
            job("a"),
            "cluster_unavailable",
            "takes no jobs: slurmctld: Unable to contact",
        ),
        (
            connector("slurm-a", node("n1"), runs_images=False),
            job("a"),
            "cluster_images",
            "runs no containers; leave the image empty for the environment of its nodes",
        ),
        (
            connector("slurm-a", node("n1"), needs_image=True),
            job("a", needs=frozenset({Need.NO_IMAGE})),
            "cluster_images",
            "runs containers only; set an image",
        ),
    ],
)
def test_a_cluster_that_can_not_run_a_job_says_why(
    cluster: ApplianceView, wanted: JobView, code: str, fact: str
) -> None:
    [decision] = decide([cluster], wanted)
    assert decision.action is Action.UNPLACED
    [rejection] = decision.rejections
    assert (rejection.code, str(rejection)) == (code, f"slurm-a: {fact}")


def in_partition(*names: str, hours: float = 0, **fields: Any) -> JobView:
    needs = frozenset({Need.SLURM_OPTIONS, Need.NO_IMAGE})
    limit = timedelta(hours=hours) if hours else None
    return job("a", partitions=frozenset(names), needs=needs, time_limit=limit, **fields)


QUEUES = [
    ClusterQueue(name="cpu", is_default=True),
    ClusterQueue(name="gpu", time_limit_seconds=4 * 3600),
    ClusterQueue(name="long", time_limit_seconds=48 * 3600),
    ClusterQueue(name="old", is_open=False),
]
PARTS = [
    node("n1", queues=["cpu", "old"], gpus=0),
    full("n2", queues=["gpu", "unlisted"]),
    node("n3", queues=["long"], gpus=2),
]


@pytest.mark.parametrize(
    ("wanted", "is_queued"),
    [
        (in_partition("gpu", gpus=1), True),
        (in_partition("unlisted", gpus=1), True),
        (in_partition("gpu", "long", gpus=1), False),
        (in_partition("gpu", "long", gpus=1, hours=9), False),
        (in_partition("gpu", "long", gpus=4, hours=4), True),
        (in_partition("cpu", "old"), False),
        (in_partition(), False),
        # The report may be incomplete: Slurm has the last word.
        (in_partition("nowhere", gpus=1), False),
        (in_partition("gpu", "nowhere", gpus=1), False),
    ],
)
def test_only_nodes_of_the_partitions_of_a_job_count(wanted: JobView, *, is_queued: bool) -> None:
    [decision] = decide([connector("slurm-a", *PARTS, queues=QUEUES)], wanted)
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, is_queued)


@pytest.mark.parametrize(
    ("wanted", "code", "fact"),
    [
        (
            in_partition("long", gpus=4),
            "no_node_fits",
            "the largest node of its partition has 2 GPUs, 4 requested",
        ),
        (
            in_partition("gpu", "long", gpus=4, hours=9),
            "no_node_fits",
            "the largest node of its partition has 2 GPUs, 4 requested",
        ),
        (
            in_partition(gpus=1),
            "no_node_fits",
            "no node of its partition has GPUs of that kind, 1 requested",
        ),
        (
            in_partition("gpu", gpus=1, hours=9),
            "partition_refuses",
            "its partition gpu allows at most 4h, 9h requested",
        ),
        (in_partition("old"), "partition_refuses", "its partition old is closed"),
        (
            in_partition("old", "gpu", hours=5),
            "partition_refuses",
            "its partition gpu allows at most 4h, 5h requested; its partition old is closed",
        ),
    ],
)
def test_a_partition_that_never_runs_a_job_says_why(wanted: JobView, code: str, fact: str) -> None:
    [decision] = decide([connector("slurm-a", *PARTS, queues=QUEUES)], wanted)
    assert decision.action is Action.UNPLACED
    [rejection] = decision.rejections
    assert (rejection.code, str(rejection)) == (code, f"slurm-a: {fact}")


def test_without_a_default_partition_all_nodes_count() -> None:
    fleet = [connector("slurm-a", *PARTS, queues=QUEUES[1:])]
    [decision] = decide(fleet, in_partition(gpus=2))
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, False)
    # Queues of Kueue have no nodes.
    fleet = [connector("k8s", node("n1"), queues=[ClusterQueue(name="a", is_default=True)])]
    [decision] = decide(fleet, job("a", gpus=2))
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, False)


def test_what_is_placed_is_taken_from_nodes_of_its_partition() -> None:
    nodes = [node("n1", queues=["a"], gpus=2), node("n2", queues=["b"])]
    queues = [ClusterQueue(name=name, is_default=name == "a") for name in "ab"]
    early = waiting("early", gpus=2, partitions=frozenset({"b"}))
    fleet = [connector("slurm-a", *nodes, queues=queues, running=[early])]
    wanted = [
        replace_name(in_partition(name, gpus=2), f"job-{number}")
        for number, name in enumerate("bba")
    ]
    assert [decision.is_queued for decision in decide(fleet, *wanted)] == [False, True, False]


def replace_name(view: JobView, name: str) -> JobView:
    return msgspec.structs.replace(view, id=name, name=name)


def test_a_drained_node_may_come_back_so_the_job_waits_in_the_queue() -> None:
    cluster = connector("slurm-a", node("n1", state=NodeState.DRAINED), node("n2", gpus=0))
    [decision] = decide([cluster], job("a", gpus=1))
    assert (decision.action, decision.is_queued) == (Action.ASSIGN, True)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_places_on_clusters_and_appliances(policy: str) -> None:
    fleet = [appliance("dgx"), connector("slurm-a", node("n1"), node("n2"))]
    jobs = [job(f"job-{number}", gpus=2) for number in range(9)]
    decisions = decide(fleet, *jobs, policy=policy)
    assert sum(decision.is_queued or decision.action is Action.BIND for decision in decisions) == 1
    places = [decision.appliance_id for decision in decisions[:8]]
    assert (places.count("dgx"), places.count("slurm-a")) == (4, 4)


def test_best_fit_and_spread_compare_an_appliance_with_the_emptiest_node() -> None:
    fleet = [appliance("dgx", gpus=8), connector("slurm-a", full("n1"), node("n2"))]
    [fullest] = decide(fleet, job("a", gpus=1), policy="best_fit")
    [emptiest] = decide(fleet, job("a", gpus=1), policy="spread")
    assert (fullest.appliance_id, emptiest.appliance_id) == ("slurm-a", "dgx")


def test_least_fragmentation_uses_a_cluster_once_no_appliance_is_free() -> None:
    fleet = [busy("dgx", free_gpus=1), connector("slurm-a", node("n1"))]
    jobs = [job("a", gpus=1), job("b", gpus=1)]
    decisions = decide(fleet, *jobs, policy="least_fragmentation")
    assert [decision.appliance_id for decision in decisions] == ["dgx", "slurm-a"]


def test_nobody_is_preempted_on_a_cluster() -> None:
    victim = waiting("low", gpus=4, is_preemptible=True, started_at=NOON - 9 * MINUTE, node="n1")
    fleet = [connector("slurm-a", full("n1"), running=[victim])]
    [decision] = decide(fleet, job("high", gpus=4, priority=10), allows_preemption=True)
    assert (decision.action, decision.is_queued, decision.victims) == (Action.ASSIGN, True, ())


def test_waiting_jobs_of_a_cluster_count_towards_caps() -> None:
    held = waiting("early", gpus=3, user_id="alice")
    fleet = [connector("slurm-a", full("n1"), running=[held])]
    wanted = job("late", gpus=1, user_id="alice")
    [decision] = decide(fleet, wanted, caps=Caps(gpus_per_user=3))
    assert decision.action is Action.HELD


@pytest.mark.parametrize("model", ["", "h100"])
def test_waiting_jobs_of_a_cluster_count_towards_quotas_of_their_model(model: str) -> None:
    quota = QuotaView(key=QuotaKey(QuotaResource.GPUS, model), maximum=3)
    projects = [ProjectView(id="vision", name="vision", quotas=[quota])]
    held = waiting("early", gpus=2, project_id="vision")
    fleet = [connector("slurm-a", node("n1"), node("n2", gpu_model="A100", gpus=1), running=[held])]
    fields: dict[str, Any] = {"project_id": "vision", "gpu_models": frozenset({"H100"})}
    decisions = decide(
        fleet, job("a", gpus=1, **fields), job("b", gpus=1, **fields), projects=projects
    )
    assert [decision.action for decision in decisions] == [Action.ASSIGN, Action.HELD]


def test_a_guarantee_takes_nothing_back_on_a_cluster() -> None:
    quota = QuotaView(key=QuotaKey(QuotaResource.GPUS), guaranteed=4)
    projects = [
        ProjectView(id="vision", name="vision", quotas=[quota]),
        ProjectView(id="text", name="text"),
    ]
    borrower = waiting(
        "b", gpus=4, project_id="text", is_preemptible=True, started_at=NOON - 9 * MINUTE, node="n1"
    )
    fleet = [connector("slurm-a", full("n1"), running=[borrower])]
    [decision] = decide(fleet, job("a", gpus=4, project_id="vision"), projects=projects)
    assert (decision.is_queued, decision.victims) == (True, ())


def test_a_gang_goes_to_appliances_only() -> None:
    members = ["a", "b"]
    gang = job("a", gpus=2, nodes=2, members=members, needs=frozenset({Need.MEMBERS}))
    clusters = [connector("slurm-a", node("n1"), node("n2"))]
    decisions = decide(clusters, gang)
    assert {decision.action for decision in decisions} == {Action.UNPLACED}
    decisions = decide([*clusters, appliance("dgx")], gang)
    assert {decision.appliance_id for decision in decisions} == {"dgx"}


def test_reserved_times_keep_jobs_off_a_cluster() -> None:
    period = (NOON - MINUTE, NOON + 60 * MINUTE)
    reservation = ReservationView(
        name="upgrade",
        project="",
        project_ids=frozenset(),
        appliance_ids=["slurm-a"],
        gpus=None,
        periods=[period],
    )
    fleet = [connector("slurm-a", node("n1"))]
    [decision] = decide(fleet, job("a"), reservations=[reservation])
    assert not (decision.action is Action.ASSIGN and not decision.is_queued)
    partly = replace(reservation, project="vision", project_ids=frozenset({"vision"}), gpus=2)
    decisions = decide(
        fleet, job("a", gpus=2), job("b", gpus=2, project_id="vision"), reservations=[partly]
    )
    assert [decision.is_queued for decision in decisions] == [False, False]


def test_a_job_in_the_queue_of_a_cluster_has_no_expected_start() -> None:
    fleet = [connector("slurm-a", full("n1"))]
    snapshot = Snapshot(now=NOON, appliances=fleet, jobs=[job("a", gpus=1)])
    explanation = explain_jobs(snapshot, {"a"})["a"]
    assert explanation.expected_start_at is None
    assert "slurm-a queues the job" in explanation.decision.reason


def test_a_job_that_the_queue_of_a_cluster_has_no_place_for_starts_when_others_end() -> None:
    limit = 10 * MINUTE
    whole: dict[str, Any] = {"cpus": 64.0, "memory_bytes": 512 * GIB, "ends_at": NOON + limit}
    first = waiting("first", gpus=4, started_at=NOON - 5 * MINUTE, node="n1", **whole)
    second = waiting("second", gpus=2, ends_at=NOON + 30 * MINUTE)
    fleet = [connector("slurm-a", full("n1"), running=[first, second], max_waiting=1)]
    snapshot = Snapshot(now=NOON, appliances=fleet, jobs=[job("a", gpus=2), job("b", gpus=2)])
    explanations = explain_jobs(snapshot, {"a", "b"})
    # After ten minutes the second has its node, and the first of the others has room beside it.
    assert explanations["a"].expected_start_at == NOON + limit
    assert explanations["a"].needs == "room on a node of slurm-a, or in its queue"
    # The other one follows when the second has run for as long as it may.
    assert explanations["b"].expected_start_at == NOON + 40 * MINUTE


@given(st.integers(0, 2**32), st.sampled_from(POLICY_NAMES))
def test_a_random_stream_never_exceeds_the_nodes_or_the_queue(seed: int, policy: str) -> None:
    rng = random.Random(seed)  # noqa: S311 - they need only differ
    nodes = [
        node(f"n{number}", gpus=rng.randint(0, 8), cpus=float(rng.randint(1, 64)))
        for number in range(rng.randint(1, 6))
    ]
    limit = rng.randint(0, 5)
    fleet = [connector("slurm-a", *nodes, max_waiting=limit)]
    fleet += [appliance(f"dgx-{number}", gpus=4, cpus=16.0) for number in range(rng.randint(0, 2))]
    jobs = [
        job(f"job-{number:03}", gpus=rng.randint(0, 8), cpus=float(rng.randint(1, 32)))
        for number in range(40)
    ]
    decisions = decide(fleet, *jobs, policy=policy)
    wanted = {wanted_job.id: wanted_job for wanted_job in jobs}
    assigned = [made for made in decisions if made.appliance_id == "slurm-a"]
    assigned = [made for made in assigned if made.action is Action.ASSIGN]
    queued = [made for made in assigned if made.is_queued]
    running = [wanted[made.job_id] for made in assigned if not made.is_queued]
    assert sum(wanted_job.gpus for wanted_job in running) <= sum(each.gpus for each in nodes)
    assert sum(wanted_job.cpus for wanted_job in running) <= sum(each.cpus for each in nodes)
    assert len(queued) <= limit
    for made in assigned:
        assert list(made.gpu_uuids) == requested_gpus(wanted[made.job_id].gpus)
        assert any(
            each.gpus >= wanted[made.job_id].gpus and each.cpus >= wanted[made.job_id].cpus
            for each in nodes
        )


def test_a_cluster_of_a_thousand_nodes_takes_little_time() -> None:
    nodes = [node(f"n{number}", gpus=8) for number in range(1000)]
    jobs = [job(f"job-{number:04}", gpus=number % 8 + 1) for number in range(500)]
    began = time.perf_counter()
    decisions = decide([connector("slurm-a", *nodes)], *jobs)
    seconds = time.perf_counter() - began
    assert all(decision.action is Action.ASSIGN for decision in decisions)
    assert seconds < 500 * 0.005
