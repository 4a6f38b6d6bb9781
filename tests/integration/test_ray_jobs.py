"""Jobs on a real Ray head over the whole chain: portal, agent as connector, Ray and back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import GPUS, RayCluster
from tests.integration.cluster_site import ClusterSite, cluster_site
from tests.integration.test_jobs import FINAL

pytestmark = [pytest.mark.nightly, pytest.mark.needs_ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(ray_head: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    with cluster_site(tmp_path_factory.mktemp("site"), ray_head) as site:
        yield site


def test_a_job_runs_from_the_command_line_to_the_node_and_back(site: ClusterSite) -> None:
    script = 'echo "got $VEDETTE_JOB_ID, $FROM on GPU $CUDA_VISIBLE_DEVICES"; exit 3'
    options = ("--gpus", "1", "--cluster-option", 'ray.runtime_env={"env_vars": {"FROM": "Ray"}}')
    result = site.run_followed(script, "--name", "asked", *options)
    attempt = site.attempt("asked")
    assert ", Ray on GPU " in result.stdout, (result.stdout, result.stderr)
    assert result.returncode == 3
    assert (attempt["reason"], attempt["exit_code"]) == ("exit_code", 3)
    assert attempt["node"]["name"] in site.nodes()


def test_a_job_with_all_gpus_is_shown_and_others_wait_in_the_queue_of_ray(
    site: ClusterSite,
) -> None:
    busy = site.submit("exec sleep 300", gpus=GPUS, name="busy")
    site.portal.wait_for_state(busy, "running")
    waiting = site.submit("echo ran", gpus=1)
    site.until_message(waiting, "waiting for resources")
    assert site.portal.job(waiting)["state"] == "starting"

    def shown() -> bool:
        uuids = site.attempt("busy")["gpu_uuids"]
        return len(uuids) == GPUS and not any(uuid.startswith("requested") for uuid in uuids)

    eventually(shown, what="the GPUs of the job")
    assert site.attempt("busy")["node"]["name"] in site.nodes()
    site.stop(waiting, busy)
    assert site.portal.log(waiting) == ""


def test_what_ray_refuses_ends_with_its_own_words(site: ClusterSite) -> None:
    refused = site.submit("echo ran", cluster_options={"ray.runtime_env": '{"pip": 5}'})
    job = site.portal.wait_for_state(refused, *FINAL)
    assert job["reason"] == "invalid_job"
    assert "Ray says: " in job["message"]
    assert "runtime_env['pip'] must be of type str or List[str]" in job["message"]


def test_a_job_goes_on_while_the_connector_is_killed(site: ClusterSite, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    job_id = site.submit(f"echo run >> {runs}; sleep 6; echo over")
    site.portal.wait_for_state(job_id, "running")
    site.kill_connector()
    site.start_connector()
    assert site.portal.wait_for_state(job_id, *FINAL, seconds=90)["state"] == "succeeded"
    assert "over" in site.portal.log(job_id)
    assert runs.read_text() == "run\n"
