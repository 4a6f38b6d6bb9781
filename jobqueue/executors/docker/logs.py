"""Containers' output, copied into one bounded file for each attempt, its *spool*.

A spool has the records of `protocol.logs`. The portal reads it by byte offset, which the engine
does not support. After a restart of the agent or the container, the engine returns the output from
the beginning; the follower skips what the spool already has.
"""

import contextlib
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import requests
import urllib3
from docker.errors import DockerException

from jobqueue.executors.base import ExecutorError
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES, TRUNCATION_NOTICE, safe_path
from protocol.attempts import StopReason
from protocol.logs import Stream, record

log = logging.getLogger(__name__)

FOLLOW_AGAIN_SECONDS = 1.0
CONNECT_SECONDS = 10
_FRAME_HEADER = struct.Struct(">B3xL")
_STDERR = 2


class LogSpool:
    """The spools of all attempts in one folder."""

    def __init__(self, folder: Path, *, limit_bytes: int = SPOOL_LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._followers: dict[str, _Follower] = {}
        self._lock = Lock()
        self._is_closed = False

    def follow(self, attempt_id: str, container: Any) -> None:  # noqa: ANN401 - untyped SDK object
        """Start copying the container's output, unless it is being copied.

        One that ended and was started again is followed again.
        """
        with self._lock:
            previous = self._followers.get(attempt_id)
            runs_again = previous is not None and previous.is_done and container.status == "running"
            is_full = self.size_bytes(attempt_id) >= self._limit_bytes
            if self._is_closed or (previous is not None and (is_full or not runs_again)):
                return
            follower = _Follower(container, self.path(attempt_id), limit_bytes=self._limit_bytes)
            follower.start()
            self._followers[attempt_id] = follower

    def is_complete(self, attempt_id: str) -> bool:
        """Return whether all output of an ended container has been copied."""
        follower = self._followers.get(attempt_id)
        return follower is not None and follower.is_done

    def size_bytes(self, attempt_id: str) -> int:
        """Return the size of the copied output."""
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

    def mark_stopped(self, attempt_id: str, reason: StopReason) -> None:
        """Record why the agent stops the container; the first reason stays."""
        if self.stop_reason(attempt_id) is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.path(attempt_id, ".stop").write_text(reason.value, encoding="ascii")
        except OSError as error:
            raise ExecutorError(f"{self._folder} can't be written: {error}") from error

    def stop_reason(self, attempt_id: str) -> StopReason | None:
        """Return why this agent stopped the container, in this run or an earlier one."""
        try:
            return StopReason(self.path(attempt_id, ".stop").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError:
            return StopReason.USER  # a mark that was being written at a power failure

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
        """Return the file of an attempt; raise `ExecutorError` for an invalid id."""
        return safe_path(self._folder, attempt_id, suffix)


class _Follower(Thread):
    """Copies one container's output until the container has ended."""

    def __init__(self, container: Any, path: Path, *, limit_bytes: int) -> None:  # noqa: ANN401
        super().__init__(name=f"follow-{path.stem}", daemon=True)
        self._container = container
        self._path = path
        self._limit_bytes = limit_bytes
        self._response: requests.Response | None = None
        self._stopping = Event()
        self._lock = Lock()
        self.is_done = False

    def stop(self) -> None:
        """Stop copying and wait for the thread."""
        with self._lock:
            self._stopping.set()
            response = self._response
        if response is not None:
            # Raised if the stream ended at the same moment.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                response.raw.shutdown()
        self.join(timeout=5)

    def run(self) -> None:
        """Copy until all output is copied."""
        try:
            while not self._stopping.is_set() and not self._copy():
                self._stopping.wait(FOLLOW_AGAIN_SECONDS)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
        finally:
            self.is_done = True

    def _copy(self) -> bool:
        """Copy new output; return whether it is complete."""
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
            log.debug("the output stream of %s failed: %s", self._path.stem, error)
            status = getattr(getattr(error, "response", None), "status_code", None)
            return status in {404, 409}  # the container was deleted
        finally:
            with self._lock:
                self._response = None
        return is_full or self._container.status in {"exited", "dead", "removing"}

    def _open_output(self) -> requests.Response:
        """Stream the output.

        Not through the SDK's `logs`: its stream can't be closed from another thread without
        leaving the socket open.
        """
        api = self._container.client.api
        response: requests.Response = api.get(
            f"{api.base_url}/v{api.api_version}/containers/{self._container.id}/logs",
            params={"follow": 1, "stdout": 1, "stderr": 1, "timestamps": 1},
            stream=True,
            timeout=(CONNECT_SECONDS, None),
        )
        if not response.ok:
            response.close()
            response.raise_for_status()
        return response

    def _append(self, output: Iterator[bytes]) -> bool:
        """Append new output; return whether the spool is full."""
        with self._path.open("ab", buffering=0) as spool:
            size = skip = spool.tell()
            if size >= self._limit_bytes:
                return True
            for chunk in output:
                fresh = chunk[skip:]
                skip = max(0, skip - len(chunk))
                part = fresh[: self._limit_bytes - size]
                spool.write(part)
                size += len(part)
                if len(part) < len(fresh):
                    spool.write(TRUNCATION_NOTICE)
                    return True
        return False


def _output(response: requests.Response) -> Iterator[bytes]:
    """Yield the records of stdout and stderr in order, from the engine's frames.

    Source: "Stream format" of the Docker Engine API, POST /containers/{id}/attach.
    """
    while len(header := response.raw.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
        source, length = _FRAME_HEADER.unpack(header)
        at, _, text = response.raw.read(length).partition(b" ")
        yield record(at, Stream.STDERR if source == _STDERR else Stream.STDOUT, text)
