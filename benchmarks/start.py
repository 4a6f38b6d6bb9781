"""How soon a container runs after its job was submitted, beside `docker run`.

A server runs with an agent for this host on an idle Docker engine of its own. In turns, a job
is submitted by REST and a container is started by `docker run`; both have the same image, which is
there already. The time is from the request, or the start of the command, to the container's start
by the engine's clock, which is this machine's. The engine has no network, and the storage driver
vfs.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import docker

from benchmarks.shared.document import BenchmarkError, Outcome
from benchmarks.shared.servers import enroll_agent
from benchmarks.shared.starts import compared_starts
from core.clock import NS_PER_SECOND, to_ns
from jobqueue.executors.docker.mapping import container_name, engine_time_ns
from tests.deployment import ALICE, agent_of, api_token, make_deployment, serving
from tests.fixtures.docker_engine import DockerEngine, isolated_engine
from tests.fixtures.polling import eventually
from tests.servers import require_program
from vedette.client import Client

SETTLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of starts of each."""

    starts: int = 30


FULL = Plan()
QUICK = Plan(starts=3)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Start jobs and containers in turns."""
    jobs, runs = [], []
    with isolated_engine() as engine, _portal(folder, engine) as client:
        api = docker.APIClient(base_url=engine.url)
        for _ in range(plan.starts):
            jobs.append(_submit(client, engine, api))
            time.sleep(SETTLE_SECONDS)
            runs.append(_run(engine, api))
            time.sleep(SETTLE_SECONDS)
        api.close()
    return compared_starts(("job", jobs), ("docker run", runs), what="container start")


def _submit(client: Client, engine: DockerEngine, api: docker.APIClient) -> float:
    """Submit a job; return the seconds to the start of its container."""
    began_ns = time.time_ns()
    request = {"name": "bench", "image": engine.image, "command": ["true"], "memory_bytes": 2**26}
    job_id = client.post("/jobs", request)["id"]

    def started() -> dict[str, Any] | None:
        job: dict[str, Any] = client.get(f"/jobs/{job_id}")
        is_started = job["attempts"] and job["state"] in {"running", "succeeded"}
        return job if is_started else None

    job = eventually(started, every_seconds=0.2, what="the job's start")
    name = container_name(job["attempts"][-1]["id"])
    try:
        started_ns = _started_ns(api, name)
    except docker.errors.NotFound:  # the agent removes it soon, and has reported its time
        started_ns = to_ns(datetime.fromisoformat(job["started_at"]))
    return (started_ns - began_ns) / NS_PER_SECOND


def _run(engine: DockerEngine, api: docker.APIClient) -> float:
    """Start a container by `docker run`; return the seconds to its start."""
    program = require_program("docker", package="docker.io")
    began_ns = time.time_ns()
    argv = [program, "--host", engine.url, "run", "--detach", "--network=none", engine.image]
    completed = subprocess.run([*argv, "true"], check=True, capture_output=True, text=True)
    ident = completed.stdout.strip()
    started_ns = _started_ns(api, ident)
    api.remove_container(ident, force=True)
    return (started_ns - began_ns) / NS_PER_SECOND


def _started_ns(api: docker.APIClient, name: str) -> int:
    text = api.inspect_container(name)["State"]["StartedAt"]
    started_ns = engine_time_ns(text)
    if started_ns is None:
        raise BenchmarkError(f"{name} has no start: {text!r}")
    return started_ns


@contextmanager
def _portal(folder: Path, engine: DockerEngine) -> Iterator[Client]:
    """Run a server, and an agent on the engine; give a client of a tenant's admin."""
    deployment, home = make_deployment(folder / "data"), folder / "agent"
    with serving(deployment):
        enroll_agent(deployment, home)
        token, toml = api_token(deployment, ALICE), f'docker_url = "{engine.url}"\n'
        with (
            agent_of(deployment, home=home, toml=toml),
            Client(url=deployment.url, token=token) as client,
        ):
            eventually(lambda: _is_ready(client), what="the agent")
            yield client


def _is_ready(client: Client) -> bool:
    appliances = client.get("/appliances")["items"]
    if not appliances or appliances[0]["state"] != "online":
        return False
    return bool(client.get(f"/appliances/{appliances[0]['id']}")["inventory"]["executors"])
