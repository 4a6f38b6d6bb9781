"""The data folder: the identity from enrollment, the lock of the running agent, and JSON files."""

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from collector.errors import AlreadyRunningError, EnrollmentError
from core.atomic_files import replace_file
from core.private_files import make_private

log = logging.getLogger(__name__)

T = TypeVar("T")

IDENTITY_NAME = "identity.json"
LOCK_NAME = "agent.lock"
RESULTS_NAME = "results"
"""The folder with the output folders of attempts, which containers of any user write to."""
LAUNCHERS_NAME = "launchers"
"""The folder with the files of members of gangs, which containers of any user read."""
# What jobs mount.
SHARED_NAMES = frozenset({"datasets", RESULTS_NAME, LAUNCHERS_NAME})
LOCK_TIMEOUT_SECONDS = 10.0
LOCK_RETRY_SECONDS = 0.2


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that the portal issued at enrollment; `agent_token` is a secret."""

    appliance_id: str
    tenant_id: str
    agent_token: str


def load_identity(data_dir: Path) -> Identity | None:
    """Return the stored identity; None if this appliance was never enrolled.

    Raises:
        EnrollmentError: the file exists but can't be read.
    """
    path = data_dir / IDENTITY_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise EnrollmentError(f"Can't read {path}: {error}. Remove it and enroll again.") from error


def save_identity(data_dir: Path, identity: Identity) -> Path:
    """Store the identity, readable by the agent's user only; return the file.

    Raises:
        EnrollmentError: the data folder isn't writable.
    """
    path = data_dir / IDENTITY_NAME
    try:
        replace_file(path, msgspec.json.encode(identity))
    except OSError as error:
        raise EnrollmentError(f"Can't write {path}: {error.strerror}") from error
    return path


def require_writable(data_dir: Path) -> None:
    """Create the data folder if it is missing, and check that only this user can write to it.

    Raises:
        EnrollmentError: it isn't.
    """
    try:
        make_private(data_dir, shared=SHARED_NAMES)
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        raise EnrollmentError(
            f"Can't write to the data folder {data_dir}: {error.strerror}. Run this command as the "
            "agent's user, or choose another folder with --data-dir."
        ) from error


def secure_data_dir(data_dir: Path) -> None:
    """Take the data folder and all in it from other users; log a warning if that fails."""
    try:
        make_private(data_dir, shared=SHARED_NAMES)
    except OSError as error:
        log.warning("other users may read the data folder %s: %s", data_dir, error.strerror)


def load_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a state file; None if there is none, or if it can't be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("can't read %s, starting without it: %s", path, error)
        return None


def save_json(path: Path, value: object) -> bool:
    """Write a state file; return False, and log a warning, if that fails."""
    try:
        replace_file(path, msgspec.json.encode(value))
    except OSError as error:
        log.warning("can't write %s: %s", path, error)
        return False
    return True


@contextmanager
def lock_data_dir(
    data_dir: Path, *, timeout_seconds: float = LOCK_TIMEOUT_SECONDS
) -> Iterator[None]:
    """Lock the data folder: two agents on it would corrupt the buffer and be fenced as clones.

    Waits for an agent that is shutting down. The kernel releases the lock when the process ends.
    Where locking isn't possible (full disk, file system without locks) the agent runs without.

    Raises:
        AlreadyRunningError: another agent holds the lock.
    """
    path = data_dir / LOCK_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("can't open %s, running without a lock: %s", path, error.strerror)
        yield
        return
    try:
        _acquire(descriptor, path, deadline=time.monotonic() + timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, *, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise AlreadyRunningError(
                    f"Another agent (process {pid}) is already running on {path.parent}. Stop it "
                    "first, or enroll this one in another data folder."
                ) from error
        except OSError as error:
            log.warning("can't lock %s, running without a lock: %s", path, error.strerror)
            return
        time.sleep(LOCK_RETRY_SECONDS)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # a full disk: the lock works without the process id
        log.debug("can't write %s: %s", path, error)
