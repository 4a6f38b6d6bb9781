"""Terminals, commands and files of running jobs: a real engine behind a real server and tunnel."""

import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
import requests
from sqlalchemy import select
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.executors.base import ExecSession, Executor
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.executors.simulated.executor import SimulatedExecutor
from jobqueue.models import Attempt, Job
from protocol.attempts import AttemptSpec, ObservedState
from protocol.exec import Channel, ExecStatus, TerminalSize, message
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from tenants.models import AuditEntry
from tenants.users.sightings import Sightings
from tenants.users.tokens import TokenLimits, create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually
from tests.fixtures.serving import Serving
from tests.fixtures.tunnels import serve_wanted_tunnel
from tests.unit.jobqueue.builders import report, start
from timeseries.store import Store

pytestmark = [
    pytest.mark.needs_docker,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("servers_share_portal"),
]

MEBIBYTE = 2**20


@dataclass
class Site:
    """A portal, a running job with its container, and the tunnel between them."""

    url: str
    job: Job
    attempt: Attempt
    sessions: SessionFactory
    executor: Executor
    tokens: dict[str, str]
    stop: threading.Event = field(default_factory=threading.Event)

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        return await self.executor.execute(attempt_id, session)

    def serve_tunnel(self) -> None:
        serve_wanted_tunnel(
            self.url,
            stop=self.stop,
            find_endpoint=lambda _attempt_id, _port: None,
            execute=self.execute,
        )

    @contextmanager
    def open(self, *command: str, user: str = "bob", **query: object) -> Iterator["Session"]:
        words = [*(("command", word) for word in command), *query.items()]
        socket_url = f"ws{self.url.removeprefix('http')}/api/v1/jobs/{self.job.id}/exec"
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        with connect(
            f"{socket_url}?{urlencode(words)}", additional_headers=headers, proxy=None
        ) as opened:
            yield Session(opened)

    def files(
        self, method: str, path: str, *, user: str = "bob", data: bytes | None = None
    ) -> requests.Response:
        return requests.request(
            method,
            f"{self.url}/api/v1/jobs/{self.job.id}/files",
            params={"path": path},
            headers={"Authorization": f"Bearer {self.tokens[user]}"},
            data=data,
            timeout=60,
        )

    def run(self, script: str) -> str:
        with self.open("sh", "-c", script) as opened:
            return opened.rest()[Channel.STDOUT].decode()

    def audited(self) -> list[tuple[str, str, str, str]]:
        with self.sessions() as session:
            entries = session.scalars(select(AuditEntry).order_by(AuditEntry.number)).all()
            return [
                (entry.action, entry.actor_name, str((entry.after or {}).get("kind")), entry.reason)
                for entry in entries
                if entry.action.startswith("job.session")
            ]


@dataclass
class Session:
    """A user's end of an open session."""

    socket: ClientConnection
    seen: bytes = b""

    def type(self, text: str) -> None:
        self.socket.send(message(Channel.STDIN, text.encode()))

    def resize(self, columns: int, rows: int) -> None:
        size = msgspec.json.encode(TerminalSize(columns, rows))
        self.socket.send(message(Channel.RESIZE, size))

    def until(self, text: str) -> None:
        """Read output until it has a text."""
        while text.encode() not in self.seen:
            data = self.socket.recv(timeout=60)
            assert isinstance(data, bytes)
            assert data[0] == Channel.STDOUT, data
            self.seen += data[1:]
        self.seen = self.seen.partition(text.encode())[2]

    def rest(self) -> dict[Channel, bytes]:
        """Return what else arrives, by channel, with the status at the end."""
        contents = dict.fromkeys(Channel, b"")
        for data in self.socket:
            assert isinstance(data, bytes)
            contents[Channel(data[0])] += data[1:]
        return contents

    def status(self) -> ExecStatus:
        return msgspec.json.decode(self.rest()[Channel.STATUS], type=ExecStatus)


@pytest.fixture
def backend(sessions: SessionFactory, store: Store, tmp_path: Path) -> Backend:
    settings = ServerSettings(
        data_dir=tmp_path,
        max_sessions_per_job=2,
        job_session_idle_seconds=8,
        max_copy_bytes=8 * MEBIBYTE,
        requests_per_second_per_user=0.0,
        requests_per_second_per_address=0.0,
    )
    return Backend(settings, sessions, store, Sightings(sessions))


