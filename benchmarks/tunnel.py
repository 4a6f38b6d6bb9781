"""Compare web pages of jobs through the tunnel with a direct connection and `ssh -L`.

    python -m benchmarks.tunnel [--quick] [--output FILE]

A job's web server is reached in three ways: directly; through `ssh -L` and OpenSSH's server, with
the tunnel's cipher; and as users do, through the portal and the tunnel that the agent opened. All
is on the loopback address. In each repetition the ways take turns, and ratios are taken within it:
round trips of a WebSocket, requests over one connection, a download and an upload.
"""

import getpass
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import select
from websockets.sync.client import connect
from websockets.typing import Origin

from benchmarks.figures import document, median, medians, ratio, rounded, write_document
from benchmarks.gateway import Gateway, make_gateway, serving
from benchmarks.meter import read_usage
from benchmarks.processes import (
    BenchmarkError,
    free_port,
    python,
    replies,
    require_program,
    running,
    wait_until,
)
from cli.bootstrap import create_token
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.settings import secret_key
from jobqueue.models import Attempt, Job
from jobqueue.services.web_ui import Proof, Proofs, origin_of
from jobqueue.states import AttemptState, JobState
from protocol.inventory import Inventory
from protocol.job_spec import JobKind
from protocol.tunnel import CIPHER
from tenants.enrollment import enroll_appliance
from tenants.models import LoginSession, User
from tenants.users.sessions import start_session

