"""The executor of Kubernetes on fabric8's mock server, with controllers and kubelets of the tests.

At its end, each test has sent nothing that the published OpenAPI of Kubernetes lacks.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from collector.checks.connections import Verdict
from collector.checks.kubernetes import check_kubernetes
from core.ids import new_id
from jobqueue.executors.base import ExecutorError, ExecutorUnavailableError, NoExecError
from jobqueue.executors.kubernetes import states
from jobqueue.executors.kubernetes.executor import KubernetesExecutor
from jobqueue.executors.kubernetes.manifests import QUEUE_LABEL, job_name
from jobqueue.executors.recorded import ExecutorSite
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import NodeState
from protocol.exec import TerminalSize
from protocol.job_spec import Mount
from protocol.logs import log_lines
from tests.fixtures.kubernetes_gateway import TOKEN, manifest_rules
from tests.fixtures.kubernetes_site import KubernetesSite, kubeconfig_text, kubernetes_site
from tests.fixtures.polling import eventually

__all__ = ["kubernetes_site"]

pytestmark = [pytest.mark.needs_java, pytest.mark.nightly]
STARTING, RUNNING = ObservedState.STARTING, ObservedState.RUNNING


class World:
    """A cluster with one connector."""

    def __init__(self, site: KubernetesSite, folder: Path) -> None:
        self.site, self.cluster, self.gateway = site, site.cluster, site.gateway
        self.owner, self.folder = new_id(), folder
        self.opened: list[KubernetesExecutor] = []
        self.executor = self.open()

    def open(self, **changes: object) -> KubernetesExecutor:
        """Open the executor as the next agent process would."""
        for executor in self.opened:
            executor.close()
        own = ExecutorSite(owner=self.owner, state_dir=self.folder, stop_grace_seconds=1)
        self.executor = KubernetesExecutor(self.site.with_settings(**changes), own)
        self.opened.append(self.executor)
        return self.executor

    def spec(self, script: str = "echo hello", **changes: object) -> AttemptSpec:
        fields: dict[str, object] = {
            "attempt_id": new_id(),
            "job_id": new_id(),
            "name": "hello",
            "image": "hello:1",
            "command": ["/bin/sh", "-c", script],
            "memory_bytes": 2**26,
        }
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    def start(self, script: str = "echo hello", **changes: object) -> AttemptSpec:
        spec = self.spec(script, **changes)
        self.executor.start(spec)
        return spec

    def seen(self, spec: AttemptSpec) -> AttemptObservation | None:
        observed = self.executor.observe()
        return next((seen for seen in observed if seen.attempt_id == spec.attempt_id), None)

    def until(self, spec: AttemptSpec, *wanted: ObservedState) -> AttemptObservation:
        def probe() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and seen.state in wanted else None

        seen = eventually(probe, within_seconds=30)
        assert seen is not None
        return seen

    def ended(self, spec: AttemptSpec) -> AttemptObservation:
        return self.until(spec, *(state for state in ObservedState if state.is_final))

    def message(self, spec: AttemptSpec, part: str) -> AttemptObservation:
        def probe() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and part in seen.message else None

        seen = eventually(probe, within_seconds=30)
        assert seen is not None
        return seen

    def output(self, spec: AttemptSpec) -> bytes:
        return self.executor.read_log(spec.attempt_id, offset=0, limit=10_000_000)

    def texts(self, spec: AttemptSpec) -> list[str]:
        return [line.text for line in log_lines(self.output(spec))]

    def job(self, spec: AttemptSpec) -> dict[str, object] | None:
        return self.cluster.get("jobs", job_name(spec.attempt_id))

    def pod(self, spec: AttemptSpec) -> str:
        pod = eventually(lambda: self.cluster.pod_of(job_name(spec.attempt_id)))
        assert pod is not None
        return str(pod["metadata"]["name"])


@pytest.fixture
def world(kubernetes_site: KubernetesSite, tmp_path: Path) -> Iterator[World]:
    opened = World(kubernetes_site, tmp_path / "attempts")
    yield opened
    for executor in opened.opened:
        executor.close()


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


class Session:
    """A user's command."""

    term = "xterm"

    def __init__(self, *command: str, typed: bytes = b"", size: TerminalSize | None = None) -> None:
        self.command: Sequence[str] = command
        self.size, self._typed = size, typed
        self.written: list[tuple[bool, bytes]] = []

    async def inputs(self) -> AsyncIterator[bytes | TerminalSize]:
        yield self._typed

    async def output(self, data: bytes, *, is_error: bool) -> None:
        self.written.append((is_error, data))


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


