"""Jobs on a cluster of Kubernetes over the whole chain: portal, agent as connector, and back."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobqueue.executors.kubernetes.manifests import job_name
from tests.deployment import BOB, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.kubernetes_cluster import Cluster
from tests.fixtures.kubernetes_site import KubernetesSite, opened_site
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll

pytestmark = [pytest.mark.nightly, pytest.mark.needs_java, pytest.mark.timeout(300)]
IMAGE = "hello:1"


class Chain:
    """A portal with a connector, which can be killed and started again."""

    def __init__(self, deployment: Deployment, site: KubernetesSite, stack: ExitStack) -> None:
        self.deployment, self.site, self._stack = deployment, site, stack
        self.home = deployment.data_dir / "agent"
        enroll(deployment, self.home, "k8s-a")
        self.start()
        self.portal = Portal(deployment)

    def start(self) -> None:
        kubeconfig = self.site.settings.kubeconfig
        toml = f'{QUICK}executor = "kubernetes"\n[kubernetes]\nkubeconfig = "{kubeconfig}"\n'
        self._agent = self._stack.enter_context(
            agent_of(self.deployment, home=self.home, toml=toml)
        )

    def kill(self) -> None:
        self._agent.send_signal(signal.SIGKILL)
        self._agent.wait()

    def submit(self, script: str, **changes: object) -> str:
        command = ["/bin/sh", "-c", script]
        fields = {"image": IMAGE, "command": command, "memory_bytes": 64 * 2**20, **changes}
        return self.portal.submit(**fields)

    def until_message(self, job_id: str, text: str) -> None:
        def says_so() -> bool:
            return text in self.portal.job(job_id)["message"]

        eventually(says_so, within_seconds=40, what=f"the job to say {text!r}")

    def nodes(self) -> dict[str, dict[str, Any]]:
        items = self.portal.get("/appliances").json()["items"]
        return {item["name"]: item for item in items if item["connector"] is not None}

    def job_of(self, job_id: str) -> dict[str, Any] | None:
        [attempt] = self.portal.job(job_id)["attempts"]
        return self.site.cluster.get("jobs", job_name(attempt["id"]))


@pytest.fixture(scope="module")
def chain(
    kubernetes_server: tuple[Cluster, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    with (
        opened_site(kubernetes_server[0], tmp_path_factory.mktemp("site")) as site,
        serving(deployment),
        ExitStack() as stack,
    ):
        chain = Chain(deployment, site, stack)
        eventually(lambda: len(chain.nodes()) == 2, within_seconds=60, what="the nodes")
        yield chain


def test_a_job_runs_from_the_command_line_to_the_node_and_back(chain: Chain) -> None:
    environ = {
        "VEDETTE_URL": chain.deployment.url,
        "VEDETTE_TOKEN": api_token(chain.deployment, BOB),
    }
    script = 'echo "got $VEDETTE_JOB_ID"; sleep 2; echo over; exit 3'
    result = chain.deployment.vedette(
        *("job", "run", "--follow", "--name", "asked", "--image", IMAGE, "--memory", "64MiB"),
        *("--gpus", "2", "--", "/bin/sh", "-c", script),
        environ=environ,
    )
    [item] = chain.portal.get("/jobs", search="asked").json()["items"]
    assert f"got {item['id']}\nover" in result.stdout, (result.stdout, result.stderr)
    assert result.returncode == 3
    job = chain.portal.job(item["id"])
    [attempt] = job["attempts"]
    assert (attempt["reason"], attempt["exit_code"]) == ("exit_code", 3)
    assert attempt["node"]["name"] == "gpu-1.k8s-a"
    node = chain.nodes()["gpu-1.k8s-a"]
    [ran] = chain.portal.get("/jobs", appliance_id=node["id"]).json()["items"]
    assert ran["id"] == job["id"]


def test_nodes_are_appliances_with_what_is_allocated(chain: Chain) -> None:
    job_id = chain.submit("exec sleep 300", gpus=1, cpus=2)
    chain.portal.wait_for_state(job_id, "running")
    connector = chain.portal.wait_for_appliance("kubernetes")

    def is_allocated() -> bool:
        items = chain.portal.get(f"/appliances/{connector['id']}/nodes").json()["items"]
        nodes = {item["name"]: item for item in items}
        gpu = nodes["gpu-1.k8s-a"]["node"]
        return set(nodes) == {"cpu-1.k8s-a", "gpu-1.k8s-a"} and gpu["allocated_gpus"] == 1

    eventually(is_allocated, within_seconds=60, what="the node's GPU to be allocated")
    assert chain.portal.post(f"/jobs/{job_id}/stop").ok
    assert chain.portal.wait_for_state(job_id, *FINAL)["reason"] == "stopped_by_user"


def test_a_stop_leaves_nothing_on_the_cluster(chain: Chain) -> None:
    job_id = chain.submit("echo begun; exec sleep 300")
    chain.portal.wait_for_state(job_id, "running")
    eventually(lambda: "begun" in chain.portal.log(job_id), what="the log")
    assert chain.job_of(job_id) is not None
    assert chain.portal.post(f"/jobs/{job_id}/stop").ok
    job = chain.portal.wait_for_state(job_id, *FINAL)
    assert (job["state"], job["reason"]) == ("stopped", "stopped_by_user")
    assert "begun" in chain.portal.log(job_id)
    eventually(lambda: chain.job_of(job_id) is None, what="the Job to be deleted")


def test_why_a_job_does_not_start_is_on_it(chain: Chain) -> None:
    missing = chain.submit("true", image="missing:1")
    waiting = chain.submit("true", gpus=2, cluster_options={"kubernetes.node_selector": "pool=b"})
    chain.until_message(waiting, "Waits in Kubernetes: 0/2 nodes are available")
    assert chain.portal.job(waiting)["state"] == "starting"
    job = chain.portal.wait_for_state(missing, *FINAL)
    assert job["reason"] == "image_not_found"
    assert "missing:1: not found" in job["message"]
    assert chain.portal.post(f"/jobs/{waiting}/stop").ok
    assert chain.portal.wait_for_state(waiting, *FINAL)["reason"] == "stopped_by_user"


def test_a_job_goes_on_while_the_connector_is_killed(chain: Chain, tmp_path: Path) -> None:
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    job_id = chain.submit(
        f"echo run >> {runs}; echo begun; until [ -e {gate} ]; do sleep 0.1; done; echo over"
    )
    chain.portal.wait_for_state(job_id, "running")
    eventually(lambda: "begun" in chain.portal.log(job_id), what="the log")
    chain.kill()
    gate.touch()
    chain.start()
    assert chain.portal.wait_for_state(job_id, *FINAL, seconds=90)["state"] == "succeeded"
    eventually(lambda: "over" in chain.portal.log(job_id), what="the end of the log")
    assert chain.portal.log(job_id).count("begun") == 1
    assert runs.read_text() == "run\n"
