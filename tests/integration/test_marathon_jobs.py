"""The whole way: a job over REST, an agent with Marathon and Metronome, a container, its end."""

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.deployment import agent_of, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.mesos_site import HOSTNAME, MesosSite
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll


@pytest.mark.nightly
@pytest.mark.needs_docker
@pytest.mark.timeout(240)
def test_jobs_become_apps_and_a_run_and_end(
    docker_engine: DockerEngine, mesos_site: MesosSite, tmp_path: Path
) -> None:
    def apps() -> dict[str, dict[str, Any]]:
        """Return the apps by id; each has one instance, or none while it stops."""
        url = f"{mesos_site.marathon_url}/v2/apps?embed=apps.counts"
        app_list = requests.get(url, timeout=30).json()["apps"]
        assert all(app["instances"] <= 1 for app in app_list)
        return {app["id"]: app for app in app_list}

    deployment, home = make_deployment(tmp_path), tmp_path / "home"
    toml = (
        f'{QUICK}executor = "marathon"\nstop_grace_seconds = 1\n'
        f'[marathon]\nurl = "{mesos_site.marathon_url}"\n'
        f'[metronome]\nurl = "{mesos_site.metronome_url}"\n'
        f'[mesos]\nurl = "{mesos_site.agent_url}"\nhostname = "{HOSTNAME}"\n'
    )
    with serving(deployment):
        enroll(deployment, home, "gpu-1")
        with agent_of(deployment, home=home, toml=toml):
            portal = Portal(deployment)
            portal.wait_for_appliance("marathon")
            common = {"image": docker_engine.image, "memory_bytes": 64 * 2**20}
            service = portal.submit(
                kind="service", command=["sh", "-c", "echo serving; exec sleep 600"], **common
            )
            batch = portal.submit(command=["sh", "-c", "echo working; exit 7"], **common)

            portal.wait_for_state(service, "running")
            assert [app["labels"]["VEDETTE_JOB"] for app in apps().values()] == [service]
            ended = portal.wait_for_state(batch, *FINAL)
            assert (ended["state"], ended["exit_code"]) == ("failed", 7)
            eventually(lambda: "working" in portal.log(batch))
            eventually(lambda: "serving" in portal.log(service))
            _runs_of_a_schedule_are_jobs_of_metronome(portal, mesos_site, docker_engine.image)

            portal.post(f"/jobs/{service}/scale", {"instances": 2})
            eventually(lambda: [app["tasksRunning"] for app in apps().values()] == [1, 1])
            before = set(apps())
            portal.post(f"/jobs/{service}/update", {"env": {"REVISION": "2"}})
            done = {"state": "done", "updated": 2, "total": 2}
            eventually(
                lambda: done.items() <= portal.get(f"/jobs/{service}/update").json().items(),
                within_seconds=120,
            )
            eventually(lambda: len(apps()) == len(before))
            assert not before & set(apps())
            assert {app["env"].get("REVISION") for app in apps().values()} == {"2"}

            portal.post(f"/jobs/{service}/scale", {"instances": 1})
            portal.post(f"/jobs/{service}/stop")
            assert portal.wait_for_state(service, *FINAL)["state"] == "stopped"
            eventually(lambda: not apps())


def _runs_of_a_schedule_are_jobs_of_metronome(portal: Portal, site: MesosSite, image: str) -> None:
    def of_metronome() -> set[str]:
        jobs = requests.get(f"{site.metronome_url}/v1/jobs", timeout=30).json()
        return {listed_job["labels"]["vedette-job"] for listed_job in jobs}

    job = {"image": image, "memory_bytes": 64 * 2**20, "name": "nightly"}
    schedule = {"name": "nightly", "schedule": "0 2 1 1 *", "overlap": "replace"}
    command = ["sh", "-c", "echo nightly; exec sleep 600"]
    body = {**schedule, "job": {**job, "command": command}}
    path = f"/job-schedules/{portal.post('/job-schedules', body).json()['id']}"
    run = portal.post(f"{path}/run").json()["job_id"]
    portal.wait_for_state(run, "running")
    eventually(lambda: "nightly" in portal.log(run))
    assert of_metronome() == {run}
    portal.post(f"/jobs/{run}/stop")
    assert portal.wait_for_state(run, *FINAL)["state"] == "stopped"
    eventually(lambda: not of_metronome())
    [listed] = portal.get(f"{path}/runs").json()["items"]
    assert (listed["job_id"], listed["job_state"]) == (run, "stopped")
