"""What the agent and its child processes say to each other: frames of msgpack behind their length.

The agent asks, the child answers, one at a time. The child leaves both ends of its pipes to these
frames alone: what a plugin prints goes to the agent's log.
"""

import os
import select
import struct
import time
from typing import cast

import msgspec

from jobqueue.executors.wire import Inventory
from timeseries.points import Point

LARGEST_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1024 * 1024


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Build this plugin, in place of an older one of its name.

    `address` is `module:class`; `config` holds the settings as plain values.
    """

    plugin: str
    address: str
    config: dict[str, object]
    proc: str
    sys: str
    docker_url: str


class Gather(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read this plugin; the jobs are those of the agent at this moment."""

    plugin: str
    now_ns: int
    job_of_gpu: dict[str, str] = {}
    job_of_container: dict[str, str] = {}


class Close(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close this plugin and forget it."""

    plugin: str


Request = Configure | Gather | Close


class Gathered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reading, with what it published."""

    points: list[Point]
    inventory: Inventory | None = None


class Unavailable(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There is nothing to read here."""

    message: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plugin can't be built, read or closed."""

    message: str


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plugin can be read in a new process only; this one is of no more use."""

    message: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plugin was built or closed."""


Reply = Gathered | Unavailable | Failed | Restart | Done


class FrameTimeoutError(Exception):
    """The other side did not take or give a frame in time."""


class FrameEndError(Exception):
    """The other side is gone, or what it says is no frame."""


def write_frame(descriptor: int, message: msgspec.Struct, *, timeout_seconds: float | None) -> None:
    """Write a message; with a timeout the descriptor must not block.

    Raises:
        FrameTimeoutError: the other side takes nothing more.
        FrameEndError: it is gone.
    """
    body = msgspec.msgpack.encode(message)
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    deadline = _deadline(timeout_seconds)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT, deadline)
        except OSError as error:
            raise FrameEndError(str(error)) from error


def read_request(descriptor: int) -> Request:
    """Wait for a question, for ever.

    Raises:
        FrameEndError: the agent is gone, or sent what is no question.
    """
    return cast("Request", _read_frame(descriptor, Request, timeout_seconds=None))


def read_reply(descriptor: int, *, timeout_seconds: float) -> Reply:
    """Wait for an answer.

    Raises:
        FrameTimeoutError: it did not come whole in time.
        FrameEndError: the child is gone, or sent what is no answer.
    """
    return cast("Reply", _read_frame(descriptor, Reply, timeout_seconds=timeout_seconds))


def _read_frame(descriptor: int, kind: object, *, timeout_seconds: float | None) -> object:
    deadline = _deadline(timeout_seconds)
    [length] = _LENGTH.unpack(_read(descriptor, _LENGTH.size, deadline))
    if length > LARGEST_FRAME_BYTES:
        raise FrameEndError(f"a frame of {length} bytes is too large")
    try:
        return msgspec.msgpack.decode(_read(descriptor, length, deadline), type=kind)
    except msgspec.MsgspecError as error:
        raise FrameEndError(f"a frame that can't be read: {error}") from error


def _read(descriptor: int, size: int, deadline: float | None) -> bytes:
    whole = b""
    while len(whole) < size:
        if deadline is not None:
            _wait(descriptor, select.POLLIN, deadline)
        try:
            piece = os.read(descriptor, min(size - len(whole), _CHUNK_BYTES))
        except OSError as error:
            raise FrameEndError(str(error)) from error
        if not piece:
            raise FrameEndError("the other side is gone")
        whole += piece
    return whole


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _wait(descriptor: int, events: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, events)
    left_seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
    if not poll.poll(None if left_seconds is None else left_seconds * 1000):
        raise FrameTimeoutError
