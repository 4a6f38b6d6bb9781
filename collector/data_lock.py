"""One agent to a data folder: two would write into each other's buffer, and be fenced as clones."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.errors import AlreadyRunningError

log = logging.getLogger(__name__)

FILE_NAME = "agent.lock"
WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.2


@contextmanager
def sole_agent(data_dir: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the folder for the length of the block; the kernel lets go of it with the process.

    An agent that is about to end is waited for. Where no lock can be had, as on a full disk or a
    file system without locks, the agent runs without one.

    Raises:
        AlreadyRunningError: another agent holds it.
    """
    path = data_dir / FILE_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("%s can't be opened, running without a lock: %s", path, error.strerror)
        yield
        return
    try:
        _take(descriptor, path, give_up_at=time.monotonic() + wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, *, give_up_at: float) -> None:
    try:
        while not _is_taken(descriptor, is_last_try=time.monotonic() >= give_up_at):
            time.sleep(LOOK_SECONDS)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        raise AlreadyRunningError(
            f"An agent runs on {path.parent} already (process {holder}). Stop it first, or give "
            "this one a data folder and an enrolment of its own."
        ) from error
    except OSError as error:
        log.warning("%s can't be locked, running without a lock: %s", path, error.strerror)
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # a full disk: the lock holds without the note
        log.debug("%s can't be written: %s", path, error)


def _is_taken(descriptor: int, *, is_last_try: bool) -> bool:
    """Try once; who holds it is an error at the last try only."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if is_last_try:
            raise
        return False
    return True
