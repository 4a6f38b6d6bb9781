"""The MPS control daemons of this appliance: one for each GPU that MPS shares.

A daemon is ours by its pipe directory, which is in our folder: so the agent finds those that an
earlier run started. Its *server* starts with the first client, as the client's user, and so that
folder must be open to all users. The daemons live on when the agent ends.

Source: NVIDIA's Multi-Process Service documentation; the manual page nvidia-cuda-mps-control(1).
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from collector.gpu_slices.base import SliceError
from collector.gpu_slices.compute_mode import switch_compute_mode

log = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_NAMES = ("control.log", "server.log")
MAX_LOG_BYTES = 4 * 2**20
READ_BYTES = 256 * 1024
# The kernel's limit for the address of a Unix socket, and the daemon's longest.
MAX_SOCKET_PATH = 107
LONGEST_SOCKET = "control_privileged"
COMMAND_SECONDS = 10
QUIT_SECONDS = 5
KILL_SECONDS = 5
POLL_SECONDS = 0.05


class MPSControl(Protocol):
    """Starts and ends control daemons, and reads what their servers do.

    Attributes:
        problem: why MPS does not work here; "" if it does.
    """

    problem: str

    def running(self) -> set[str]:
        """Return the GPUs whose daemon runs."""

    def start(self, gpu_uuid: str) -> None:
        """Start the daemon of a GPU.

        Raises:
            SliceError: it does not start.
        """

    def end(self, gpu_uuid: str) -> None:
        """End the daemon of a GPU and its servers; nothing if none runs.

        Raises:
            SliceError: they don't end.
        """

    def pipe_dir(self, gpu_uuid: str) -> Path:
        """Return the folder that clients need."""

    def compute_mode(self, gpu_uuid: str, mode: int | None = None) -> int:
        """Set the compute mode of a GPU, if there is one to set; return that of before.

        Raises:
            SliceError: the driver refuses.
        """

    def new_log_lines(self, gpu_uuid: str) -> list[str]:
        """Return the lines of the daemon's and the servers' logs since the last call."""

    def clients(self, gpu_uuid: str) -> tuple[list[int], bool]:
        """Return the processes that use the GPU through its servers, and whether one has faulted.

        A server that has faulted waits for its clients to end.
        """


class ControlDaemons:
    """The daemons of this host. For one thread.

    Args:
        folder: theirs, open to all users.
        program: the control program, by default that in PATH.
        proc: where `/proc` is.
        is_root: whether this process may serve all users.
        switch_mode: sets compute modes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: str = PROGRAM,
        proc: Path = Path("/proc"),
        is_root: bool = os.geteuid() == 0,
        switch_mode: Callable[[str, int | None], int] = switch_compute_mode,
    ) -> None:
        self._folder = folder
        self._program = shutil.which(program) or ""
        self._proc = proc
        self._switch_mode = switch_mode
        self._pids: dict[str, int] | None = None
        self._offsets: dict[Path, int] = {}
        self.problem = _problem(self._program, program, is_root=is_root)

    def running(self) -> set[str]:
        """Return the GPUs whose daemon runs."""
        pids = self._pids
        if pids is None or any(not self._is_ours(gpu, pid) for gpu, pid in pids.items()):
            self._pids = pids = self._find(PROGRAM)
        return set(pids)

    def start(self, gpu_uuid: str) -> None:
        """Start the daemon of a GPU, with new logs."""
        if gpu_uuid in self.running():
            return
        pipe_dir = self.pipe_dir(gpu_uuid)
        longest = len(os.fsencode(pipe_dir / LONGEST_SOCKET))
        if longest > MAX_SOCKET_PATH:
            excess = longest - MAX_SOCKET_PATH
            raise SliceError(f"Set `mps_dir` in agent.toml to a path shorter by {excess} bytes.")
        try:
            for folder in (self._folder, pipe_dir.parent, pipe_dir, self._log_dir(gpu_uuid)):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o755)
            for name in LOG_NAMES:
                (self._log_dir(gpu_uuid) / name).unlink(missing_ok=True)
        except OSError as error:
            raise SliceError(f"MPS can't write to {self._folder}: {error.strerror}.") from error
        output = self._call(gpu_uuid, "-d", text="")[1]
        self._pids = self._find(PROGRAM)
        if gpu_uuid not in self._pids:
            raise SliceError(f"The MPS control daemon of {gpu_uuid} does not start: {output}")
        log.info("started the MPS control daemon of %s", gpu_uuid)

    def end(self, gpu_uuid: str) -> None:
        """Ask the daemon to quit, and kill it with its servers if it does not."""
        if gpu_uuid in self.running():
            self._call(gpu_uuid, text=f"quit -t {QUIT_SECONDS}")
            log.info("ended the MPS control daemon of %s", gpu_uuid)
        for name in (PROGRAM, SERVER_PROGRAM):
            self._kill(gpu_uuid, name)
        self._pids = None

    def pipe_dir(self, gpu_uuid: str) -> Path:
        """Return the folder of the daemon's sockets."""
        return self._folder / gpu_uuid / "pipe"

    def compute_mode(self, gpu_uuid: str, mode: int | None = None) -> int:
        """Set the compute mode of a GPU over NVML; return that of before."""
        return self._switch_mode(gpu_uuid, mode)

    def new_log_lines(self, gpu_uuid: str) -> list[str]:
        """Return new lines, the daemon's before the servers'; a log that is too long is cut."""
        paths = [self._log_dir(gpu_uuid) / name for name in LOG_NAMES]
        return [line for path in paths for line in self._new_lines(path)]

    def clients(self, gpu_uuid: str) -> tuple[list[int], bool]:
        """Return the clients that the servers list; older drivers don't know their status."""
        servers = self._call(gpu_uuid, text="get_server_list")[1].split()
        numbers = [word for word in servers if word.isdigit()]
        if not numbers:
            return [], False
        text = "\n".join(f"get_client_list {pid}\nget_server_status {pid}" for pid in numbers)
        words = self._call(gpu_uuid, text=text)[1].split()
        return [int(word) for word in words if word.isdigit()], "FAULT" in words

    def _call(self, gpu_uuid: str, *words: str, text: str) -> tuple[int, str]:
        """Run the control program with a command as its input; return its status and output."""
        environ = {
            **os.environ,
            PIPE_VARIABLE: str(self.pipe_dir(gpu_uuid)),
            "CUDA_MPS_LOG_DIRECTORY": str(self._log_dir(gpu_uuid)),
            "CUDA_VISIBLE_DEVICES": gpu_uuid,
        }
        # A file, because a daemon that inherits a pipe would hold it open.
        with tempfile.TemporaryFile("w+") as output:
            try:
                status = subprocess.run(  # noqa: S603 - the driver's own program
                    [self._program, *words],
                    input=f"{text}\n",
                    text=True,
                    stdout=output,
                    stderr=output,
                    env=environ,
                    cwd="/",
                    umask=0o022,
                    start_new_session=True,
                    timeout=COMMAND_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return 1, f"{PROGRAM} did not answer within {COMMAND_SECONDS} s"
            except OSError as error:
                return 1, f"{self._program}: {error.strerror}"
            output.seek(0)
            return status, output.read().strip()

    def _log_dir(self, gpu_uuid: str) -> Path:
        return self._folder / gpu_uuid / "log"

    def _new_lines(self, path: Path) -> list[str]:
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                offset = max(offset, size - READ_BYTES) if size >= offset else 0
                file.seek(offset)
                data = file.read(READ_BYTES)
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            if size > MAX_LOG_BYTES:
                os.truncate(path, 0)
        except OSError:
            return []
        return whole.decode(errors="replace").splitlines()

    def _kill(self, gpu_uuid: str, name: str) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        number = signal.SIGTERM
        while pid := self._find(name).get(gpu_uuid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
            if time.monotonic() > deadline:
                raise SliceError(f"{name} of {gpu_uuid}, process {pid}, does not end.")
            time.sleep(POLL_SECONDS)
            number = signal.SIGKILL if time.monotonic() > deadline - KILL_SECONDS / 2 else number

    def _find(self, name: str) -> dict[str, int]:
        """Return the processes of a program whose pipe directory is one of ours, by GPU."""
        return {gpu: pid for gpu, pid in self._candidates() if self._is_ours(gpu, pid, name)}

    def _candidates(self) -> Iterator[tuple[str, int]]:
        prefix = f"{PIPE_VARIABLE}={self._folder}/".encode()
        for entry in self._proc.iterdir():
            if entry.name.isdigit() and b"nvidia-cuda-mps" in _read(entry / "cmdline"):
                for variable in _read(entry / "environ").split(b"\0"):
                    if variable.startswith(prefix):
                        yield os.fsdecode(variable[len(prefix) :]).split("/")[0], int(entry.name)

    def _is_ours(self, gpu_uuid: str, pid: int, name: str = PROGRAM) -> bool:
        folder = self._proc / str(pid)
        words = [Path(os.fsdecode(word)).name for word in _read(folder / "cmdline").split(b"\0")]
        # Without -d it is a command to a daemon.
        is_program = name in words and (name != PROGRAM or "-d" in words)
        variable = f"{PIPE_VARIABLE}={self.pipe_dir(gpu_uuid)}".encode()
        is_with_us = variable in _read(folder / "environ").split(b"\0")
        return is_program and is_with_us and _namespace(folder) == _namespace(self._proc / "self")


def _problem(program: str, name: str, *, is_root: bool) -> str:
    if not program:
        return (
            f"{name} is not installed on the appliance. Install it: it is in the driver's package "
            "nvidia-compute-utils, or nvidia-cuda-mps."
        )
    if not is_root:
        return (
            "The agent does not run as root, and so its MPS servers can't serve the users of "
            "containers. docs/gpu-slices.md has the lines for its service."
        )
    return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _namespace(process: Path) -> str:
    """Return the process namespace; that of a container is another."""
    try:
        return str((process / "ns" / "pid").readlink())
    except OSError:
        return ""
