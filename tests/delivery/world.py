"""A portal, an agent, an engine and the network between them, each of which can be killed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread

from tests.deployment import Deployment, make_deployment
from tests.fixtures.docker_engine import (
    ENGINE_FLAGS,
    answers,
    dockerd,
    import_image,
    remove_containers,
    skip_unless_installed,
)
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import QUICK, Portal, enroll
from tests.servers import free_port, require_program

OUTAGE_SECONDS = 1.0
# Notes each start of a container, whoever asked for it, and survives all victims.
RUNTIME = """#!/bin/sh
is_create= bundle= previous=
for argument in "$@"; do
  [ "$previous" = --bundle ] && bundle=$argument
  [ "$argument" = create ] && is_create=1
  previous=$argument
done
if [ -n "$is_create" ]; then
  line=$(grep -o 'VEDETTE_[A-Z]*_ID=[0-9a-f-]*' "$bundle/config.json" | sort | tr '\\n' ' ')
  echo "$line" >> "{starts}"
fi
exec {runc} "$@"
"""


CONTAINERD = """
version = 2
root = "{folder}/containerd-root"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/containerd.sock"
"""


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

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            is_first = source in self._open
            self._open -= {source, sink}
        if is_first:
            source.close()
            sink.close()


class Process:
    """A process that is killed with SIGKILL and started again."""

    def __init__(
        self, argv: list[str], *, log: Path, environ: dict[str, str], is_ready: Callable[[], bool]
    ) -> None:
        self._argv, self._log, self._environ, self._is_ready = argv, log, environ, is_ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdout=log, stderr=subprocess.STDOUT, env=self._environ
            )
        eventually(self._is_ready, within_seconds=100, what=f"{self._argv} to be ready")

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(timeout=60)
            self._process = None


class World:
    """The four victims, and what was started on the engine."""

    def __init__(self, folder: Path, engine_folder: Path) -> None:
        self._engine_folder = engine_folder
        self.arms = folder / "arms"
        self.arms.mkdir()
        self._starts = engine_folder / "starts"
        self.deployment: Deployment = make_deployment(folder)
        self.network = Network(self.deployment.port)
        self.docker_url = f"unix://{engine_folder / 'engine.sock'}"
        home = folder / "home"
        self.home = home
        hooked = [sys.executable, "-m", "tests.delivery.hooked", str(self.arms)]
        environ = self.deployment.environ()
        # On Debian, containerd is a service of its own, which survives the engine.
        self._containerd = Process(
            self._containerd_argv(), log=folder / "containerd.log", environ=dict(os.environ),
            is_ready=lambda: _listens(engine_folder / "containerd.sock"),
        )  # fmt: skip
        self.engine = Process(
            self._engine_argv(), log=folder / "engine.log", environ=dict(os.environ),
            is_ready=lambda: answers(self.docker_url),
        )  # fmt: skip
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
        self._containerd.start()
        self.engine.start()
        import_image(self.docker_url)
        self.server.start()
        enroll(self.deployment, self.home, "gpu-1")
        (self.home / "agent.toml").write_text(
            f'portal_urls = ["http://127.0.0.1:{self.network.port}"]\ndata_dir = "{self.home}"\n'
            f'{QUICK}executor = "docker"\ndocker_url = "{self.docker_url}"\n'
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
        lines = self._starts.read_text().splitlines() if self._starts.exists() else []
        environments = [dict(part.split("=") for part in line.split()) for line in lines]
        return [
            environment["VEDETTE_ATTEMPT_ID"]
            for environment in environments
            if environment.get("VEDETTE_JOB_ID") == job_id
        ]

    def close(self) -> None:
        """End everything."""
        (self.arms / "done").touch()
        self.agent.kill(signal.SIGTERM)
        self.server.kill(signal.SIGTERM)
        self.network.cut()
        remove_containers(self.docker_url)
        self.engine.kill(signal.SIGTERM)
        self._containerd.kill(signal.SIGTERM)

    def _process(self, victim: str) -> Process:
        return {"portal": self.server, "agent": self.agent, "engine": self.engine}[victim]

    def _server_answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.deployment.port)) == 0

    def _engine_argv(self) -> list[str]:
        folder = self._engine_folder
        runtime = folder / "runtime"
        runc = require_program("runc", package="docker.io")
        script = RUNTIME.replace("{starts}", str(self._starts)).replace("{runc}", runc)
        runtime.write_text(script)
        runtime.chmod(0o755)
        return [
            dockerd() or "",
            f"--data-root={folder / 'data'}",
            f"--exec-root={folder / 'exec'}",
            f"--pidfile={folder / 'engine.pid'}",
            f"--containerd={folder / 'containerd.sock'}",
            f"--host={self.docker_url}",
            f"--add-runtime=counting={runtime}",
            "--default-runtime=counting",
            "--live-restore",
            "--bridge=none",
            *ENGINE_FLAGS,
        ]

    def _containerd_argv(self) -> list[str]:
        folder = self._engine_folder
        config = folder / "containerd.toml"
        config.write_text(CONTAINERD.format(folder=folder))
        program = require_program("containerd", package="docker.io")
        return [program, "--config", str(config), "--log-level", "warn"]


def _unmount(folder: Path) -> None:
    """Unmount what an engine that was killed has left mounted."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((path for path in mounts if path.startswith(str(folder))), reverse=True):
        subprocess.run(["/bin/umount", mount], check=False)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextmanager
def running_world(folder: Path) -> Iterator[tuple[World, Portal]]:
    """Run a world for the length of the block."""
    skip_unless_installed()
    # Pytest's folder is too long: a socket's path may have 108 characters.
    engine_folder = Path(tempfile.mkdtemp(prefix="vedette-delivery-"))
    world = World(folder, engine_folder)
    try:
        yield world, world.start()
    finally:
        world.close()
        _unmount(engine_folder)
        shutil.rmtree(engine_folder, ignore_errors=True)
