"""Appliances whose end of a tunnel is hostile: what they send costs the portal little."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.models import Attempt
from protocol.attempts import ObservedState
from protocol.tunnel import ALGORITHMS, TUNNEL_PATH, TunnelTransport
from tenants.users.sightings import Sightings
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.costs import MAX_BYTES
from tests.fixtures.serving import Serving
from tests.unit.jobqueue.builders import report, start
from timeseries.store import Store

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("servers_share_portal")]

ZEROS = bytes(1024 * 1024)


@dataclass
class Site:
    """A portal with a job that runs on dgx-01, and bob, who reads its files."""

    url: str
    job_id: str
    token: str

    def read_files(self) -> requests.Response:
        return requests.get(
            f"{self.url}/api/v1/jobs/{self.job_id}/files",
            params={"path": "/work"},
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
        )

    def connect(self) -> connect:
        return connect(
            f"ws{self.url.removeprefix('http')}{TUNNEL_PATH}",
            additional_headers={"Authorization": "Bearer vda_acme_dgx-01"},
            compression=None,
            proxy=None,
        )


@pytest.fixture
def site(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, tmp_path: Path
) -> Iterator[Site]:
    with sessions.begin() as session:
        attempt: Attempt = start(session, cast)
        report(session, attempt, ObservedState.RUNNING)
        attempt.job.user_id = cast.bob.id
        job_id = attempt.job_id
        _, token = create_api_token(session, scope_of(cast.bob), name="test", now=clock.now)
    backend = Backend(ServerSettings(data_dir=tmp_path), sessions, store, Sightings(sessions))
    with Serving(create_asgi_app(backend, clock=clock)) as url:
        yield Site(url, job_id, token)


async def messages_of(websocket: ClientConnection) -> AsyncIterator[bytes]:
    while True:
        yield await websocket.recv(decode=False)


async def serve_ssh(
    websocket: ClientConnection, process: Callable[..., object], **options: list[str]
) -> None:
    """Serve sessions as an agent does, but with the options of somebody else."""
    transport = TunnelTransport(websocket.send)
    key = asyncssh.generate_private_key("ssh-ed25519")

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return not username

    ssh = asyncssh.connect_reverse(
        "portal",
        tunnel=transport,
        config=None,
        server_factory=Server,
        server_host_keys=[key],
        process_factory=process,
        encoding=None,
        **{**ALGORITHMS, **options},
    )
    await asyncio.gather(transport.send(), transport.receive(messages_of(websocket)), ssh)


async def _result(asked: Future[requests.Response]) -> object:
    return await asyncio.wrap_future(asked)


def served(site: Site, hostile: Callable[[ClientConnection], Coroutine[Any, Any, None]]) -> int:
    """Return the status that bob gets from an appliance which connects once he has asked."""

    async def appliance(asked: Future[requests.Response]) -> None:
        while not asked.done():
            try:
                async with site.connect() as websocket:
                    serving: asyncio.Task[object] = asyncio.create_task(hostile(websocket))
                    answer = asyncio.create_task(_result(asked))
                    await asyncio.wait({serving, answer}, return_when=asyncio.FIRST_COMPLETED)
                    serving.cancel()
                    await serving
            except InvalidStatus:
                await asyncio.sleep(0.05)
            except (ConnectionClosed, asyncssh.Error, OSError, asyncio.CancelledError):
                return

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(site.read_files)
        asyncio.run(appliance(asked))
        return asked.result().status_code


def test_a_tunnel_that_nobody_has_asked_for_is_refused(site: Site) -> None:
    async def knock() -> int:
        try:
            async with site.connect():
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    assert asyncio.run(knock()) == 403


def test_what_is_compressed_is_not_unpacked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("access.jobs.tunnels.CONNECT_SECONDS", 3.0)

    async def send_zeros(process: asyncssh.SSHServerProcess[bytes]) -> None:
        for _ in range(100):
            process.stderr.write(ZEROS)
            await process.stderr.drain()
        process.exit(0)

    async def hostile(websocket: ClientConnection) -> None:
        await serve_ssh(websocket, send_zeros, compression_algs=["zlib@openssh.com"])

    tracemalloc.start()
    try:
        status = served(site, hostile)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status == 503
    assert peak_bytes < MAX_BYTES


def test_an_appliance_without_compression_is_served(site: Site) -> None:
    async def fail(websocket: ClientConnection) -> None:
        await serve_ssh(websocket, lambda process: process.exit(1))

    assert served(site, fail) == 409