USER, TENANT, PORT = "alice@acme.example", "acme", 8888
MEBIBYTE = 2**20
READ_BYTES = 256 * 1024
SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount of data for each way in a repetition."""

    repetitions: int = 5
    round_trips: int = 500
    requests: int = 200
    mebibytes: int = 64


FULL = Plan()
QUICK = Plan(repetitions=1, round_trips=20, requests=10, mebibytes=4)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the job's server; a browser's host and cookie for its origin.

    `near` and `far` are the processes of the two ends: the portal's and the appliance's.
    """

    port: int
    host: str = "127.0.0.1"
    headers: dict[str, str] = field(default_factory=dict)
    near: int | None = None
    far: int | None = None

    def http(self) -> http.client.HTTPConnection:
        """Return a connection that stays open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def all_headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        return {"Host": f"{self.host}:{self.port}", **self.headers}


def measure(plan: Plan) -> dict[str, object]:
    """Take turns on the three ways; return the document."""
    started_at = utc_now()
    readings: dict[str, list[dict[str, float | None]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="vb-")))
        job_port = stack.enter_context(_job_server(folder))
        ways = {
            "direct": Way(job_port),
            "ssh -L": stack.enter_context(_ssh(folder, job_port)),
            "tunnel": stack.enter_context(_tunnel(folder, job_port)),
        }
        for _ in range(plan.repetitions):
            for name, way in ways.items():
                readings.setdefault(name, []).append(_read(way, plan))
    return document(
        "tunnel",
        started_at=started_at,
        settings=asdict(plan) | {"cipher": CIPHER},
        results={
            "medians": {name: medians(repetitions) for name, repetitions in readings.items()},
            "tunnel_beside": {
                other: {
                    figure: median(
                        ratio(tunnel_reading[figure], other_reading[figure])
                        for tunnel_reading, other_reading in zip(
                            readings["tunnel"], readings[other], strict=True
                        )
                    )
                    for figure in readings[other][0]
                }
                for other in ("direct", "ssh -L")
            },
            "repetitions": readings,
        },
    )


def _read(way: Way, plan: Plan) -> dict[str, float | None]:
    return {
        "round_trip_milliseconds": _round_trips(way, plan.round_trips),
        "request_milliseconds": _requests(way, plan.requests),
        **_bulk("download", _download, way, plan.mebibytes),
        **_bulk("upload", _upload, way, plan.mebibytes),
    }


def _bulk(
    name: str, transfer: Callable[[Way, int], float], way: Way, mebibytes: int
) -> dict[str, float | None]:
    """Return the rate of a transfer, and what a GiB of it costs each end."""
    ends = {"near": way.near, "far": way.far}
    before = {end: read_usage(pid).cpu_ns for end, pid in ends.items() if pid}
    rate = transfer(way, mebibytes)
    gibibytes = mebibytes / 1024
    return {f"{name}_mebibytes_per_second": rate} | {
        f"{name}_{end}_cpu_seconds_per_gibibyte": rounded(
            (read_usage(pid).cpu_ns - before[end]) / 1e9 / gibibytes
        )
        if pid
        else None
        for end, pid in ends.items()
    }


def _round_trips(way: Way, count: int) -> float | None:
    address = f"{way.host}:{way.port}"
    with connect(
        f"ws://{address}/echo",
        sock=socket.create_connection(("127.0.0.1", way.port)),
        origin=Origin(f"http://{address}"),
        additional_headers=way.headers,
        compression=None,
        proxy=None,
    ) as socket_to_job:

        def trip() -> None:
            socket_to_job.send(b"x" * 64)
            socket_to_job.recv(timeout=60)

        return _median_milliseconds(trip, count)


def _requests(way: Way, count: int) -> float | None:
    connection = way.http()

    def request() -> None:
        connection.request("GET", "/small", headers=way.all_headers())
        _checked(connection.getresponse()).read()

    milliseconds = _median_milliseconds(request, count)
    connection.close()
    return milliseconds


def _download(way: Way, mebibytes: int) -> float:
    connection, size = way.http(), mebibytes * MEBIBYTE
    began = time.perf_counter()
    connection.request("GET", f"/large?bytes={size}", headers=way.all_headers())
    answer, received = _checked(connection.getresponse()), 0
    while part := answer.read(READ_BYTES):
        received += len(part)
    seconds = time.perf_counter() - began
    connection.close()
    if received != size:
        raise BenchmarkError(f"{received} of {size} bytes arrived")
    return rounded(mebibytes / seconds)


def _upload(way: Way, mebibytes: int) -> float:
    connection, body = way.http(), b"x" * mebibytes * MEBIBYTE
    began = time.perf_counter()
    connection.request("POST", "/upload", body=body, headers=way.all_headers())
    received = int(_checked(connection.getresponse()).read())
    seconds = time.perf_counter() - began
    connection.close()
    if received != len(body):
        raise BenchmarkError(f"{received} of {len(body)} bytes arrived")
    return rounded(mebibytes / seconds)


def _checked(answer: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if answer.status != http.HTTPStatus.OK:
        raise BenchmarkError(f"the job's server answered {answer.status}: {answer.read()[:500]!r}")
    return answer


def _median_milliseconds(action: Callable[[], None], count: int) -> float | None:
    action()
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        durations.append(1000 * (time.perf_counter() - began))
    return median(durations)


@contextmanager
def _job_server(folder: Path) -> Iterator[int]:
    port, log_path = free_port(), folder / "job.log"
    argv = python("benchmarks.tunnel_ends", "serve", str(port))
    with running(argv, log_path=log_path):
        url = f"http://127.0.0.1:{port}/small"
        wait_until(lambda: replies(url), what="the job's server", log_path=log_path)
        yield port


@contextmanager
def _ssh(folder: Path, job_port: int) -> Iterator[Way]:
    """Forward a port to the job's server by OpenSSH, with keys of this run."""
    server = require_program("sshd", package="openssh-server")
    client = require_program("ssh", package="openssh-client")
    keygen = require_program("ssh-keygen", package="openssh-client")
    for name in ("host_key", "user_key"):
        argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    ssh_port, port, log_path = free_port(), free_port(), folder / "ssh.log"
    config = folder / "sshd_config"
    config.write_text(SSHD_CONFIG.format(folder=folder, port=ssh_port))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server's own; its service makes it elsewhere
    options = [
        f"UserKnownHostsFile={folder}/known",
        "StrictHostKeyChecking=no",
        f"Ciphers={CIPHER}",
    ]
    forward = [
        *(client, "-N", "-F", "none", "-i", str(folder / "user_key"), "-p", str(ssh_port)),
        *(word for option in options for word in ("-o", option)),
        *("-L", f"127.0.0.1:{port}:127.0.0.1:{job_port}", f"{getpass.getuser()}@127.0.0.1"),
    ]
    with running([server, "-D", "-e", "-f", str(config)], log_path=log_path) as sshd:
        wait_until(lambda: _listens(ssh_port), what="sshd", log_path=log_path)
        with running(forward, log_path=log_path) as ssh:
            url = f"http://127.0.0.1:{port}/small"
            wait_until(lambda: replies(url), what="ssh -L", log_path=log_path)
            yield Way(port, near=ssh, far=sshd)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _tunnel(folder: Path, job_port: int) -> Iterator[Way]:
    """Run portal and tunnel; give the way through them."""
    gateway = make_gateway(folder / "data")
    secret, proof = _running_job(gateway)
    log_path = folder / "agent.log"
    with serving(gateway) as server:
        origin = origin_of(gateway.url, "jobs.localhost", proof.job_id, PORT)
        host = origin.removeprefix("http://").partition(":")[0]
        proofs = Proofs(secret_key(gateway.settings))
        argv = python("benchmarks.tunnel_ends", "agent", gateway.url, secret, str(job_port))
        with running(argv, log_path=log_path) as agent:
            cookie = _enter(gateway, host, proofs.sign("ticket", proof))
            way = Way(gateway.port, host, {"Cookie": cookie}, near=server, far=agent)
            wait_until(lambda: _answers(way), what="the tunnel", log_path=log_path)
            yield way


