"""Small posts that come at one time, worked on together.

To parse, check and hand over an appliance's few lines costs several times as much alone as among
those of a hundred others. Posts that arrive in one turn of the event loop are therefore joined into
one text, and so are those that arrive while earlier ones are on their way; a lone post goes at
once. Posts that hold anything uncommon, such as a string, are not joined: so none can run into the
next one, or make the others' lines dear to read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from access.auth import Agent
from access.faults import Outcome

MAX_POST_BYTES = 32 * 1024
MAX_TOGETHER_BYTES = 512 * 1024
# What a group costs beside its posts is dear: while one is written, the next one gathers.
MAX_ON_THEIR_WAY = 1
# A string may hold newlines, and the others are what the parser takes line by line.
_COMMON = bytes(set(range(256)) - set(b'"#\r\t\0\x01\x02\x03'))
_ESCAPES = (b"\\ ", b"\\,", b"\\=")
_PLAIN, _TIMED = 1, 2


class Kind(NamedTuple):
    """What posts have in common that are joined."""

    precision: str
    spaces_per_line: int


@dataclass(frozen=True, slots=True)
class Post:
    """What one sender has posted, and who waits for what becomes of it."""

    agent: Agent
    body: bytes
    outcome: asyncio.Future[Outcome]


@dataclass(frozen=True, slots=True)
class Joined:
    """Bodies as one text.

    Attributes:
        text: a line for each line of each post.
        starts: for each post the position of its first line.
        post_of: for each line the index of its post.
    """

    text: bytes
    starts: Sequence[int]
    post_of: Sequence[int]


class JointPosts:
    """Gathers posts for the tasks of one event loop.

    Args:
        work: gives each post of one kind its outcome; what it raises goes to all that have none.
    """

    def __init__(self, work: Callable[[list[Post], str], Awaitable[None]]) -> None:
        self._work = work
        self._waiting: dict[Kind, list[Post]] = {}
        self._waiting_bytes = 0
        self._is_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, agent: Agent, body: bytes, kind: Kind) -> Outcome:
        """Have a post worked on with its neighbours; returns when it is durable."""
        loop = asyncio.get_running_loop()
        post = Post(agent, body, loop.create_future())
        self._waiting.setdefault(kind, []).append(post)
        self._waiting_bytes += len(body)
        is_enough = self._waiting_bytes >= MAX_TOGETHER_BYTES
        if not self._is_due and (is_enough or len(self._tasks) < MAX_ON_THEIR_WAY):
            self._is_due = True
            loop.call_soon(self._begin)
        return await post.outcome

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waiting_bytes, self._is_due = 0, False
        for kind, posts in waiting.items():
            task = asyncio.create_task(self._run(posts, kind.precision))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting and not self._is_due:
            self._begin()

    async def _run(self, posts: list[Post], precision: str) -> None:
        try:
            await self._work(posts, precision)
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            for post in posts:
                if not post.outcome.done():
                    post.outcome.set_exception(error)
        finally:
            for post in posts:
                post.outcome.cancel()  # does nothing where it is done


def kind_of(body: bytes, *, precision: str) -> Kind | None:
    """Return what a body may be joined with; None for one that goes alone."""
    if not 0 < len(body) <= MAX_POST_BYTES or body.translate(None, _COMMON):
        return None
    unescaped = body
    for escape in _ESCAPES:
        if b"\\" in unescaped:
            unescaped = unescaped.replace(escape, b"")
    lines = body.count(b"\n") + (not body.endswith(b"\n"))
    per_line, rest = divmod(unescaped.count(b" "), lines)
    is_uniform = not rest and per_line in {_PLAIN, _TIMED} and b"\\" not in unescaped
    return Kind(precision, per_line) if is_uniform and _is_text(body) else None


def join(bodies: Sequence[bytes]) -> Joined:
    """Lay bodies end to end, each of whole lines."""
    whole = [body if body.endswith(b"\n") else body + b"\n" for body in bodies]
    starts: list[int] = []
    post_of: list[int] = []
    for index, body in enumerate(whole):
        starts.append(len(post_of))
        post_of += [index] * body.count(b"\n")
    return Joined(b"".join(whole), starts, post_of)


def _is_text(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