def test_queues_of_kueue_hold_jobs_back_and_an_unknown_one_is_refused(world: World) -> None:
    world.gateway.has_kueue = True
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue",
             "metadata": {"name": "team-a"}, "spec": {"clusterQueue": "all"}}  # fmt: skip
    world.cluster.create("localqueues", queue)
    assert [queue_seen.name for queue_seen in world.executor.read_cluster().queues] == ["team-a"]
    wrong = world.start(cluster_options={"kubernetes.queue": "team-z"})
    assert "has no queue 'team-z' of Kueue. Its queues: team-a." in world.ended(wrong).message
    secrets = {"KEY": "s3cr3t"}
    spec = world.start("sleep 60", cluster_options={"kubernetes.queue": "team-a"}, secrets=secrets)
    assert "queue team-a of Kueue" in world.message(spec, "Waits").message
    job = world.job(spec)
    assert job is not None
    assert job["metadata"]["labels"][QUEUE_LABEL] == "team-a"  # type: ignore[index]
    uid = job["metadata"]["uid"]  # type: ignore[index]
    workload = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
                "metadata": {"name": "w1", "ownerReferences": [{"uid": uid, "kind": "Job",
                             "apiVersion": "batch/v1", "name": "x"}]},
                "status": {"conditions": [{"type": "QuotaReserved", "status": "False",
                           "message": "insufficient unused quota for GPUs"}]}}  # fmt: skip
    world.cluster.create("workloads", workload)
    assert world.message(spec, "insufficient unused quota").state is STARTING
    world.cluster.patch("jobs", job_name(spec.attempt_id), {"spec": {"suspend": False}})
    world.until(spec, RUNNING)
    # Kueue takes its place for another one: it would run the job again later.
    evicted = {
        "type": "Evicted",
        "status": "True",
        "message": "Preempted to accommodate another",
    }
    world.cluster.patch("workloads", "w1", {"status": {"conditions": [evicted]}})
    world.cluster.patch("jobs", job_name(spec.attempt_id), {"spec": {"suspend": True}})
    ended = world.ended(spec)
    assert ended.reason == "preempted_by_cluster"
    eventually(lambda: world.seen(spec) and world.job(spec) is None)


def test_a_suspended_job_ends_as_preempted_and_is_deleted(world: World) -> None:
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    world.cluster.patch("jobs", job_name(spec.attempt_id), {"spec": {"suspend": True}})
    assert world.ended(spec).reason == "preempted_by_cluster"
    eventually(lambda: world.seen(spec) and world.job(spec) is None)


def test_a_queue_on_a_cluster_without_kueue_is_refused(world: World) -> None:
    spec = world.start(cluster_options={"kubernetes.queue": "team-a"})
    assert "which this cluster does not have" in world.ended(spec).message


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cluster_options": {"kubernetes.node_selector": "pool"}}, "expected labels"),
        ({"cluster_options": {"kubernetes.service_account": "admin"}}, "jobs may not use it"),
        ({"mounts": [Mount(source="/data/a", target="/a")]}, "get no paths of their nodes"),
        ({"image": ""}, "set an image"),
        ({"is_service": True}, "not services"),
    ],
)
def test_what_can_not_be_honored_ends_with_what_to_do(
    world: World, changes: dict[str, object], part: str
) -> None:
    spec = world.spec(**changes)  # type: ignore[arg-type] # the names of its fields
    world.executor.start(spec)
    ended = world.ended(spec)
    assert ended.reason == "invalid_job"
    assert part in ended.message


def test_a_missing_right_is_quoted_on_the_job_and_in_the_report(world: World) -> None:
    world.gateway.rights -= {("namespace", "batch", "jobs", "create")}
    ended = world.ended(world.start())
    assert ended.reason == "invalid_job"
    assert 'cannot create resource "jobs" in API group "batch"' in ended.message
    report = world.executor.cluster()
    assert "create jobs.batch in namespace vedette" in report.problem
    assert len(report.nodes) == 2


