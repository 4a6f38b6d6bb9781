"""Helpers for real servers in tests: free ports, waiting with a deadline, processes that are ended.

A test that needs a server of a Debian package asks `require_program`: without the package it is
skipped, and the skip names the package (the gate refuses such skips).
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
POLL_SECONDS = 0.05
STOP_SECONDS = 20


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(probe: Callable[[], T | None], *, seconds: float, what: str) -> T:
    """Return the first truthy answer of `probe`; fail after `seconds`, naming what was awaited."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s for {what}; last answer: {answer!r}")
        time.sleep(POLL_SECONDS)


def require_program(name: str, *, package: str) -> str:
    """Return the program's path, or skip the test naming the Debian package that has it."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is missing: install the Debian package {package}")
    return path


@contextmanager
def running(
    argv: Sequence[str], *, log_path: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for the length of the block, then end it by its pid."""
    with log_path.open("ab") as log_file:
        process = subprocess.Popen(
            argv, stdout=log_file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
