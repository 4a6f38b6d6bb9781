"""Measure how soon a container runs after its job was submitted, beside `docker run`.

    python -m benchmarks.start [--quick] [--output FILE]

`vedette up` runs with an agent for this host on an idle Docker engine of its own. In turns, a job
is submitted by REST and a container is started by `docker run`; both have the same image, which is
there already. The time is from the request, or the start of the command, to the container's start
by the engine's clock, which is this machine's. The engine has no network, and the storage driver
vfs.
"""

import io
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import docker
from sqlalchemy import select

from benchmarks.figures import Promise, document, percentile, write_document
from benchmarks.processes import (
    BenchmarkError,
    answers,
    free_port,
    require_program,
    running,
    wait_until,
)
from cli.database import open_database
from core.clock import to_ns, utc_now
from core.db import transaction
from core.settings import ServerSettings
from jobqueue.executors.docker.mapping import container_name, engine_time_ns
from tenants.models import Role, User
from tenants.scope import Scope, active_memberships
from tenants.users.tokens import create_api_token
from vedette.client import Client

MOST_SECONDS = 1.0
IMAGE = "bench/busybox:1"
BUSYBOX = Path("/bin/busybox")
SETTLE_SECONDS = 2.0
WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of starts of each."""

    starts: int = 30


FULL = Plan()
QUICK = Plan(starts=3)


def measure(plan: Plan) -> dict[str, object]:
    """Start jobs and containers in turns; return the document."""
    started_at = utc_now()
    jobs, runs = [], []
    with TemporaryDirectory(prefix="vb-") as name, _engine(Path(name)) as url:
        folder = Path(name)
        engine = docker.DockerClient(base_url=url)
        try:
            with _portal(folder, url) as client:
                for _ in range(plan.starts):
                    jobs.append(_submit(client, engine))
                    time.sleep(SETTLE_SECONDS)
                    runs.append(_run(url, engine))
                    time.sleep(SETTLE_SECONDS)
        finally:
            engine.close()
    difference = statistics.median(jobs) - statistics.median(runs)
    return document(
        "start",
        started_at=started_at,
        settings=asdict(plan),
        results={"job": _figures(jobs), "docker run": _figures(runs), "difference": difference},
        promises=[
            Promise(
                name="submit to container start, above docker run, median",
                bound=MOST_SECONDS,
                unit="s",
                measured=difference,
            )
        ],
    )


def _figures(seconds: list[float]) -> dict[str, float | None]:
    return {"seconds": statistics.median(seconds), "seconds_p95": percentile(seconds, 95)}


def _submit(client: Client, engine: docker.DockerClient) -> float:
    """Submit a job; return the seconds to the start of its container."""
    began_ns = time.time_ns()
    job = client.post(
        "/jobs",
        {"name": "bench", "image": IMAGE, "command": ["true"], "memory_bytes": 64 * 2**20},
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        current = client.get(f"/jobs/{job['id']}")
        if current["attempts"] and current["state"] in {"running", "succeeded"}:
            name = container_name(current["attempts"][-1]["id"])
            return _started_ns(engine, name, current) / 1e9 - began_ns / 1e9
        time.sleep(0.2)
    raise BenchmarkError(f"the job did not start: {client.get('/jobs/' + job['id'])}")


def _started_ns(engine: docker.DockerClient, name: str, job: dict[str, Any]) -> int:
    """Return when a container started; the agent removes it soon, and has reported its time."""
    try:
        text = engine.api.inspect_container(name)["State"]["StartedAt"]
    except docker.errors.NotFound:
        return to_ns(datetime.fromisoformat(job["started_at"]))
    started_ns = engine_time_ns(text)
    if started_ns is None:
        raise BenchmarkError(f"{name} has no start: {text!r}")
    return started_ns


def _run(url: str, engine: docker.DockerClient) -> float:
    """Start a container by `docker run`; return the seconds to its start."""
    program = require_program("docker", package="docker.io")
    began_ns = time.time_ns()
    argv = [program, "--host", url, "run", "--detach", "--network=none", IMAGE, "true"]
    ident = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    started_ns = engine_time_ns(engine.api.inspect_container(ident)["State"]["StartedAt"]) or 0
    engine.api.remove_container(ident, force=True)
    return (started_ns - began_ns) / 1e9


@contextmanager
def _engine(folder: Path) -> Iterator[str]:
    url = f"unix://{folder / 'engine.sock'}"
    argv = [
        require_program("dockerd", package="docker.io"),
        f"--data-root={folder / 'docker'}",
        f"--exec-root={folder / 'exec'}",
        f"--pidfile={folder / 'engine.pid'}",
        f"--host={url}",
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--storage-driver=vfs",
        "--log-level=warn",
    ]
    log_path = folder / "engine.log"
    with running(argv, log_path=log_path):
        wait_until(lambda: _pings(url), what="dockerd", log_path=log_path)
        yield url


def _pings(url: str) -> bool:
    try:
        client = docker.DockerClient(base_url=url)
    except docker.errors.DockerException:
        return False
    try:
        client.api.import_image_from_data(_image(), repository="bench/busybox", tag="1")
    finally:
        client.close()
    return True


def _image() -> bytes:
    if not BUSYBOX.exists():
        raise BenchmarkError(f"{BUSYBOX} is missing: install the Debian package busybox-static.")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("bin")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        tar.add(BUSYBOX, arcname="bin/busybox")
        link = tarfile.TarInfo("bin/true")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)
    return buffer.getvalue()


@contextmanager
def _portal(folder: Path, docker_url: str) -> Iterator[Client]:
    """Run `vedette up` with an agent on the engine; give a client of its admin."""
    port, data = free_port(), folder / "data"
    url = f"http://127.0.0.1:{port}"
    home = data / "agent"
    home.mkdir(parents=True)
    lines = [f'portal_urls = ["{url}"]', f'data_dir = "{home}"', f'docker_url = "{docker_url}"']
    (home / "agent.toml").write_text("\n".join([*lines, ""]))
    environ = {"VEDETTE_DATA_DIR": str(data), "VEDETTE_PORT": str(port)}
    log_path = folder / "up.log"
    argv = [str(Path(sys.executable).with_name("vedette")), "up"]
    with running(argv, log_path=log_path, environ={**os.environ, **environ}):
        wait_until(lambda: answers(f"{url}/login"), what="the portal", log_path=log_path)
        wait_until(lambda: _admin(data) is not None, what="the first user", log_path=log_path)
        with Client(url=url, token=_token(data)) as client:
            wait_until(lambda: _is_ready(client), what="the agent", log_path=log_path)
            yield client


def _admin(data: Path) -> Scope | None:
    """Return the scope of the first tenant's admin, once there is one."""
    with open_database(ServerSettings(data_dir=data)) as (_engine, sessions), sessions() as session:
        users = session.scalars(select(User).where(User.is_operator.is_(False)))
        user = users.unique().first()
        if user is None:
            return None
        [membership] = active_memberships(user)
        return Scope(user_id=user.id, role=Role.ADMIN, tenant_id=membership.tenant_id)


def _token(data: Path) -> str:
    scope = _admin(data)
    if scope is None:
        raise BenchmarkError("the admin was deleted meanwhile")
    settings = ServerSettings(data_dir=data)
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        return create_api_token(session, scope, name="bench", now=utc_now())[1]


def _is_ready(client: Client) -> bool:
    appliances = client.get("/appliances")["items"]
    if not appliances or appliances[0]["state"] != "online":
        return False
    return bool(client.get(f"/appliances/{appliances[0]['id']}")["inventory"]["executors"])


@click.command()
@click.option("--quick", is_flag=True, help="A few starts.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure the start of jobs and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
