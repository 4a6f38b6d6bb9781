"""Output of pods: copied from a stream that stays open while a pod runs.

The API gives output of the last seconds, not from a byte on. Every line has its time, so the
*cursor* is the last time and how many lines came from the beginning of its second on: these are
skipped when a stream is opened again, and nothing is copied twice or lost. Once the kubelet has
rotated a file, what only that one had is gone, and the first line with a later time shows it.

Source: Kubernetes API reference, "read log of the specified Pod"; the kubelet's
`kuberuntime/logs/logs.go`.
"""

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event, Thread

import urllib3

from jobqueue.executors.base import ExecutorError, NotFoundError
from jobqueue.executors.kubernetes.quantities import time_ns
from protocol.logs import Stream, record

log = logging.getLogger(__name__)

SECOND_NS = 1_000_000_000
CHUNK_BYTES = 64 * 1024
# A longer line is copied in parts.
PART_BYTES = 16 * 1024
LONGEST_TIME_BYTES = 40
AGAIN_SECONDS = 1.0


class LogReader:
    """Turns what the API gives into records, from a cursor on.

    The cursor is `at_ns`, `lines` and `part_bytes` (copied of an unfinished line) of `cursor`,
    which is changed as records are taken.
    """

    def __init__(self, cursor: MutableMapping[str, int]) -> None:
        self._cursor = cursor
        self._from_second = cursor.get("at_ns", 0) // SECOND_NS
        self._skipped_lines = cursor.get("lines", 0)
        self._skipped_bytes = cursor.get("part_bytes", 0)
        self._buffer = b""
        # The time of the line that is being read; None at its beginning, "" of one to leave out.
        self._at: str | None = None
        # The cursor once the line that is being read has been taken.
        self._next: dict[str, int] = {}

    @property
    def since_seconds(self) -> int:
        """The second to read from; 0 is the beginning."""
        return self._from_second

    def feed(self, data: bytes) -> bytes:
        """Return the records that are complete with more of the stream."""
        self._buffer += data
        return b"".join(self._records())

    def end(self) -> bytes:
        """Return the rest: the last line may have no end."""
        text, self._buffer = self._buffer, b""
        return self._part(text) if self._at and text else b""

    def _records(self) -> Iterator[bytes]:
        while self._buffer:
            if self._at is None and not self._begin_line():
                return
            end = self._buffer.find(b"\n") + 1
            if not end and len(self._buffer) < PART_BYTES:
                return
            text = self._buffer[: min(end or PART_BYTES, PART_BYTES)]
            self._buffer = self._buffer[len(text) :]
            if self._at:
                yield self._part(text)
            if text.endswith(b"\n"):
                self._at = None

    def _begin_line(self) -> bool:
        """Read the time of a line; return whether it was there."""
        head, space, _ = self._buffer[:LONGEST_TIME_BYTES].partition(b" ")
        if not space and b"\n" not in head and len(head) < LONGEST_TIME_BYTES:
            return False
        at_ns = time_ns(head.decode(errors="replace")) if space else None
        if at_ns is None:
            self._at = ""  # words of the kubelet, not output
            return True
        self._buffer = self._buffer[len(head) + 1 :]
        self._at = _utc(at_ns) if self._count(at_ns) else ""
        return True

    def _count(self, at_ns: int) -> bool:
        """Move the cursor to a line; return whether it is new."""
        last_ns = self._cursor.get("at_ns", 0)
        if at_ns // SECOND_NS < self._from_second:
            return False
        is_open = self._skipped_bytes > 0
        if self._skipped_lines and at_ns <= last_ns:
            self._skipped_lines -= 1
            # The last one was copied in part.
            return is_open and not self._skipped_lines
        self._skipped_lines = self._skipped_bytes = 0
        second, last_second = at_ns // SECOND_NS, last_ns // SECOND_NS
        lines = 0 if second > last_second else self._cursor.get("lines", 0)
        # Lines of both streams may be out of order: what is before that second is not given again.
        is_given = second >= last_second
        self._next = {
            "at_ns": max(at_ns, last_ns),
            "lines": lines + 1 if is_given else lines,
            "part_bytes": 0,
        }
        return True

    def _part(self, text: bytes) -> bytes:
        self._cursor.update(self._next)
        self._next = {}
        is_end = text.endswith(b"\n")
        fresh = text[self._skipped_bytes :]
        self._skipped_bytes -= len(text) - len(fresh)
        copied_bytes = self._cursor.get("part_bytes", 0) + len(fresh)
        self._cursor["part_bytes"] = 0 if is_end else copied_bytes
        if is_end:
            self._skipped_bytes = 0
        if not fresh or self._at is None:
            return b""
        return record(self._at.encode(), Stream.STDOUT, fresh)


def _utc(at_ns: int) -> str:
    second = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return f"{second:%Y-%m-%dT%H:%M:%S}.{at_ns % SECOND_NS:09d}Z"


class Follower(Thread):
    """Copies the output of a pod until its container has ended.

    `copy` copies one stream and returns whether there can be more; it is called again until then.
    """

    def __init__(self, name: str, copy: Callable[["Follower"], bool]) -> None:
        super().__init__(name=f"follow-{name}", daemon=True)
        self._copy = copy
        self._stopping = Event()
        self._response: urllib3.BaseHTTPResponse | None = None

    @property
    def is_stopping(self) -> bool:
        """Return whether nothing more is wanted."""
        return self._stopping.is_set()

    def watch(self, response: urllib3.BaseHTTPResponse | None) -> None:
        """Note the stream that `stop` ends."""
        self._response = response
        if self._stopping.is_set():
            self._shut()

    def stop(self) -> None:
        """End the stream; does not wait."""
        self._stopping.set()
        self._shut()

    def run(self) -> None:
        """Copy one stream after the other."""
        while not self._stopping.is_set():
            try:
                if not self._copy(self):
                    return
            except NotFoundError:
                return
            except (ExecutorError, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                log.debug("the output stream of %s failed: %s", self.name, error)
            self._stopping.wait(AGAIN_SECONDS)

    def _shut(self) -> None:
        if isinstance(self._response, urllib3.HTTPResponse):
            # Raised if the stream ended at the same moment.
            with suppress(OSError, RuntimeError, ValueError):
                self._response.shutdown()
