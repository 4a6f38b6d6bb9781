"""What a Kubernetes cluster lacks or forbids: queues, rights, versions."""

import asyncio

import pytest

from collector.checks.connections import Verdict
from collector.checks.kubernetes import check_kubernetes
from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.kubernetes.executor import KubernetesExecutor
from jobqueue.executors.kubernetes.manifests import QUEUE_LABEL, job_name
from protocol.job_spec import Mount
from tests.fixtures.kubernetes_gateway import TOKEN, manifest_rules
from tests.fixtures.kubernetes_site import kubeconfig_text, kubernetes_site
from tests.fixtures.polling import eventually
from tests.integration.kubernetes_world import RUNNING, STARTING, Session, World, world

__all__ = ["kubernetes_site", "world"]

pytestmark = [pytest.mark.needs_java, pytest.mark.nightly]


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
