"""A portal, an agent, an engine and the network between them, each of which can be killed."""

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread

from tests.delivery.engine import CountingEngine, Process
from tests.deployment import Deployment, make_deployment
from tests.fixtures.docker_engine import skip_unless_installed
from tests.integration.test_jobs import QUICK, Portal, enroll
from tests.servers import free_port

OUTAGE_SECONDS = 1.0


class Network:
    """Forwards connections to the portal, until it is cut."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.mend()

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        with self._lock:
            sockets, listener = list(self._open), self._listener
            self._listener = None
        for connection in [*sockets, *([listener] if listener else [])]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def mend(self) -> None:
        """Forward again."""
        listener = socket.create_server(("127.0.0.1", self.port))
        with self._lock:
            self._listener = listener
        Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:  # the portal is dead
                client.close()
                continue
            except OSError:
                return
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        self._copy(source, sink)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            is_first = source in self._open
            self._open -= {source, sink}
        if is_first:
            source.close()
            sink.close()


class World:
    """The four victims, and what was started on the engine."""

    def __init__(self, folder: Path) -> None:
        self.arms = folder / "arms"
        self.arms.mkdir()
        self.deployment: Deployment = make_deployment(folder)
        self.network = Network(self.deployment.port)
        home = folder / "home"
        self.home = home
        hooked = [sys.executable, "-m", "tests.delivery.hooked", str(self.arms)]
        environ = self.deployment.environ()
        self.engine = CountingEngine(folder)
        self.server = Process(
            [*hooked, "server"], log=folder / "server.log", environ=environ,
            is_ready=self._server_answers,
        )  # fmt: skip
        self.agent = Process(
            [*hooked, "agent", "run", "--data-dir", str(home)], log=folder / "agent.log",
            environ=environ, is_ready=lambda: True,
        )  # fmt: skip

    def start(self) -> Portal:
        """Start everything; return Bob's view of the portal."""
        self.engine.start()
        self.server.start()
        enroll(self.deployment, self.home, "gpu-1")
        (self.home / "agent.toml").write_text(
            f'portal_urls = ["http://127.0.0.1:{self.network.port}"]\ndata_dir = "{self.home}"\n'
            f'{QUICK}executor = "docker"\ndocker_url = "{self.engine.url}"\n'
        )
        self.agent.start()
        portal = Portal(self.deployment)
        portal.wait_for_appliance("docker")
        return portal

    def arm(self, step: str, moment: str) -> None:
        """Let the next process that comes to this step wait there."""
        for name in ("reached", "done"):
            (self.arms / name).unlink(missing_ok=True)
        partial = self.arms / "partial"
        partial.write_text(f"{step} {moment}")
        partial.rename(self.arms / "armed")

    def strike(self, victim: str, *, is_over: Event) -> None:
        """Wait until the armed step is reached, kill the victim, and bring it back."""
        while not (self.arms / "reached").exists():
            if is_over.wait(0.01):
                return
        if victim == "network":
            self.network.cut()
        else:
            self._process(victim).kill()
        (self.arms / "done").touch()
        time.sleep(OUTAGE_SECONDS)
        if victim == "network":
            self.network.mend()
        else:
            self._process(victim).start()

    @property
    def was_reached(self) -> bool:
        """Return whether the armed step was reached."""
        return (self.arms / "reached").exists()

    def starts_of(self, job_id: str) -> list[str]:
        """Return the attempts' ids of all starts of the job's containers."""
        return [
            start["VEDETTE_ATTEMPT_ID"]
            for start in self.engine.starts()
            if start.get("VEDETTE_JOB_ID") == job_id
        ]

    def close(self) -> None:
        """End everything."""
        (self.arms / "done").touch()
        self.agent.kill(signal.SIGTERM)
        self.server.kill(signal.SIGTERM)
        self.network.cut()
        self.engine.close()

    def _process(self, victim: str) -> Process:
        return {"portal": self.server, "agent": self.agent, "engine": self.engine.dockerd}[victim]

    def _server_answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.deployment.port)) == 0


@contextmanager
def running_world(folder: Path) -> Iterator[tuple[World, Portal]]:
    """Run a world for the length of the block."""
    skip_unless_installed()
    world = World(folder)
    try:
        yield world, world.start()
    finally:
        world.close()
