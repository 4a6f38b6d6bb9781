"""The processes of a benchmark: started on free ports, waited for, ended by their pid."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

STOP_SECONDS = 20.0
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
ROOT = Path(__file__).resolve().parent.parent


class BenchmarkError(Exception):
    """A benchmark can't go on; the message says what is missing and what to do."""


@contextmanager
def running(
    argv: Sequence[str], *, log_path: Path, environ: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run a process for the length of the block and give its pid; then end it."""
    with log_path.open("ab") as log_file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            cwd=ROOT,
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended(pid: int) -> bool:
    """Return whether a child process has ended; it is still there to be waited for."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return status is not None


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the interpreter in use."""
    return [sys.executable, "-m", module, *arguments]


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_program(name: str, *, package: str) -> str:
    """Return the program's path.

    Raises:
        BenchmarkError: it is not installed; names the Debian package.
    """
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        raise BenchmarkError(f"{name} is missing: install the Debian package {package}.")
    return path


def wait_until(is_true: Callable[[], bool], *, what: str, log_path: Path | None = None) -> None:
    """Return as soon as a question is answered with yes.

    Raises:
        BenchmarkError: it was not within a minute; shows the end of the log.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            end = log_path.read_text(errors="replace")[-2000:] if log_path else ""
            raise BenchmarkError(f"waited {READY_SECONDS:.0f} s for {what}. {end}")
        time.sleep(POLL_SECONDS)


def answers(url: str) -> bool:
    """Return whether a server answers a GET with success."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except (urllib.error.URLError, OSError):
        return False


def replies(url: str) -> bool:
    """Return whether a server answers a GET with any success, such as 204."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as reply:
            return bool(HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES)
    except (urllib.error.URLError, OSError):
        return False


def get_json(url: str) -> Any:  # noqa: ANN401 - whatever the server says
    """Return what a server says, decoded."""
    with urllib.request.urlopen(url, timeout=10.0) as reply:
        return json.load(reply)
