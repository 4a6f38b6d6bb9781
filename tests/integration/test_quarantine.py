"""Docker's bridge vanishes on an appliance: no job fails for it, and all run once it is back."""

from pathlib import Path

import pytest

from tests.deployment import agent_of, make_deployment, serving
from tests.fixtures.docker_engine import bridged_engine
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import QUICK, Portal, enroll

pytestmark = [pytest.mark.needs_docker, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_an_appliance_without_its_bridge_is_quarantined_until_a_probe_runs(tmp_path: Path) -> None:
    deployment = make_deployment(tmp_path)
    home = deployment.data_dir / "agent"
    with bridged_engine() as (engine, bridge), serving(deployment):
        enroll(deployment, home, "gpu-1")
        config = f'{QUICK}executor = "docker"\ndocker_url = "{engine.url}"\n'
        with agent_of(deployment, home=home, toml=config):
            portal = Portal(deployment)
            appliance = portal.wait_for_appliance("docker")
            path = f"/appliances/{appliance['id']}"
            bridge.delete()
            body = {"image": engine.image, "command": ["true"], "memory_bytes": 64 * 2**20}
            jobs = [portal.submit(**body) for _ in range(6)]

            def is_quarantined() -> bool:
                return bool(portal.get(path).json()["status"] == "quarantined")

            eventually(is_quarantined, within_seconds=90, what="the quarantine")
            shown = portal.get(path).json()
            assert bridge.name in shown["quarantine_reason"]
            bridge.add()
            for job_id in jobs:
                job = portal.wait_for_state(job_id, "succeeded", "failed", seconds=150)
                assert job["state"] == "succeeded"
            kinds = [event["kind"] for event in portal.get(f"{path}/events").json()["items"]]
            assert {"quarantined", "released"} <= set(kinds)
