"""The executor of Kubernetes on fabric8's mock server, with controllers and kubelets of the tests.

At its end, each test has sent nothing that the published OpenAPI of Kubernetes lacks.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest

from jobqueue.executors.base import ExecutorError, ExecutorUnavailableError, NoExecError
from jobqueue.executors.kubernetes import states
from jobqueue.executors.kubernetes.manifests import job_name
from protocol.attempts import ObservedState
from protocol.clusters import NodeState
from protocol.exec import TerminalSize
from tests.fixtures.kubernetes_site import kubernetes_site
from tests.fixtures.polling import eventually
from tests.integration.kubernetes_world import RUNNING, STARTING, Session, World, world

__all__ = ["kubernetes_site", "world"]

pytestmark = [pytest.mark.needs_java, pytest.mark.nightly]


def test_the_node_and_the_end_of_an_attempt_are_observed(world: World) -> None:
    spec = world.start("echo to > /dev/null; exit 3", gpu_uuids=["requested-0", "requested-1"])
    ended = world.ended(spec)
    assert (ended.reason, ended.exit_code, ended.node) == ("exit_code", 3, "gpu-1")
    assert ended.started_at_ns is not None


def test_secrets_reach_the_job_and_are_deleted_with_it(world: World) -> None:
    spec = world.start("echo $KEY; sleep 60", secrets={"KEY": "s3cr3t"}, env={"KEY": "public"})
    world.until(spec, RUNNING)
    assert eventually(lambda: world.texts(spec)) == ["s3cr3t"]
    assert b"s3cr3t" not in msgspec.json.encode(world.job(spec))
    (secret,) = world.cluster.items("secrets")
    assert secret["metadata"]["ownerReferences"][0]["name"] == job_name(spec.attempt_id)
    world.executor.stop(spec.attempt_id, grace_seconds=0)
    world.ended(spec)
    eventually(lambda: not world.cluster.items("secrets"))


@pytest.mark.parametrize("step", ["POST /api/v1/namespaces/vedette/secrets", "PATCH /apis/batch"])
def test_a_job_whose_secret_was_interrupted_is_made_anew_and_runs_once(
    world: World, step: str, tmp_path: Path
) -> None:
    marks = tmp_path / "runs"
    spec = world.spec(f"echo $KEY >> {marks}", secrets={"KEY": "s3cr3t"})
    world.gateway.lost = step
    with pytest.raises(ExecutorError):
        world.executor.start(spec)
    world.open()
    if world.seen(spec) is None:  # as reconciliation does
        world.executor.start(spec)
    assert world.ended(spec).state is ObservedState.SUCCEEDED
    assert marks.read_text() == "s3cr3t\n"
    eventually(lambda: len(world.cluster.items("secrets")) <= 1)


def test_a_job_that_was_interrupted_and_is_not_wanted_any_more_leaves_nothing(
    world: World,
) -> None:
    world.gateway.lost = "POST /api/v1/namespaces/vedette/secrets"
    with pytest.raises(ExecutorError):
        world.executor.start(world.spec(secrets={"KEY": "s3cr3t"}))
    assert world.open().observe() == []
    eventually(lambda: not world.cluster.items("jobs") and not world.cluster.items("secrets"))


def test_a_staged_job_that_has_changed_is_not_deleted(world: World) -> None:
    spec = world.start("sleep 60", secrets={"KEY": "s3cr3t"})
    job = world.job(spec)
    assert job is not None
    old = {**job, "metadata": {**job["metadata"], "resourceVersion": "1"}}  # type: ignore[dict-item]
    world.executor._delete_staged(old)  # noqa: SLF001 - with what it had read before
    assert world.until(spec, RUNNING)


def test_a_submission_whose_answer_was_lost_is_adopted(world: World, tmp_path: Path) -> None:
    marks = tmp_path / "runs"
    spec = world.spec(f"echo run >> {marks}")
    world.gateway.lost = "POST /apis/batch/v1/namespaces/vedette/jobs"
    with pytest.raises(ExecutorUnavailableError):
        world.executor.start(spec)
    world.executor.start(spec)
    assert world.ended(spec).state is ObservedState.SUCCEEDED
    assert marks.read_text() == "run\n"


def test_an_attempt_that_no_node_takes_waits_with_the_schedulers_words(world: World) -> None:
    spec = world.start(gpu_uuids=[f"requested-{number}" for number in range(8)])
    seen = world.message(spec, "Insufficient")
    assert seen.state is STARTING
    assert seen.message == (
        "Waits in Kubernetes: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    )
    world.executor.stop(spec.attempt_id, grace_seconds=0)
    assert world.ended(spec).state is ObservedState.STOPPED
    eventually(lambda: world.job(spec) is None and not world.cluster.items("pods"))


def test_an_image_that_does_not_exist_ends_the_attempt_and_its_job(world: World) -> None:
    spec = world.start(image="missing:1")
    ended = world.ended(spec)
    assert ended.reason == "image_not_found"
    assert "failed to resolve reference: missing:1: not found" in ended.message
    eventually(lambda: world.seen(spec) and world.job(spec) is None)


def test_an_image_that_can_not_be_pulled_is_tried_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.start(image="slow.example.com/big:1")
    assert world.message(spec, "i/o timeout").state is STARTING
    monkeypatch.setattr(states, "PULL_SECONDS", 0.1)
    ended = world.ended(spec)
    assert ended.reason == "image_pull_failed"
    assert "image_pull_secret" in ended.message


def test_what_an_admission_rule_refuses_ends_with_its_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.refusal = 'pods "x" is forbidden: no PriorityClass with name high was found'
    spec = world.start(cluster_options={"kubernetes.priority_class": "high"})
    monkeypatch.setattr(states, "CREATE_SECONDS", 0.1)
    world.message(spec, "no PriorityClass")
    ended = world.ended(spec)
    assert ended.reason == "invalid_job"
    assert "no PriorityClass with name high was found" in ended.message


def test_an_attempt_waits_while_the_quota_of_the_namespace_is_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.refusal = 'pods "x" is forbidden: exceeded quota: team-a, used: limits.cpu=8'
    spec = world.start()
    monkeypatch.setattr(states, "CREATE_SECONDS", 0.0)
    assert world.message(spec, "exceeded quota: team-a").state is STARTING
    world.cluster.refusal = ""
    assert world.ended(spec).state is ObservedState.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "reason", "part"),
    [
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True",
                             "reason": "PreemptionByScheduler",
                             "message": "preempting to accommodate a higher priority pod"}]},
            "preempted_by_cluster",
            "a higher priority pod",
        ),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True",
                             "reason": "EvictionByEvictionAPI",
                             "message": "Eviction API: evicting"}]},
            "preempted_by_cluster",
            "Eviction API",
        ),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True",
                             "reason": "DeletionByTaintManager",
                             "message": "Taint manager: deleting due to NoExecute taint"}]},
            "node_failed",
            "NoExecute taint",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "node_failed",
            "low on resource",
        ),
        (
            {"containerStatuses": [{"name": "job", "state": {"terminated": {
                "exitCode": 137, "reason": "OOMKilled"}}}]},
            "out_of_memory",
            "Request more memory",
        ),
        (
            {"reason": "DeadlineExceeded", "message": "Pod was active longer than its deadline"},
            "time_limit",
            "deadline",
        ),
    ],
)  # fmt: skip
def test_what_ended_a_pod_is_the_reason(
    world: World, status: dict[str, object], reason: str, part: str
) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    world.cluster.end_pod(world.pod(spec), status)
    ended = world.ended(spec)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, reason)
    assert part in ended.message


def test_a_second_pod_of_a_job_ends_the_attempt_and_is_deleted(world: World) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    job = world.job(spec)
    assert job is not None
    world.cluster.pause()
    world.cluster.delete("pods", world.pod(spec))
    world.cluster.make_pod(job)
    ended = world.ended(spec)
    assert ended.reason == "preempted_by_cluster"
    world.cluster.is_pausing = False
    eventually(lambda: not world.cluster.items("pods") and world.job(spec) is None)
    assert world.seen(spec) == ended


def test_a_pod_that_was_deleted_on_the_cluster_is_stopped_outside(world: World) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    name = world.pod(spec)
    world.cluster.containers[name].end(0)
    world.cluster.delete("pods", name)
    ended = world.ended(spec)
    assert (ended.state, ended.reason) == (ObservedState.STOPPED, "stopped_outside")


def test_output_is_followed_and_goes_on_after_a_restart_without_a_line_twice(
    world: World,
) -> None:
    spec = world.start("for i in $(seq 400); do echo line $i; sleep 0.01; done")
    world.until(spec, RUNNING)
    eventually(lambda: len(world.texts(spec)) > 20)
    world.open()
    world.until(spec, RUNNING)
    eventually(lambda: len(world.texts(spec)) > 100)
    world.open()
    world.ended(spec)
    eventually(lambda: len(world.texts(spec)) >= 400)
    assert world.texts(spec) == [f"line {number}" for number in range(1, 401)]


def test_the_last_words_of_a_stopped_attempt_are_copied(world: World) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo hello; while true; do sleep 0.1; done"
    spec = world.start(script, stop_grace_seconds=5)
    world.until(spec, RUNNING)
    eventually(lambda: world.texts(spec) == ["hello"])
    world.executor.stop(spec.attempt_id, grace_seconds=0)
    assert world.ended(spec).state is ObservedState.STOPPED
    assert world.texts(spec) == ["hello", "bye"]


def test_a_command_runs_in_the_pod_with_its_streams_and_exit_code(world: World) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    session = Session("sh", "-c", "cat; echo no >&2; exit 5", typed=b"typed")
    assert asyncio.run(world.executor.execute(spec.attempt_id, session)) == 5
    assert sorted(session.written) == [(False, b"typed"), (True, b"no\n")]
    sized = Session("sh", "-c", "head -n 1", size=TerminalSize(columns=120, rows=40))
    assert asyncio.run(world.executor.execute(spec.attempt_id, sized)) == 0
    assert sized.written == [(False, b"120x40\n")]
    missing = Session("no-such-program")
    with pytest.raises(ExecutorError, match=r"can't be started.*no-such-program"):
        asyncio.run(world.executor.execute(spec.attempt_id, missing))


def test_a_command_without_the_right_or_a_pod_is_refused_in_words(world: World) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    world.gateway.rights -= {("namespace", "", "pods/exec", "create")}
    with pytest.raises(ExecutorError, match="pods/exec is forbidden"):
        asyncio.run(world.executor.execute(spec.attempt_id, Session("true")))
    with pytest.raises(NoExecError):
        asyncio.run(world.executor.execute("unknown", Session("true")))


def test_the_nodes_are_read_with_their_gpus_and_what_all_pods_request(world: World) -> None:
    world.cluster.add_node("old-1", unschedulable=True)
    world.cluster.add_node(
        "tainted", taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}]
    )
    world.cluster.patch(
        "nodes", "cpu-1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown",
                                                      "message": "Kubelet stopped posting"}]}}
    )  # fmt: skip
    spec = world.start("sleep 60", gpu_uuids=["requested-0"], cpus=2)
    world.until(spec, RUNNING)
    report = world.executor.cluster()
    nodes = {node.name: node for node in report.nodes}
    assert (report.problem, report.version) == ("", "v1.31.4")
    assert (report.runs_images, report.needs_image) == (True, True)
    gpu = nodes["gpu-1"]
    assert (gpu.cpus, gpu.gpus, gpu.memory_bytes) == (16, 2, 16 * 2**30)
    assert (gpu.gpu_model, gpu.gpu_memory_bytes) == ("NVIDIA-H100-80GB-HBM3", 81559 * 2**20)
    assert (gpu.allocated_cpus, gpu.allocated_gpus) == (2, 1)
    assert nodes["old-1"].state is NodeState.DRAINED
    assert nodes["tainted"].reason == "Taint team=b:NoSchedule"
    assert (nodes["cpu-1"].state, nodes["cpu-1"].reason) == (
        NodeState.DOWN,
        "Kubelet stopped posting",
    )


def test_lists_are_read_page_by_page(world: World) -> None:
    specs = [world.start("sleep 60") for _ in range(5)]
    world.gateway.page_items = 2
    assert {seen.attempt_id for seen in world.executor.observe()} == {
        spec.attempt_id for spec in specs
    }
    assert len(world.executor.read_cluster().nodes) == 2
