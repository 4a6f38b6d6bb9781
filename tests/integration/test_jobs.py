"""Jobs through the whole house: REST, placement, the agents' door, an agent and its executor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from tests.fixtures.docker_engine import DockerEngine, docker_engine
from tests.fixtures.polling import eventually
from tests.house import ALICE, BOB, CHARLIE, House, agent_of, api_token, make_house, serving

__all__ = ["docker_engine"]

FINAL = {"succeeded", "failed", "stopped", "lost"}
QUICK = """
interval_seconds = 0.5
flush_interval_seconds = 0.5
heartbeat_interval_seconds = 1
attempts_interval_seconds = 0.3
"""
JobBody = dict[str, Any]


class Portal:
    """Bob's view of the portal over REST."""

    def __init__(self, house: House, email: str = BOB) -> None:
        self._base = f"{house.url}/api/v1"
        self._headers = {"Authorization": f"Bearer {api_token(house, email)}"}

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
        found: JobBody = self.get(f"/jobs/{job_id}").json()
        return found

    def wait_for_state(self, job_id: str, *states: str, seconds: float = 40) -> JobBody:
        def reached() -> JobBody | None:
            found = self.job(job_id)
            return found if found["state"] in states else None

        return eventually(reached, within_seconds=seconds, what=f"job {job_id} to be {states}")

    def log(self, job_id: str) -> str:
        return str(self.get(f"/jobs/{job_id}/log", offset=0).json()["text"])

    def wait_for_appliance(self, executor: str) -> JobBody:
        def ready() -> JobBody | None:
            items = self.get("/appliances").json()["items"]
            able = [one for one in items if one["inventory"].get("executors") == [executor]]
            return able[0] if able else None

        return eventually(ready, within_seconds=60, what=f"an appliance with {executor}")


def enrol(house: House, home: Path, name: str) -> None:
    secret = house.enrolment_secret("acme")
    result = house.vedette(
        "agent", "enroll", house.url, secret, "--name", name, "--data-dir", str(home)
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def simulated(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house with one simulated appliance of eight GPUs, on each database."""
    house = make_house(tmp_path_factory.mktemp("house"), database_url=database_url)
    home = house.data_dir / "agent"
    with serving(house):
        enrol(house, home, "dgx-test")
        with agent_of(house, home=home, toml=f'{QUICK}executor = "simulated"\n'):
            Portal(house).wait_for_appliance("simulated")
            yield house


@pytest.mark.timeout(180)
def test_a_job_runs_to_its_end_and_says_why_it_is_there(simulated: House) -> None:
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
def test_a_running_job_is_stopped_on_request(simulated: House) -> None:
    portal = Portal(simulated)
    job_id = portal.submit(image="acme/train:1", gpus=1, env={"SIM_SECONDS": "600"})
    portal.wait_for_state(job_id, "running")

    assert portal.post(f"/jobs/{job_id}/stop").status_code in {200, 202}

    job = portal.wait_for_state(job_id, *FINAL)
    assert (job["state"], job["reason"]) == ("stopped", "stopped_by_user")


@pytest.mark.timeout(180)
def test_a_job_waits_on_the_busy_appliance_and_gets_its_gpus_when_they_are_free(
    simulated: House,
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
def test_the_gpus_use_is_shown_with_the_job(simulated: House) -> None:
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
def test_a_stranger_finds_no_trace_of_the_job(simulated: House) -> None:
    job_id = Portal(simulated).submit(image="acme/train:1", env={"SIM_SECONDS": "1"})
    charlie = Portal(simulated, CHARLIE)

    foreign = charlie.get(f"/jobs/{job_id}")
    missing = charlie.get("/jobs/01a1fe1d-28ab-764d-a481-000000000000")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.json()["code"] == missing.json()["code"]
    assert charlie.get("/jobs").json()["items"] == []


@pytest.mark.timeout(180)
def test_the_command_line_runs_a_job_follows_it_and_reads_its_log_again(simulated: House) -> None:
    signed_in = simulated.vedette(
        "login", simulated.url, "--email", BOB, "--password", DEMO_PASSWORD
    )
    assert signed_in.returncode == 0, signed_in.stderr

    ran = simulated.vedette(
        "job", "run", "--image", "acme/train:1", "--gpus", "1", "--env", "SIM_SECONDS=2",
        "--follow", "--", "python", "train.py",
    )  # fmt: skip
    job_id = ran.stdout.split()[0]
    again = simulated.vedette("job", "logs", job_id)
    shown = simulated.vedette("job", "show", job_id)

    assert ran.returncode == 0, ran.stderr
    assert "training finished" in ran.stdout
    assert "training finished" in again.stdout
    assert "succeeded" in shown.stdout


@pytest.mark.timeout(180)
def test_the_command_line_calls_an_appliance_by_its_name(simulated: House) -> None:
    signed_in = simulated.vedette(
        "login", simulated.url, "--email", ALICE, "--password", DEMO_PASSWORD
    )
    assert signed_in.returncode == 0, signed_in.stderr

    drained = simulated.vedette("appliance", "drain", "dgx-test")
    let_in = simulated.vedette("appliance", "undrain", "dgx-test")
    told = simulated.vedette("appliance", "events", "dgx-test")
    unknown = simulated.vedette("appliance", "retire", "dgx")

    assert drained.stdout == "dgx-test takes no new jobs.\n", drained.stderr
    assert let_in.stdout == "dgx-test takes jobs again.\n", let_in.stderr
    assert "drained" in told.stdout.lower()
    assert "There is no appliance 'dgx'" in unknown.stderr


@pytest.mark.needs_docker
@pytest.mark.timeout(180)
def test_a_job_runs_in_a_real_container_on_this_host(
    docker_engine: DockerEngine, tmp_path: Path
) -> None:
    house, home = make_house(tmp_path), tmp_path / "agent"
    with serving(house):
        enrol(house, home, "host-1")
        config = f'{QUICK}docker_url = "{docker_engine.url}"\n'
        with agent_of(house, home=home, toml=config):
            portal = Portal(house)
            portal.wait_for_appliance("docker")
            job_id = portal.submit(
                image=docker_engine.image,
                command=["sh", "-c", "echo hello from $WHO; exit 3"],
                env={"WHO": "a container"},
                memory_bytes=64 * 2**20,
            )
            job = portal.wait_for_state(job_id, *FINAL)

            assert (job["state"], job["exit_code"]) == ("failed", 3)
            assert "hello from a container" in portal.log(job_id)
            assert job["appliance_name"] == "host-1"
