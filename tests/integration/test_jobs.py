"""Jobs through the whole deployment: REST, placement, agent API, an agent and its executor."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from protocol.datasets import PART_BYTES
from tests.deployment import (
    ALICE,
    BOB,
    CHARLIE,
    Deployment,
    agent_of,
    api_token,
    make_deployment,
    serving,
)
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.file_modes import no_umask, open_to_others
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.polling import eventually
from vedette.client import Client
from vedette.datasets import upload_version

FINAL = {"succeeded", "failed", "stopped", "lost"}
QUICK = """
interval_seconds = 0.5
flush_interval_seconds = 0.5
heartbeat_interval_seconds = 1
attempts_interval_seconds = 0.3
"""
MIB = 2**20
SECRET = "correct-horse-battery"
JobBody = dict[str, Any]


class Portal:
    """Bob's view of the portal over REST."""

    def __init__(self, deployment: Deployment, email: str = BOB) -> None:
        self.url = deployment.url
        self._base = f"{deployment.url}/api/v1"
        self._headers = {"Authorization": f"Bearer {api_token(deployment, email)}"}

    def get(self, path: str, **params: object) -> requests.Response:
        text = {key: str(value) for key, value in params.items()}
        return requests.get(f"{self._base}{path}", params=text, headers=self._headers, timeout=60)

    def post(self, path: str, body: JobBody | None = None) -> requests.Response:
        return requests.post(f"{self._base}{path}", json=body, headers=self._headers, timeout=60)

    def submit(self, **body: object) -> str:
        reply = self.post("/jobs", {"name": "test", **body})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def job(self, job_id: str) -> JobBody:
        job: JobBody = self.get(f"/jobs/{job_id}").json()
        return job

    def wait_for_state(self, job_id: str, *states: str, seconds: float = 40) -> JobBody:
        def reached() -> JobBody | None:
            job = self.job(job_id)
            return job if job["state"] in states else None

        return eventually(reached, within_seconds=seconds, what=f"job {job_id} to be {states}")

    def log(self, job_id: str) -> str:
        return str(self.get(f"/jobs/{job_id}/log", offset=0).json()["text"])

    def wait_for_appliance(self, executor: str) -> JobBody:
        def ready() -> JobBody | None:
            items = self.get("/appliances").json()["items"]
            appliances = [self.get(f"/appliances/{item['id']}").json() for item in items]
            able = [
                appliance
                for appliance in appliances
                if executor in appliance["inventory"].get("executors", [])
            ]
            return able[0] if able else None

        return eventually(ready, within_seconds=60, what=f"an appliance with {executor}")


def enroll(deployment: Deployment, home: Path, name: str) -> None:
    secret = deployment.enrollment_secret("acme")
    result = deployment.vedette(
        "agent", "enroll", deployment.url, secret, "--name", name, "--data-dir", str(home)
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.nightly)]
)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty database: SQLite, and every night MariaDB."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('database') / 'vedette.db'}"
    server: MariaDB = request.getfixturevalue("mariadb")
    return server.new_database()


