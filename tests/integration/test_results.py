"""Results of jobs through the whole deployment: containers, agents, the portal and its store."""

import signal
from pathlib import Path

import pytest

from tests.deployment import CHARLIE, agent_of, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.file_modes import no_umask
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import FINAL, QUICK, Portal, enroll

MIB = 2**20
# The first attempt leaves a checkpoint and fails; the next one goes on from it.
TRAINING = """
if [ -f /results/checkpoints/last.pt ]; then
  echo resumed from $(cat /results/checkpoints/last.pt)
  echo '{"vedette": {"step": 2, "loss": 0.25}}'
  echo done > /results/summary.txt
  exit 0
fi
mkdir /results/checkpoints
echo '{"vedette": {"step": 1, "loss": 0.5}}'
echo step-1 > /results/checkpoints/part
mv /results/checkpoints/part /results/checkpoints/last.pt
dd if=/dev/zero of=/results/weights.bin bs=1M count=70 2> /dev/null
sleep 3
exit 1
"""
CONFIG = """
[results]
interval_seconds = 1
settle_seconds = 0.5
"""


@pytest.mark.needs_docker
@pytest.mark.timeout(240)
def test_the_retry_on_another_appliance_finds_the_checkpoint(
    docker_engine: DockerEngine, tmp_path: Path
) -> None:
    deployment = make_deployment(tmp_path)
    homes = [tmp_path / "agent-1", tmp_path / "agent-2"]
    config = f'{QUICK}docker_url = "{docker_engine.url}"\n{CONFIG}'
    with no_umask(), serving(deployment):
        portal = Portal(deployment)
        enroll(deployment, homes[0], "host-1")
        with agent_of(deployment, home=homes[0], toml=config) as first:
            portal.wait_for_appliance("docker")
            job_id = portal.submit(
                image=docker_engine.image,
                command=["sh", "-c", TRAINING],
                outputs=["/results"],
                max_retries=2,
                memory_bytes=256 * MIB,
            )
            portal.wait_for_state(job_id, "running")
            eventually(lambda: "/results/checkpoints/last.pt" in artifacts(portal, job_id))
            first.send_signal(signal.SIGKILL)
            first.wait()
        enroll(deployment, homes[1], "host-2")
        with (
            agent_of(deployment, home=homes[1], toml=config),
            agent_of(deployment, home=homes[0], toml=config),
        ):
            eventually(
                lambda: portal.job(job_id)["attempts"][0]["state"] == "failed",
                within_seconds=60,
                what="the first attempt to end",
            )
            listed = artifacts(portal, job_id)
            assert listed["/results/weights.bin"] == 70 * MIB

            job = portal.wait_for_state(job_id, *FINAL, seconds=90)

            assert job["state"] == "succeeded", job
            assert "resumed from step-1" in portal.log(job_id)
            assert job["appliance_name"] == "host-2"
            assert set(artifacts(portal, job_id)) == {
                "/results/checkpoints/last.pt",
                "/results/summary.txt",
                "/results/weights.bin",
            }
            file = f"/jobs/{job_id}/artifacts/file?path=/results"
            reply = portal.get(f"{file}/checkpoints/last.pt")
            assert reply.content == b"step-1\n"
            assert reply.headers["Content-Disposition"].startswith("attachment")
            whole = portal.get(f"{file}/weights.bin")
            assert whole.content == bytes(70 * MIB)
            other = Portal(deployment, CHARLIE)
            assert other.get(f"/jobs/{job_id}/artifacts").status_code == 404


def artifacts(portal: Portal, job_id: str) -> dict[str, int]:
    items = portal.get(f"/jobs/{job_id}/artifacts").json()["items"]
    return {item["path"]: item["size_bytes"] for item in items}
