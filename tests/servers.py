"""Helpers for real servers in tests: free ports, processes that are ended.

A test that needs a server of a Debian package asks `require_program`: without the package it is
skipped, and the skip names the package (the gate refuses such skips).
"""

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.command_forks import fork_command, is_forkable

STOP_SECONDS = 60
# Below those that the kernel hands to clients: one of them could take the port before its server.
# Each worker of pytest has its own, as a server may take minutes from its choice to its start.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
PORTS = range(10_000 + _WORKER % _WORKERS, 16_000, _WORKERS)
_ports = itertools.cycle(random.sample(PORTS, len(PORTS)))


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on, and none of the last ones."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError  # a cycle never ends


def require_program(name: str, *, package: str) -> str:
    """Return the program's path, or skip the test naming the Debian package that has it."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is missing: install the Debian package {package}")
    return path


def require_root(reason: str) -> None:
    """Skip the test of a user who is not root; mark such tests with `needs_root`."""
    if os.geteuid() != 0:
        pytest.skip(f"needs root: it {reason}")


@contextmanager
def running(
    argv: Sequence[str], *, log_path: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for the length of the block, then end it by its pid.

    `vedette` commands are forks of a process that has imported them.
    """
    with log_path.open("ab") as log_file:
        if is_forkable(argv, environ):
            file = log_file.fileno()
            process: subprocess.Popen[bytes] = fork_command(
                argv, stdout=file, stderr=file, environ=environ
            )
        else:
            process = subprocess.Popen(
                argv,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environ,
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
