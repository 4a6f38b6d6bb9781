"""A portal is lost and restored while a real agent runs containers: none runs twice."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest
import requests

from tests.deployment import ALICE, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.servers import require_program

pytestmark = [pytest.mark.nightly, pytest.mark.needs_docker, pytest.mark.timeout(400)]

# A backup can take longer than any job of a fixed length.
UNTIL_SIGNAL = "trap 'exit 0' TERM; sleep 600 & wait"


class Portal:
    """The REST API of a deployment, as Alice uses it."""

    def __init__(self, deployment: Deployment, engine: DockerEngine) -> None:
        self._url = f"{deployment.url}/api/v1/jobs"
        self._headers = {"Authorization": f"Bearer {api_token(deployment, ALICE)}"}
        self._image = engine.image

    def submit(self, name: str, command: str) -> None:
        job = {
            "name": name,
            "image": self._image,
            "command": ["sh", "-c", command],
            "cpus": 0.1,
            "memory_bytes": 16 * 2**20,
            "retry_on": ["exit", "start", "appliance"],
            "max_retries": 3,
        }
        reply = requests.post(self._url, headers=self._headers, json=job, timeout=60)
        assert reply.status_code == 201, reply.text

    def states(self) -> dict[str, str]:
        reply = requests.get(self._url, headers=self._headers, timeout=60).json()
        return {job["name"]: job["state"] for job in reply["items"]}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_no_job_runs_twice_when_a_portal_is_restored(
    docker_engine: DockerEngine, tmp_path: Path, stack: ExitStack
) -> None:
    require_program("restic", package="restic")
    (tmp_path / "password").write_text("a password\n", encoding="utf-8")
    variables = {
        "VEDETTE_CONFIG": "",
        "VEDETTE_BACKUP_URL": str(tmp_path / "repository"),
        "VEDETTE_BACKUP_PASSWORD_FILE": str(tmp_path / "password"),
    }
    lost, home = make_deployment(tmp_path / "lost"), tmp_path / "agent"
    new = Deployment(data_dir=tmp_path / "new", port=lost.port)
    with serving(lost, environ=variables):
        secret = lost.enrollment_secret("acme")
        enrolled = lost.vedette(
            *("agent", "enroll", lost.url, secret, "--name", "dgx", "--data-dir", str(home))
        )
        assert enrolled.returncode == 0, enrolled.stderr
        toml = f'executor = "docker"\ndocker_url = "{docker_engine.url}"\n'
        stack.enter_context(agent_of(lost, home=home, toml=toml))
        portal = Portal(lost, docker_engine)
        portal.submit("long", "sleep 600")
        portal.submit("short", UNTIL_SIGNAL)
        eventually(lambda: set(portal.states().values()) == {"running"}, within_seconds=90)
        made = lost.process("backup", environ=variables)
        assert made.returncode == 0, made.stderr
        portal.submit("later", "sleep 600")
        end_waiting(docker_engine)
        eventually(lambda: portal.states()["short"] == "succeeded", within_seconds=90)
        eventually(lambda: portal.states()["later"] == "running", within_seconds=90)
        eventually(lambda: len(containers(docker_engine)) == 2, within_seconds=90)
    before = containers(docker_engine)
    restored = new.process("restore", environ=variables)
    assert restored.returncode == 0, restored.stderr
    with serving(new, environ=variables):
        portal = Portal(new, docker_engine)
        eventually(
            lambda: portal.states() == {"long": "running", "short": "lost"}, within_seconds=90
        )
        eventually(lambda: len(containers(docker_engine)) == 1, within_seconds=90)
        assert containers(docker_engine) < before


def end_waiting(engine: DockerEngine) -> None:
    """Let the job end that waits for a signal."""
    client = docker.DockerClient(base_url=engine.url)
    try:
        for container in client.containers.list():
            if UNTIL_SIGNAL in container.attrs["Config"]["Cmd"]:
                container.kill("TERM")
    finally:
        client.close()


def containers(engine: DockerEngine) -> set[str]:
    client = docker.DockerClient(base_url=engine.url)
    try:
        names = {container.name for container in client.containers.list(all=True)}
        return {name for name in names if name.startswith("vedette-")}
    finally:
        client.close()