def test_a_cluster_that_is_old_away_or_refuses_is_a_problem_in_its_words(world: World) -> None:
    world.gateway.version = "v1.24.17"
    assert "1.27 or newer" in world.executor.read_cluster().problem
    world.gateway.fault = 500
    with pytest.raises(ExecutorUnavailableError, match="etcdserver: request timed out"):
        world.executor.observe()
    world.gateway.fault = 0
    kubeconfig = world.folder.parent / "other"
    kubeconfig.write_text(kubeconfig_text(world.site.url, token="expired"), encoding="utf-8")
    with pytest.raises(ExecutorUnavailableError, match="refuses the credentials"):
        world.open(kubeconfig=kubeconfig).observe()
    kubeconfig.write_text(kubeconfig_text("http://127.0.0.1:9", token=TOKEN), encoding="utf-8")
    executor = world.open(kubeconfig=kubeconfig)
    assert "does not answer" in executor.cluster().problem
    kubeconfig.write_text("clusters: [", encoding="utf-8")
    assert "can't be reached with" in world.open(kubeconfig=kubeconfig).cluster().problem


def test_what_others_request_is_unknown_without_the_right_to_all_pods(world: World) -> None:
    world.gateway.rights -= {("cluster", "", "pods", "list")}
    report = world.executor.read_cluster()
    assert (report.problem, len(report.nodes)) == ("", 2)


def test_attempts_run_without_a_metrics_server_and_without_events(world: World) -> None:
    world.gateway.has_metrics = False
    world.gateway.rights -= {("namespace", "", "events", "list")}
    spec = world.start("sleep 60")
    world.until(spec, RUNNING)
    assert world.executor.usage(spec.attempt_id) is None


def test_the_manifest_grants_exactly_what_the_executor_uses(world: World) -> None:
    world.gateway.has_kueue = True
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue",
             "metadata": {"name": "team-a"}, "spec": {}}  # fmt: skip
    world.cluster.create("localqueues", queue)
    queued = world.start(cluster_options={"kubernetes.queue": "team-a"})
    spec = world.start("sleep 60", secrets={"KEY": "s3cr3t"})
    world.until(spec, RUNNING)
    world.executor.start(spec)
    KubernetesExecutor.start(world.open(), spec)  # it has the job already, and looks
    world.until(spec, RUNNING)
    world.message(queued, "Kueue")
    world.executor.usage(spec.attempt_id)
    eventually(lambda: world.output(spec) == b"")
    asyncio.run(world.executor.execute(spec.attempt_id, Session("true")))
    world.executor.cluster()
    # A Job that was deleted without its pod.
    world.cluster.pause()
    world.cluster.delete("jobs", job_name(spec.attempt_id))
    world.executor.observe()
    world.executor.stop(spec.attempt_id, grace_seconds=0)
    assert world.gateway.used == set().union(*manifest_rules())


def test_the_check_says_what_the_cluster_is_and_which_rights_are_missing(world: World) -> None:
    def results() -> list[tuple[str, Verdict, str]]:
        checks = check_kubernetes(world.site.settings)
        return [(check.name, check.verdict, check.message) for check in checks]

    (answer, rights) = results()
    assert answer[1:] == (
        Verdict.OK,
        "answers, version v1.31.4, with no Kueue; jobs run in namespace vedette",
    )
    assert rights[1] is Verdict.OK
    world.gateway.rights -= {
        ("namespace", "", "events", "list"),
        ("namespace", "batch", "jobs", "create"),
    }
    assert [check[1:] for check in results()[1:]] == [
        (Verdict.FAIL, "missing: create jobs.batch in namespace vedette (for jobs)"),
        (Verdict.WARNING, "missing: list events in namespace vedette (for why jobs wait)"),
    ]
    world.gateway.version = "v1.24.17"
    assert [check[1] for check in results()] == [Verdict.FAIL]
    world.gateway.fault = 503
    assert "etcdserver" in results()[0][2]
