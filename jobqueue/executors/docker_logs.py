"""Containers' output, followed into one bounded file for each attempt.

The engine can't be asked for output from a byte offset, the portal asks for nothing else. A
follower copies a container's output into its *spool*. After a restart of the agent, or of the
container, the engine tells its output from the beginning; what the spool has already is skipped.
"""

import contextlib
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import requests
import urllib3
from docker.errors import DockerException

from jobqueue.executors.base import ExecutorError

log = logging.getLogger(__name__)

SPOOL_LIMIT_BYTES = 16 * 1024 * 1024
FOLLOW_AGAIN_SECONDS = 1.0
CUT_NOTICE = b"\n[The output is longer than the appliance keeps; the rest is left out.]\n"
CONNECT_SECONDS = 10
_FRAME_HEADER = struct.Struct(">4xL")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class LogSpool:
    """The spools of all attempts in one folder."""

    def __init__(self, folder: Path, *, limit_bytes: int = SPOOL_LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._followers: dict[str, _Follower] = {}
        self._lock = Lock()
        self._is_closed = False

    def follow(self, attempt_id: str, container: Any) -> None:  # noqa: ANN401 - untyped SDK object
        """Copy the container's output from now on; following twice is once."""
        with self._lock:
            if self._is_closed or attempt_id in self._followers:
                return
            follower = _Follower(container, self.path(attempt_id), limit_bytes=self._limit_bytes)
            follower.start()
            self._followers[attempt_id] = follower

    def is_complete(self, attempt_id: str) -> bool:
        """Return whether all the output of an ended container has been copied."""
        follower = self._followers.get(attempt_id)
        return follower is not None and follower.is_done

    def size_bytes(self, attempt_id: str) -> int:
        """Return how much output has been copied."""
        path = self.path(attempt_id)
        return path.stat().st_size if path.exists() else 0

    def read(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `offset`; nothing when there is no output yet."""
        try:
            with self.path(attempt_id).open("rb") as spool:
                spool.seek(offset)
                return spool.read(limit)
        except FileNotFoundError:
            return b""

    def mark_stopped(self, attempt_id: str) -> None:
        """Note that we asked the container to end, so that its exit code is no failure.

        Raises:
            ExecutorError: the note can't be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.path(attempt_id, ".stop").touch()
        except OSError as error:
            raise ExecutorError(f"{self._folder} can't be written: {error}") from error

    def is_marked_stopped(self, attempt_id: str) -> bool:
        """Return whether we asked the container to end, be it before a restart of the agent."""
        return self.path(attempt_id, ".stop").exists()

    def remove(self, attempt_id: str) -> None:
        """Stop following and delete the spool."""
        with self._lock:
            follower = self._followers.pop(attempt_id, None)
        if follower is not None:
            follower.stop()
        self.path(attempt_id).unlink(missing_ok=True)
        self.path(attempt_id, ".stop").unlink(missing_ok=True)

    def close(self) -> None:
        """Stop following; the spools stay."""
        with self._lock:
            self._is_closed = True
            followers = list(self._followers.values())
        for follower in followers:
            follower.stop()

    def path(self, attempt_id: str, suffix: str = ".log") -> Path:
        """Return the file of an attempt.

        Raises:
            ExecutorError: the id is not fit for a file name.
        """
        if not _SAFE_NAME.fullmatch(attempt_id):
            raise ExecutorError(f"{attempt_id!r} is not an attempt id")
        return self._folder / f"{attempt_id}{suffix}"


class _Follower:
    """Copies one container's output until the container has ended for good."""

    def __init__(self, container: Any, path: Path, *, limit_bytes: int) -> None:  # noqa: ANN401
        self._container = container
        self._path = path
        self._limit_bytes = limit_bytes
        self._response: requests.Response | None = None
        self._stopping = Event()
        self._lock = Lock()
        self._thread = Thread(target=self._run, name=f"follow-{path.stem}", daemon=True)
        self.is_done = False

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def stop(self) -> None:
        """End the copying and wait for the thread."""
        with self._lock:
            self._stopping.set()
            response = self._response
        if response is not None:
            # Raised when the stream came to its end by itself in this very moment.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                response.raw.shutdown()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._copy():
                self._stopping.wait(FOLLOW_AGAIN_SECONDS)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
        finally:
            self.is_done = True

    def _copy(self) -> bool:
        """Copy what is new; return whether there is no more to come."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._open_output() as response:
                with self._lock:
                    self._response = response
                    if self._stopping.is_set():
                        return True
                is_full = self._append(_output(response))
            self._container.reload()
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            log.debug("the output of %s broke off: %s", self._path.stem, error)
            return _is_gone(error)
        finally:
            with self._lock:
                self._response = None
        return is_full or self._container.status in {"exited", "dead", "removing"}

    def _open_output(self) -> requests.Response:
        """Ask for the output as it comes.

        Not through the SDK's `logs`: its stream can't be closed from another thread without
        leaving the socket open.
        """
        api = self._container.client.api
        response: requests.Response = api.get(
            f"{api.base_url}/v{api.api_version}/containers/{self._container.id}/logs",
            params={"follow": 1, "stdout": 1, "stderr": 1},
            stream=True,
            timeout=(CONNECT_SECONDS, None),
        )
        if not response.ok:
            response.close()
            response.raise_for_status()
        return response

    def _append(self, output: Iterator[bytes]) -> bool:
        """Append what the spool does not have yet; return whether the spool is full."""
        with self._path.open("ab", buffering=0) as spool:
            size = skip = spool.tell()
            if size >= self._limit_bytes:
                return True
            for chunk in output:
                fresh = chunk[skip:]
                skip = max(0, skip - len(chunk))
                kept = fresh[: self._limit_bytes - size]
                spool.write(kept)
                size += len(kept)
                if len(kept) < len(fresh):
                    spool.write(CUT_NOTICE)
                    return True
        return False


def _output(response: requests.Response) -> Iterator[bytes]:
    """Yield stdout and stderr in the order written, out of the engine's frames.

    Source: "Stream format" of the Docker Engine API, POST /containers/{id}/attach.
    """
    while len(header := response.raw.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
        (length,) = _FRAME_HEADER.unpack(header)
        yield response.raw.read(length)


def _is_gone(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return response is not None and response.status_code in {404, 409}