@pytest.fixture(scope="module")
def simulated(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with one simulated appliance of eight GPUs, on each database."""
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"), database_url=database_url)
    home = deployment.data_dir / "agent"
    with serving(deployment):
        enroll(deployment, home, "dgx-test")
        with agent_of(deployment, home=home, toml=f'{QUICK}executor = "simulated"\n'):
            Portal(deployment).wait_for_appliance("simulated")
            yield deployment


@pytest.mark.timeout(180)
def test_a_job_runs_to_its_end_and_says_why_it_is_there(simulated: Deployment) -> None:
    portal = Portal(simulated)
    job_id = portal.submit(
        image="acme/train:1", gpus=2, env={"SIM_SECONDS": "3"}, memory_bytes=2**30
    )

    job = portal.wait_for_state(job_id, *FINAL)

    assert job["state"] == "succeeded"
    assert job["exit_code"] == 0
    assert job["message"] or job["appliance_name"] == "dgx-test"
    assert "training finished" in portal.log(job_id)
    states = [event["state"] for event in portal.get(f"/jobs/{job_id}/events").json()["items"]]
    assert states == ["submitted", "starting", "running", "succeeded"]


@pytest.mark.timeout(180)
def test_a_dataset_is_fetched_before_its_job_starts_and_not_again(
    simulated: Deployment, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    # One file is in several parts, of which the agent reads ranges; the others share one.
    (folder / "cats" / "large.bin").write_bytes(os.urandom(PART_BYTES + MIB))
    (folder / "labels.csv").write_text("cat,1\n")
    (folder / "empty").touch()
    with Client(simulated.url, api_token(simulated, BOB)) as client:
        dataset = client.post("/datasets", {"name": "images"})
        version = upload_version(client, dataset["id"], folder)
    portal = Portal(simulated)
    mounts = [{"dataset": "images", "target": "/data"}]
    body = {"image": "acme/train:1", "env": {"SIM_SECONDS": "1"}, "datasets": mounts}

    first = portal.wait_for_state(portal.submit(**body), *FINAL)

    assert first["state"] == "succeeded", first
    assert first["datasets"][0]["version"] == version["number"] == 1
    cache = simulated.data_dir / "agent" / "datasets"
    [staged] = [path for path in cache.rglob("labels.csv") if path.is_file()]
    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert (staged.parent / file.relative_to(folder)).read_bytes() == file.read_bytes()

    def fetched_bytes() -> int | None:
        items = portal.get(f"/datasets/{dataset['id']}/copies").json()["items"]
        is_complete = bool(items) and items[0]["state"] == "complete"
        return int(items[0]["fetched_bytes"]) if is_complete else None

    before = eventually(fetched_bytes, what="the copy to be reported")
    second = portal.wait_for_state(portal.submit(**body), *FINAL)
    assert second["state"] == "succeeded"
    assert fetched_bytes() == before
    assert PART_BYTES < before < PART_BYTES + 2 * MIB


@pytest.mark.timeout(180)
def test_a_running_job_is_stopped_on_request(simulated: Deployment) -> None:
    portal = Portal(simulated)
    job_id = portal.submit(image="acme/train:1", gpus=1, env={"SIM_SECONDS": "600"})
    portal.wait_for_state(job_id, "running")

    assert portal.post(f"/jobs/{job_id}/stop").status_code in {200, 202}

    job = portal.wait_for_state(job_id, *FINAL)
    assert (job["state"], job["reason"]) == ("stopped", "stopped_by_user")


@pytest.mark.timeout(180)
def test_a_job_waits_on_the_busy_appliance_and_gets_its_gpus_when_they_are_free(
    simulated: Deployment,
) -> None:
    portal = Portal(simulated)
    first = portal.submit(image="acme/train:1", gpus=8, env={"SIM_SECONDS": "600"})
    portal.wait_for_state(first, "running")
    second = portal.submit(image="acme/train:1", gpus=4, env={"SIM_SECONDS": "2"})

    waiting = portal.wait_for_state(second, "queued")
    assert waiting["reason"] == "waiting_for_resources"
    assert waiting["appliance_name"] == "dgx-test"

    portal.post(f"/jobs/{first}/stop")
    assert portal.wait_for_state(second, *FINAL)["state"] == "succeeded"


@pytest.mark.timeout(180)
def test_the_gpus_use_is_shown_with_the_job(simulated: Deployment) -> None:
    portal = Portal(simulated)
    job_id = portal.submit(image="acme/train:1", gpus=1, env={"SIM_SECONDS": "600"})
    portal.wait_for_state(job_id, "running")

    def used() -> bool:
        usage = portal.get(f"/jobs/{job_id}/usage").json()
        return "utilization_percent" in str(usage) and "cpu_percent" in str(usage)

    eventually(used, within_seconds=60, what="samples of the job")
    portal.post(f"/jobs/{job_id}/stop")
    portal.wait_for_state(job_id, *FINAL)


@pytest.mark.timeout(180)
def test_another_tenants_user_finds_no_trace_of_the_job(simulated: Deployment) -> None:
    job_id = Portal(simulated).submit(image="acme/train:1", env={"SIM_SECONDS": "1"})
    charlie = Portal(simulated, CHARLIE)

    foreign = charlie.get(f"/jobs/{job_id}")
    missing = charlie.get("/jobs/01a1fe1d-28ab-764d-a481-000000000000")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.json()["code"] == missing.json()["code"]
    assert charlie.get("/jobs").json()["items"] == []


@pytest.mark.timeout(180)
def test_the_command_line_runs_a_job_follows_it_and_reads_its_log_again(
    simulated: Deployment,
) -> None:
    signed_in = simulated.vedette(
        "login", simulated.url, "--email", BOB, "--password", DEMO_PASSWORD
    )
    assert signed_in.returncode == 0, signed_in.stderr

    ran = simulated.vedette(
        "job",
        "run",
        "--image",
        "acme/train:1",
        "--gpus",
        "1",
        "--env",
        "SIM_SECONDS=2",
        "--policy",
        "restricted",
        "--follow",
        "--",
        "python",
        "train.py",
    )
    job_id = ran.stdout.split()[0]
    logs = simulated.vedette("job", "logs", job_id)
    shown = simulated.vedette("job", "show", job_id)

    assert ran.returncode == 0, ran.stderr
    assert "training finished" in ran.stdout
    assert "training finished" in logs.stdout
    assert "succeeded" in shown.stdout
    assert re.search(r"container policy +restricted", shown.stdout)


@pytest.mark.timeout(180)
def test_the_command_line_submits_secrets_and_copies_them(simulated: Deployment) -> None:
    login = ("login", simulated.url, "--email", BOB, "--password", DEMO_PASSWORD)
    assert simulated.vedette(*login).returncode == 0
    portal = Portal(simulated)
    options = ("--image", "acme/train:1", "--env", "PLAIN=staple", "--env", "SIM_SECONDS=600")

    ran = simulated.vedette(
        "job", "run", *options, "--secret", "HF_TOKEN", "--secret", "KEY=a=b",
        environ={"HF_TOKEN": SECRET},
    )  # fmt: skip
    job_id = ran.stdout.split()[0]
    copied = simulated.vedette("job", "retry", job_id, "--secret", "PLAIN")
    hidden = simulated.vedette("job", "make-secret", job_id, "PLAIN")
    missing = simulated.vedette("job", "run", *options, "--secret", "MISSING")

    assert portal.job(job_id)["secret_names"] == ["HF_TOKEN", "KEY", "PLAIN"], hidden.stderr
    copy = portal.job(copied.stdout.split()[0])
    assert copy["secret_names"] == ["HF_TOKEN", "KEY", "PLAIN"]
    assert copy["env"] == {"SIM_SECONDS": "600"}
    assert missing.returncode == 1
    assert "MISSING" in missing.stderr
    assert SECRET not in ran.stdout + ran.stderr + copied.stdout + hidden.stdout
    for ident in (job_id, copy["id"]):
        portal.post(f"/jobs/{ident}/stop")


@pytest.mark.timeout(180)
def test_the_command_line_calls_an_appliance_by_its_name(simulated: Deployment) -> None:
    signed_in = simulated.vedette(
        "login", simulated.url, "--email", ALICE, "--password", DEMO_PASSWORD
    )
    assert signed_in.returncode == 0, signed_in.stderr

    drained = simulated.vedette("appliance", "drain", "dgx-test")
    undrained = simulated.vedette("appliance", "undrain", "dgx-test")
    events = simulated.vedette("appliance", "events", "dgx-test")
    unknown = simulated.vedette("appliance", "retire", "dgx")

    assert "dgx-test" in drained.stdout, drained.stderr
    assert "dgx-test" in undrained.stdout, undrained.stderr
    assert "drained" in events.stdout.lower()
    assert unknown.returncode != 0
    assert "'dgx'" in unknown.stderr


def files_with(text: str, folder: Path) -> set[str]:
    """Return the names of the files of server and agent that contain a text."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in files if text.encode() in contents(path)}


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""  # deleted meanwhile


@pytest.mark.needs_docker
@pytest.mark.timeout(180)
def test_a_job_runs_in_a_real_container_on_this_host(
    docker_engine: DockerEngine, tmp_path: Path
) -> None:
    deployment, home = make_deployment(tmp_path), tmp_path / "agent"
    with no_umask(), serving(deployment):
        enroll(deployment, home, "host-1")
        config = f'{QUICK}docker_url = "{docker_engine.url}"\n'
        with agent_of(deployment, home=home, toml=config):
            portal = Portal(deployment)
            portal.wait_for_appliance("docker")
            job_id = portal.submit(
                image=docker_engine.image,
                command=["sh", "-c", "echo hello from $WHO with ${#TOKEN}; sleep 1; exit 3"],
                env={"WHO": "a container"},
                secrets={"TOKEN": SECRET},
                memory_bytes=64 * 2**20,
            )
            eventually(lambda: files_with(SECRET, tmp_path) == {"attempts.json"})
            job = portal.wait_for_state(job_id, *FINAL)

            assert (job["state"], job["exit_code"]) == ("failed", 3)
            assert f"hello from a container with {len(SECRET)}" in portal.log(job_id)
            eventually(lambda: not files_with(SECRET, tmp_path), what="no file with the secret")
            assert job["appliance_name"] == "host-1"
            # The test itself opened the log of the agent's output.
            assert open_to_others(tmp_path).keys() == {"agent.log"}
