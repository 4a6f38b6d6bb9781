"""The whole way: a job over REST, an agent with Marathon and Metronome, a container, its end."""

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.deployment import agent_of, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine, docker_engine
from tests.fixtures.mesos_site import HOSTNAME, MesosSite, mesos_site
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll

__all__ = ["docker_engine", "mesos_site"]


@pytest.mark.nightly
@pytest.mark.needs_docker
@pytest.mark.timeout(240)
def test_jobs_become_apps_and_a_run_and_end(
    docker_engine: DockerEngine, mesos_site: MesosSite, tmp_path: Path
) -> None:
    def apps() -> dict[str, dict[str, Any]]:
        """Return the apps by id; each has one instance, or none while it stops."""
        url = f"{mesos_site.marathon_url}/v2/apps?embed=apps.counts"
        found = requests.get(url, timeout=30).json()["apps"]
        assert all(one["instances"] <= 1 for one in found)
        return {one["id"]: one for one in found}

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
            assert [one["labels"]["VEDETTE_JOB"] for one in apps().values()] == [service]
            ended = portal.wait_for_state(batch, *FINAL)
            assert (ended["state"], ended["exit_code"]) == ("failed", 7)
            eventually(lambda: "working" in portal.log(batch))
            eventually(lambda: "serving" in portal.log(service))

            portal.post(f"/jobs/{service}/scale", {"instances": 2})
            eventually(lambda: [one["tasksRunning"] for one in apps().values()] == [1, 1])
            before = set(apps())
            portal.post(f"/jobs/{service}/update", {"env": {"REVISION": "2"}})
            done = {"state": "done", "updated": 2, "total": 2}
            eventually(
                lambda: done.items() <= portal.get(f"/jobs/{service}/update").json().items(),
                within_seconds=120,
            )
            eventually(lambda: len(apps()) == len(before))
            assert not before & set(apps())
            assert {one["env"].get("REVISION") for one in apps().values()} == {"2"}

            portal.post(f"/jobs/{service}/scale", {"instances": 1})
            portal.post(f"/jobs/{service}/stop")
            assert portal.wait_for_state(service, *FINAL)["state"] == "stopped"
            eventually(lambda: not apps())
