"""Jobs on a real Slurm cluster over the whole chain: portal, agent as connector, Slurm and back."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import BOB, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import NODE_GPUS, NODES, SlurmCluster, slurm_cluster
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll

__all__ = ["slurm_cluster"]

pytestmark = [pytest.mark.nightly, pytest.mark.needs_slurm, pytest.mark.timeout(300)]


class Site:
    """A portal with a connector, which can be killed and started again."""

    def __init__(self, deployment: Deployment, cluster: SlurmCluster, stack: ExitStack) -> None:
        self.deployment, self.cluster, self._stack = deployment, cluster, stack
        self.home = deployment.data_dir / "agent"
        enroll(deployment, self.home, "slurm-a")
        self.start()
        self.portal = Portal(deployment)

    def start(self) -> None:
        folders = f'bin_dir = "{self.cluster.bin_dir}"\nwork_dir = "{self.cluster.work_dir}"\n'
        toml = f'{QUICK}executor = "slurm"\n[slurm]\n{folders}'
        self._agent = self._stack.enter_context(
            agent_of(self.deployment, home=self.home, toml=toml)
        )

    def kill(self) -> None:
        self._agent.send_signal(signal.SIGKILL)
        self._agent.wait()

    def submit(self, script: str, **changes: object) -> str:
        command = ["/bin/sh", "-c", script]
        fields = {"image": "", "command": command, "memory_bytes": 64 * 2**20, **changes}
        return self.portal.submit(**fields)

    def until_message(self, job_id: str, text: str) -> None:
        def says_so() -> bool:
            return text in self.portal.job(job_id)["message"]

        eventually(says_so, within_seconds=40, what=f"the job to say {text!r}")

    def nodes(self) -> dict[str, dict[str, Any]]:
        items = self.portal.get("/appliances").json()["items"]
        return {item["name"]: item for item in items if item["connector"] is not None}


@pytest.fixture(scope="module")
def site(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    with serving(deployment), ExitStack() as stack:
        site = Site(deployment, slurm_cluster, stack)
        eventually(lambda: len(site.nodes()) == len(NODES), within_seconds=60, what="the nodes")
        yield site


def test_a_job_runs_from_the_command_line_to_the_node_and_back(site: Site) -> None:
    environ = {
        "VEDETTE_URL": site.deployment.url,
        "VEDETTE_TOKEN": api_token(site.deployment, BOB),
    }
    script = 'echo "got $VEDETTE_JOB_ID on $SLURM_JOB_PARTITION"; exit 3'
    result = site.deployment.vedette(
        *("job", "run", "--follow", "--name", "asked", "--memory", "64MiB", "--gpus", "2"),
        *("--cluster-option", "slurm.partition=urgent", "--", "/bin/sh", "-c", script),
        environ=environ,
    )
    assert "on urgent" in result.stdout, (result.stdout, result.stderr)
    assert result.returncode == 3
    [item] = site.portal.get("/jobs", search="asked").json()["items"]
    [attempt] = site.portal.job(item["id"])["attempts"]
    assert (attempt["reason"], attempt["exit_code"]) == ("exit_code", 3)
    assert attempt["node"]["name"] in site.nodes()
    assert len(attempt["gpu_uuids"]) == 2
    assert not any(uuid.startswith("requested") for uuid in attempt["gpu_uuids"])


def test_a_job_waits_in_the_queue_of_slurm_and_is_stopped_there(site: Site) -> None:
    busy = [site.submit("exec sleep 300", gpus=NODE_GPUS) for _ in NODES]
    for job_id in busy:
        site.portal.wait_for_state(job_id, "running")
    waiting = site.submit("echo ran", gpus=1)
    site.until_message(waiting, "Pending in Slurm: Resources")
    assert site.portal.job(waiting)["state"] == "starting"
    refused = site.submit("echo ran", cluster_options={"slurm.partition": "nowhere"})
    job = site.portal.wait_for_state(refused, *FINAL)
    assert "Slurm refuses the job: invalid partition specified: nowhere" in job["message"]
    for job_id in (waiting, *busy):
        assert site.portal.post(f"/jobs/{job_id}/stop").ok
    for job_id in (waiting, *busy):
        assert site.portal.wait_for_state(job_id, *FINAL)["reason"] == "stopped_by_user"
    assert site.portal.log(waiting) == ""


def test_a_job_goes_on_while_connector_and_controller_are_killed(
    site: Site, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    job_id = site.submit(f"echo run >> {runs}; sleep 14; echo over")
    site.portal.wait_for_state(job_id, "running")
    # The controller stores its jobs every five seconds, and ends those that it does not know.
    time.sleep(6)
    site.kill()
    site.cluster.kill("slurmctld")
    site.start()
    site.cluster.start("slurmctld")
    assert site.portal.wait_for_state(job_id, *FINAL, seconds=90)["state"] == "succeeded"
    assert "over" in site.portal.log(job_id)
    assert runs.read_text() == "run\n"
