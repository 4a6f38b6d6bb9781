"""Jobs on a real Slurm cluster over the whole chain: portal, agent as connector, Slurm and back."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.slurm import NODE_GPUS, NODES, SlurmCluster
from tests.integration.cluster_site import ClusterSite, cluster_site
from tests.integration.test_jobs import FINAL

pytestmark = [pytest.mark.nightly, pytest.mark.needs_slurm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(
    slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterSite]:
    with cluster_site(tmp_path_factory.mktemp("site"), slurm_cluster) as site:
        assert len(site.nodes()) == len(NODES)
        yield site


def test_a_job_runs_from_the_command_line_to_the_node_and_back(site: ClusterSite) -> None:
    script = 'echo "got $VEDETTE_JOB_ID on $SLURM_JOB_PARTITION"; exit 3'
    options = ("--gpus", "2", "--cluster-option", "slurm.partition=urgent")
    result = site.run_followed(script, "--name", "asked", *options)
    assert "on urgent" in result.stdout, (result.stdout, result.stderr)
    assert result.returncode == 3
    attempt = site.attempt("asked")
    assert (attempt["reason"], attempt["exit_code"]) == ("exit_code", 3)
    assert attempt["node"]["name"] in site.nodes()
    assert len(attempt["gpu_uuids"]) == 2
    assert not any(uuid.startswith("requested") for uuid in attempt["gpu_uuids"])


def test_a_job_waits_in_the_queue_of_slurm_and_is_stopped_there(site: ClusterSite) -> None:
    busy = [site.submit("exec sleep 300", gpus=NODE_GPUS) for _ in NODES]
    for job_id in busy:
        site.portal.wait_for_state(job_id, "running")
    waiting = site.submit("echo ran", gpus=1)
    site.until_message(waiting, "Pending in Slurm: Resources")
    assert site.portal.job(waiting)["state"] == "starting"
    refused = site.submit("echo ran", cluster_options={"slurm.partition": "nowhere"})
    job = site.portal.wait_for_state(refused, *FINAL)
    assert "Slurm refuses the job: invalid partition specified: nowhere" in job["message"]
    site.stop(waiting, *busy)
    assert site.portal.log(waiting) == ""


def test_a_job_goes_on_while_connector_and_controller_are_killed(
    site: ClusterSite, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    job_id = site.submit(f"echo run >> {runs}; sleep 24; echo over")
    site.portal.wait_for_state(job_id, "running")
    # The controller stores its jobs every five seconds or later, and ends those that it lacks.
    time.sleep(10)
    site.kill_connector()
    slurm_cluster.kill("slurmctld")
    site.start_connector()
    slurm_cluster.start("slurmctld")
    assert site.portal.wait_for_state(job_id, *FINAL, seconds=90)["state"] == "succeeded"
    assert "over" in site.portal.log(job_id)
    assert runs.read_text() == "run\n"
