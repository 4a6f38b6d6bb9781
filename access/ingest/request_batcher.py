"""Batches small posts that arrive concurrently, so that they are parsed and stored together.

Parsing, checking and storing an appliance's few lines costs several times as much alone as in a
batch (docs/benchmarks.md). Posts that arrive in one turn of the event loop, or while earlier ones
are being stored, are joined into one text; a single post starts at once. Posts with anything
uncommon, such as a string, are not joined, so that none can run into the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from access.identity.agent_registry import Agent

MAX_POST_BYTES = 32 * 1024
MAX_BATCH_BYTES = 512 * 1024
# A batch has a high fixed cost: while one is stored, the next one gathers.
MAX_CONCURRENT_BATCHES = 1
# Senders that got their responses together send their next posts soon after. After a batch of many
# posts the next one starts when none has arrived for GAP_SECONDS.
MANY_POSTS = 24
GAP_SECONDS = 0.002
MAX_GATHER_SECONDS = 0.02
# A string may contain newlines, and the parser reads lines with the other bytes one by one.
_UNCOMMON = b'"#\r\t\0\x02\x03'
_ESCAPES = (b"\\ ", b"\\,", b"\\=")
_UNTIMED, _TIMED = 1, 2

R = TypeVar("R")


class Kind(NamedTuple):
    """The properties that posts must share to be joined."""

    precision: str
    spaces_per_line: int

    @property
    def is_timed(self) -> bool:
        """Whether each line has its time."""
        return self.spaces_per_line == _TIMED


@dataclass(frozen=True, slots=True)
class Post(Generic[R]):
    """A sender's body, and the future of its result."""

    agent: Agent
    body: bytes
    result: asyncio.Future[R]


class Joined(NamedTuple):
    """Bodies as one text.

    Attributes:
        text: a line for each line of each post.
        starts: for each post the position of its first line.
        post_of: for each line the index of its post.
    """

    text: bytes
    starts: Sequence[int]
    post_of: Sequence[int]


class RequestBatcher(Generic[R]):
    """Gathers posts for the tasks of one event loop.

    Args:
        process: sets the result of each post of one kind; an exception goes to those without one.
    """

    def __init__(self, process: Callable[[list[Post[R]], str], Awaitable[None]]) -> None:
        self._process = process
        self._waiting: dict[Kind, list[Post[R]]] = {}
        self._waiting_bytes = 0
        self._is_scheduled = False
        self._last_posts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, agent: Agent, body: bytes, kind: Kind) -> asyncio.Future[R]:
        """Process a post with others of its kind; return the future of its result."""
        loop = asyncio.get_running_loop()
        post: Post[R] = Post(agent, body, loop.create_future())
        self._waiting.setdefault(kind, []).append(post)
        self._waiting_bytes += len(body)
        is_full = self._waiting_bytes >= MAX_BATCH_BYTES
        if not self._is_scheduled and (is_full or len(self._tasks) < MAX_CONCURRENT_BATCHES):
            self._is_scheduled = True
            loop.call_soon(self._start)
        return post.result

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waiting_bytes, self._is_scheduled = 0, False
        self._last_posts = sum(map(len, waiting.values()))
        for kind, posts in waiting.items():
            task = asyncio.create_task(self._run(posts, kind.precision))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            until = asyncio.get_running_loop().time() + MAX_GATHER_SECONDS
            self._gather(0 if self._last_posts >= MANY_POSTS else self._waiting_bytes, until)

    def _gather(self, bytes_before: int, until: float) -> None:
        """Start when nothing has arrived since the last call."""
        loop = asyncio.get_running_loop()
        is_full = self._waiting_bytes >= MAX_BATCH_BYTES or loop.time() >= until
        if is_full or self._waiting_bytes == bytes_before:
            self._start()
        else:
            loop.call_later(GAP_SECONDS, self._gather, self._waiting_bytes, until)

    async def _run(self, posts: list[Post[R]], precision: str) -> None:
        try:
            await self._process(posts, precision)
        except Exception as error:  # noqa: BLE001 - raised by each post's `submit`
            for post in posts:
                if not post.result.done():
                    post.result.set_exception(error)
        finally:
            for post in posts:
                post.result.cancel()  # does nothing where it is done


def kind_of(body: bytes, *, precision: str) -> Kind | None:
    """Return the kind of a body; None if it can't be joined with others."""
    if not 0 < len(body) <= MAX_POST_BYTES or any(mark in body for mark in _UNCOMMON):
        return None
    backslashes = body.count(b"\\")
    escaped_spaces = body.count(_ESCAPES[0]) if backslashes else 0
    if backslashes != escaped_spaces and backslashes != sum(map(body.count, _ESCAPES)):
        return None
    lines = body.count(b"\n") + (not body.endswith(b"\n"))
    per_line, remainder = divmod(body.count(b" ") - escaped_spaces, lines)
    is_uniform = not remainder and per_line in {_UNTIMED, _TIMED}
    return Kind(precision, per_line) if is_uniform and _is_utf8(body) else None


def join(bodies: Sequence[bytes]) -> Joined:
    """Concatenate bodies, each of whole lines."""
    complete = [body if body.endswith(b"\n") else body + b"\n" for body in bodies]
    starts: list[int] = []
    post_of: list[int] = []
    for index, body in enumerate(complete):
        starts.append(len(post_of))
        post_of += [index] * body.count(b"\n")
    return Joined(b"".join(complete), starts, post_of)


def _is_utf8(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False
