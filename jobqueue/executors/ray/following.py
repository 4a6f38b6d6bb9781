"""Follows the output of jobs: a WebSocket for each, all of them in one thread.

Ray sends what is new as text, about once a second. A new connection gets the output from its
beginning: what the spool has already is skipped.
"""

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass, field
from threading import Lock, Thread
from urllib.parse import quote

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from jobqueue.executors.base import ExecutorError
from jobqueue.executors.ray.client import token_header
from jobqueue.executors.settings import RaySettings

log = logging.getLogger(__name__)

# Of all jobs together; the output of further ones comes when they have ended.
MAX_FOLLOWED = 500
BUFFER_BYTES = 256 * 1024
MAX_MESSAGE_BYTES = 4 * 2**20
PAUSE_SECONDS = 0.1
RETRY_SECONDS = 10.0
CLOSE_SECONDS = 5.0


@dataclass
class _Stream:
    """The connection of a job; `buffer` has what was not taken yet."""

    skip_bytes: int
    buffer: bytearray = field(default_factory=bytearray)
    task: asyncio.Future[None] | None = None
    ended_at: float | None = None


class Followers:
    """The connections of all jobs that are followed. Thread-safe."""

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/").replace("http", "ws", 1)
        self._ssl = (
            ssl.create_default_context(cafile=settings.ca_file)
            if self._base.startswith("wss:")
            else None
        )
        self._streams: dict[str, _Stream] = {}
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def take(self, submission_id: str) -> bytes:
        """Return the output of a job since the last call."""
        with self._lock:
            stream = self._streams.get(submission_id)
            if stream is None:
                return b""
            output = bytes(stream.buffer)
            stream.buffer.clear()
            return output

    def follow(self, submission_id: str, *, skip_bytes: int) -> None:
        """Follow a job from a byte of its output on, unless it is followed."""
        with self._lock:
            stream = self._streams.get(submission_id)
            if stream is not None:
                is_waiting = stream.ended_at is None or time.monotonic() < (
                    stream.ended_at + RETRY_SECONDS
                )
                if is_waiting or stream.buffer:
                    return
            elif len(self._streams) >= MAX_FOLLOWED:
                return
            stream = self._streams[submission_id] = _Stream(skip_bytes)
            loop = self._started()
            stream.task = asyncio.run_coroutine_threadsafe(  # type: ignore[assignment]
                self._run(submission_id, stream), loop
            )

    def leave(self, submission_id: str) -> None:
        """Follow a job no longer; what was not taken is dropped."""
        with self._lock:
            stream = self._streams.pop(submission_id, None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    def close(self) -> None:
        """End all connections and the thread."""
        with self._lock:
            names, loop, thread = list(self._streams), self._loop, self._thread
            self._loop = self._thread = None
        for name in names:
            self.leave(name)
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_SECONDS)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(
                target=_run_loop, args=(self._loop,), name="ray-output", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _run(self, submission_id: str, stream: _Stream) -> None:
        try:
            await self._read(submission_id, stream)
        except (OSError, WebSocketException, ExecutorError, TimeoutError) as error:
            log.debug("the output of %s is not followed: %s", submission_id, error)
        finally:
            stream.ended_at = time.monotonic()

    async def _read(self, submission_id: str, stream: _Stream) -> None:
        connection = connect(
            f"{self._base}/api/jobs/{quote(submission_id)}/logs/tail",
            additional_headers={
                **self._settings.headers,
                **token_header(self._settings.token_file),
            },
            ssl=self._ssl,
            # Ray's relay sends nothing on compressed connections.
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=self._settings.timeout_seconds,
            close_timeout=1.0,
        )
        async with connection as websocket:
            async for message in websocket:
                data = message.encode() if isinstance(message, str) else message
                skipped = min(stream.skip_bytes, len(data))
                stream.skip_bytes -= skipped
                with self._lock:
                    stream.buffer += data[skipped:]
                while len(stream.buffer) >= BUFFER_BYTES:  # noqa: ASYNC110 - another thread takes it
                    await asyncio.sleep(PAUSE_SECONDS)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run until the loop is stopped; connections that were left are closed before it ends."""
    try:
        loop.run_forever()
    finally:
        if tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_SECONDS / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