def _enter(gateway: Gateway, host: str, ticket: str) -> str:
    """Enter the job's origin as a browser does; return the cookie."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    headers = {"Host": f"{host}:{gateway.port}"}
    connection.request("GET", f"/.vedette/enter?ticket={ticket}", headers=headers)
    answer = connection.getresponse()
    cookie = answer.getheader("Set-Cookie", "").partition(";")[0]
    connection.close()
    if not cookie:
        raise BenchmarkError(f"the job's origin answered {answer.status} without a cookie")
    return cookie


def _answers(way: Way) -> bool:
    connection = way.http()
    connection.request("GET", "/small", headers=way.all_headers())
    is_ready = connection.getresponse().status == http.HTTPStatus.OK
    connection.close()
    return is_ready


def _running_job(gateway: Gateway) -> tuple[str, Proof]:
    """Add an appliance with a running job, and a session; return its secret, and a proof."""
    now = utc_now()
    with open_database(gateway.settings) as (_engine, sessions):
        token = create_token(sessions, TENANT, uses=1, now=now)
        with transaction(sessions) as session:
            inventory = Inventory(hostname="gpu-01")
            appliance, secret = enroll_appliance(
                session, secret=token, name="gpu-01", inventory=inventory, now=now
            )
            user = session.scalars(select(User).where(User.email == USER)).unique().one()
            job = Job(
                tenant_id=appliance.tenant_id,
                user_id=user.id,
                name="notebook",
                kind=JobKind.SERVICE,
                image="bench",
                memory_bytes=2**30,
                ports=[{"name": "web", "container_port": PORT}],
                state=JobState.RUNNING,
                submitted_at=now,
                started_at=now,
            )
            session.add(job)
            session.flush()
            session.add(
                Attempt(
                    job_id=job.id,
                    tenant_id=appliance.tenant_id,
                    appliance_id=appliance.id,
                    number=1,
                    state=AttemptState.RUNNING,
                    bound_at=now,
                    started_at=now,
                )
            )
            start_session(session, user, now=now, lifetime=timedelta(days=1))
            session.flush()
            signed_in = session.scalars(select(LoginSession.id)).one()
            return secret, Proof(job.id, PORT, signed_in)


@click.command(help=sys.modules[__name__].__doc__)
@click.option("--quick", is_flag=True, help="Little through each way, once.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
