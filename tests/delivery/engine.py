"""dockerd and containerd, which can be killed; every start of a container is counted."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.docker_engine import (
    ENGINE_FLAGS,
    answers,
    dockerd,
    import_image,
    remove_containers,
)
from tests.fixtures.polling import eventually
from tests.servers import require_program

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


class Process:
    """A process that is killed with SIGKILL and started again.

    Args:
        argv: its command.
        log: where its output goes.
        environ: its environment.
        is_ready: whether it does its work.
    """

    def __init__(
        self, argv: list[str], *, log: Path, environ: dict[str, str], is_ready: Callable[[], bool]
    ) -> None:
        self.log, self.environ = log, environ
        self._argv, self._is_ready = argv, is_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def launch(self) -> None:
        """Start it. It leads a group of its own, of itself and its children."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environ,
                start_new_session=True,
            )

    def restart_if_ended(self) -> None:
        """Start it again if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.launch()

    def wait(self) -> None:
        """Wait until it is ready."""
        eventually(self._is_ready, within_seconds=100, what=f"{self._argv} to be ready")

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait()

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """End it, by force if it has not ended after a minute."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def kill_group(self) -> None:
        """Kill it and its children at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=60)
            self._process = None


class CountingEngine:
    """dockerd and containerd as two processes, as on Debian, and what was started on them."""

    def __init__(self, log_folder: Path) -> None:
        # Pytest's folder is too long: a socket's path may have 108 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="vedette-engine-"))
        self._starts = self._folder / "starts"
        self.url = f"unix://{self._folder / 'engine.sock'}"
        self.containerd = Process(
            self._containerd_argv(), log=log_folder / "containerd.log", environ=dict(os.environ),
            is_ready=lambda: _listens(self._folder / "containerd.sock"),
        )  # fmt: skip
        self.dockerd = Process(
            self._engine_argv(), log=log_folder / "engine.log", environ=dict(os.environ),
            is_ready=lambda: answers(self.url),
        )  # fmt: skip

    def start(self) -> None:
        """Start both, and import the image of the jobs."""
        self.containerd.start()
        self.dockerd.start()
        import_image(self.url)

    def starts(self) -> list[dict[str, str]]:
        """Return the ids of job and attempt of each start of a container."""
        lines = self._starts.read_text().splitlines() if self._starts.exists() else []
        return [dict(part.split("=") for part in line.split()) for line in lines]

    def close(self) -> None:
        """Remove all containers, end both, and remove their folder."""
        remove_containers(self.url)
        self.dockerd.kill(signal.SIGTERM)
        self.containerd.kill(signal.SIGTERM)
        _unmount(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _engine_argv(self) -> list[str]:
        folder = self._folder
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
            f"--host={self.url}",
            f"--add-runtime=counting={runtime}",
            "--default-runtime=counting",
            "--live-restore",
            "--bridge=none",
            *ENGINE_FLAGS,
        ]

    def _containerd_argv(self) -> list[str]:
        folder = self._folder
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