@pytest.fixture
def site(
    backend: Backend, cast: Cast, clock: FrozenClock, docker_engine: DockerEngine, tmp_path: Path
) -> Iterator[Site]:
    executor = DockerExecutor(owner="dgx-01", spool_dir=tmp_path / "spool", url=docker_engine.url)
    with backend.sessions.begin() as session:
        attempt = start(session, cast)
        report(session, attempt, ObservedState.RUNNING)
        job = attempt.job
        job.user_id = cast.bob.id
        tokens = {
            user.name.lower(): create_api_token(
                session, scope_of(user), name="test", now=clock.now
            )[1]
            for user in (cast.alice, cast.bob, cast.charlie, cast.olivia)
        }
        limits = TokenLimits(("jobs",))
        tokens["limited"] = create_api_token(
            session, scope_of(cast.bob), name="limited", limits=limits, now=clock.now
        )[1]
    spec = AttemptSpec(
        attempt_id=attempt.id,
        job_id=job.id,
        name="test",
        image=docker_engine.image,
        command=["sh", "-c", "mkdir -p /work && sleep 600"],
        memory_bytes=64 * MEBIBYTE,
        working_dir="/work",
        env={"EPOCHS": "7"},
    )
    executor.start(spec)
    eventually(
        lambda: [observation.state for observation in executor.observe()] == [ObservedState.RUNNING]
    )
    app = create_asgi_app(backend, clock=clock)
    bounds = ConnectionLimits.of(backend.settings, max_connections=100)
    protocol = partial(BoundedProtocol, connections=Connections(bounds))
    with Serving(app, http=protocol) as url:
        site = Site(url, job, attempt, backend.sessions, executor, tokens)
        agent = threading.Thread(target=site.serve_tunnel)
        agent.start()
        yield site
        site.stop.set()
        agent.join()
    executor.remove(attempt.id)
    executor.close()


def test_a_terminal_has_the_jobs_environment_its_size_and_an_entry_in_the_audit_log(
    site: Site,
) -> None:
    with site.open(terminal="true", columns=91, rows=33) as shell:
        shell.type("stty size; echo $EPOCHS-$TERM; pwd\n")
        shell.until("33 91\r\n")
        shell.until("7-xterm-256color\r\n/work\r\n")
        shell.resize(120, 40)
        shell.type("sleep 0.2; stty size\n")
        shell.until("40 120\r\n")
        shell.type("exit 3\n")
        assert shell.status() == ExecStatus(exit_code=3)
    assert eventually(lambda: len(site.audited()) == 2)
    assert site.audited() == [
        ("job.session_opened", "bob@acme.example", "terminal", ""),
        ("job.session_closed", "bob@acme.example", "terminal", "exit code 3"),
    ]


def test_a_command_has_its_streams_apart_and_the_end_of_its_input(site: Site) -> None:
    with site.open("sh", "-c", "cat; echo done >&2; exit 4") as command:
        for _ in range(100):
            command.type("x" * 10_000)
        command.socket.send(message(Channel.CLOSE, b"\x00"))
        streams = command.rest()
    assert streams[Channel.STDOUT] == b"x" * 1_000_000
    assert streams[Channel.STDERR] == b"done\n"
    assert msgspec.json.decode(streams[Channel.STATUS])["exit_code"] == 4
    with site.open("no-such-program") as missing:
        assert missing.status().exit_code in {126, 127}


def test_what_a_user_leaves_is_ended(site: Site) -> None:
    with site.open(terminal="true") as shell:
        shell.type("sleep 12345\n")
        shell.until("12345")
        eventually(lambda: "sleep 12345" in site.run("cat /proc/[0-9]*/cmdline").replace("\0", " "))
    script = "for one in /proc/[0-9]*; do cat $one/cmdline; echo; done 2>/dev/null"
    eventually(lambda: "sleep\x0012345" not in site.run(script))
    assert ("job.session_closed", "bob@acme.example", "terminal", "disconnected") in site.audited()


