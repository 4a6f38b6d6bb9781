"""The protocol between the agent and its worker processes: length-prefixed msgpack messages.

The agent sends a request, the worker replies, one at a time. The pipes carry these messages only:
what a plugin prints goes to the agent's log.
"""

import os
import select
import struct
import time
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from plugins.mig import MIGGPU
from protocol.gpu_processes import GPUProcess
from protocol.gpu_slices import MIGInstance
from protocol.inventory import Inventory
from timeseries.points import Point

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1024 * 1024


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create a plugin, replacing one with the same name.

    `class_path` is `module:class`; `config` has the settings as plain values.
    """

    plugin: str
    class_path: str
    config: dict[str, object]
    proc: str
    sys: str
    docker_url: str


class Gather(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read a plugin; the jobs are the current ones."""

    plugin: str
    now_ns: int
    job_of_gpu: dict[str, str] = {}
    job_of_container: dict[str, str] = {}


class Close(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close a plugin."""

    plugin: str


class CutGPUs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Call the MIG driver; the arguments are those of `plugins.mig.MIGDriver`."""

    method: Literal["read", "set_mode", "create", "destroy"]
    arguments: dict[str, str | int | bool] = {}


Request = Configure | Gather | Close | CutGPUs


class Gathered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reading, with the inventory or the GPU processes if it published them."""

    points: list[Point]
    inventory: Inventory | None = None
    gpu_processes: list[GPUProcess] | None = None


class GPUsCut(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the MIG driver returned."""

    gpus: list[MIGGPU] = []
    instance: MIGInstance | None = None


class FailureKind(StrEnum):
    """Why a request failed; the last two are the MIG driver's."""

    ERROR = "error"
    UNAVAILABLE = "unavailable"
    RESTART = "restart"
    IN_USE = "in_use"
    NOT_PERMITTED = "not_permitted"


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plugin failed, is not available on this host, or needs a new process."""

    message: str
    kind: FailureKind = FailureKind.ERROR


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plugin was created or closed."""


Reply = Gathered | GPUsCut | Failed | Done

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class DisconnectedError(Exception):
    """The other side has ended, or sent an invalid message."""


def send(descriptor: int, message: msgspec.Struct, *, timeout_seconds: float | None) -> None:
    """Send a message; with a timeout, the descriptor must be non-blocking.

    Raises:
        TimeoutError: the other side does not read.
        DisconnectedError: it has ended.
    """
    body = msgspec.msgpack.encode(message)
    unsent = memoryview(_LENGTH.pack(len(body)) + body)
    deadline = _deadline(timeout_seconds)
    while unsent:
        try:
            unsent = unsent[os.write(descriptor, unsent) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT, deadline)
        except OSError as error:
            raise DisconnectedError(str(error)) from error


def receive(
    descriptor: int, decoder: msgspec.msgpack.Decoder[T], *, timeout_seconds: float | None
) -> T:
    """Wait for a message.

    Raises:
        TimeoutError: it is not complete in time.
        DisconnectedError: the other side has ended, or sent something else.
    """
    deadline = _deadline(timeout_seconds)
    [length] = _LENGTH.unpack(_read(descriptor, _LENGTH.size, deadline))
    if length > MAX_MESSAGE_BYTES:
        raise DisconnectedError(f"a message of {length} bytes is too large")
    try:
        return decoder.decode(_read(descriptor, length, deadline))
    except msgspec.MsgspecError as error:
        raise DisconnectedError(f"invalid message: {error}") from error


def _read(descriptor: int, size: int, deadline: float | None) -> bytes:
    content = b""
    while len(content) < size:
        if deadline is not None:
            _wait(descriptor, select.POLLIN, deadline)
        try:
            piece = os.read(descriptor, min(size - len(content), _CHUNK_BYTES))
        except OSError as error:
            raise DisconnectedError(str(error)) from error
        if not piece:
            raise DisconnectedError("the pipe was closed")
        content += piece
    return content


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _wait(descriptor: int, events: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, events)
    left_seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
    if not poll.poll(None if left_seconds is None else left_seconds * 1000):
        raise TimeoutError