def test_nobody_else_opens_the_job_and_its_sessions_are_bounded(site: Site) -> None:
    for user, status in (("limited", 403), ("charlie", 404), ("olivia", 403)):
        assert site.files("GET", "/work", user=user).status_code == status
        with site.open(user=user) as refused:
            assert refused.status().code in {"forbidden", "token_scope", "not_found"}
    with site.open("true", user="alice") as admin:
        assert admin.status() == ExecStatus(exit_code=0)
    site.tokens["nobody"] = "vdt_none"
    with pytest.raises(InvalidStatus) as unknown, site.open(user="nobody"):
        pass
    assert unknown.value.response.status_code == 401
    with site.open("cat") as first, site.open("cat") as second:
        first.type("1")
        second.type("2")
        first.until("1")
        second.until("2")
        with site.open("true") as third:
            assert third.status().code == "overloaded"


@pytest.mark.nightly
def test_idle_sessions_and_those_of_ended_jobs_are_closed(site: Site) -> None:
    with site.open(terminal="true") as shell:
        assert shell.status().code == "idle_timeout"
    with site.open(terminal="true") as shell:
        shell.type("echo ready\n")
        shell.until("ready")
        with site.sessions.begin() as session:
            report(session, session.get_one(Attempt, site.attempt.id), ObservedState.SUCCEEDED)
        assert shell.status().code == "job_not_running"
    assert site.audited()[-1][3] == "job_not_running"
    with site.open(terminal="true") as shell:
        assert shell.status().code == "job_not_running"


def test_a_lost_appliance_and_a_simulated_one_are_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock
) -> None:
    real, site.executor = (
        site.executor,
        SimulatedExecutor(clock, on_work=lambda *_: None, on_end=lambda *_: None),
    )
    with site.open(terminal="true") as shell:
        assert shell.status().code == "exec_unavailable"
    assert site.files("GET", "/work").json()["code"] == "exec_unavailable"
    site.executor = real
    monkeypatch.setattr("access.jobs.tunnels.CONNECT_SECONDS", 0.5)
    with site.open("cat") as lost:
        lost.type("1")
        lost.until("1")
        site.stop.set()
        assert lost.status().code == "appliance_not_connected"
    assert site.files("GET", "/work").status_code == 503


def test_files_and_folders_are_copied_in_and_out(site: Site) -> None:
    large = b"0123456789abcdef" * (2 * MEBIBYTE // 16)
    assert site.files("PUT", "/work", data=_tar({"run/a.bin": large, "run/.hidden": b"h"})).ok
    assert site.files("PUT", ".", data=_tar({"run/b": b"b", "top": b"t"})).ok
    names = site.run("cd /work; echo *; ls -A run").split()
    assert names == ["run", "top", ".hidden", "a.bin", "b"]
    answer = site.files("GET", "run")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-tar")
    assert _files(answer.content) == {"run/a.bin": large, "run/.hidden": b"h", "run/b": b"b"}
    assert _files(site.files("GET", "/work/top").content) == {"top": b"t"}
    missing = site.files("GET", "/work/none")
    assert (missing.status_code, missing.json()["code"]) == (409, "exec_failed")
    assert "/work/none" in missing.json()["message"]
    assert site.files("GET", "").status_code == 422
    outcomes = {entry[2:] for entry in site.audited()}
    assert {("files_in", "completed"), ("files_out", "completed")} <= outcomes


def test_a_copy_that_breaks_or_is_too_large_changes_nothing(site: Site) -> None:
    archive = _tar({"cut/a": b"x" * MEBIBYTE, "cut/b": b"y"})
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as broken:
        broken.sendall(
            f"PUT /api/v1/jobs/{site.job.id}/files?path=/work HTTP/1.1\r\nHost: test\r\n"
            f"Authorization: Bearer {site.tokens['bob']}\r\n"
            f"Content-Length: {len(archive)}\r\n\r\n".encode()
            + archive[: MEBIBYTE + 1024]
        )
        eventually(lambda: ".vedette" in site.run("ls -A /work"))
    eventually(lambda: site.run("ls -A /work") == "")
    assert site.files("PUT", "/work", data=_tar({"big": b"z" * 9 * MEBIBYTE})).status_code == 413
    assert site.files("PUT", "/work", data=b"not a tar archive" * 100).status_code == 409
    assert site.files("PUT", "/no/folder", data=archive).status_code == 409
    assert site.run("ls -A /work") == ""


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.uid = len(data), 4321
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {
            member.name: opened.extractfile(member)
            for member in opened.getmembers()
            if member.isfile()
        }
        return {name: data.read() for name, data in files.items() if data is not None}
