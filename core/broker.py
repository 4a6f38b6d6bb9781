"""The broker: messages between the processes of a portal. Optional, and nothing depends on one
message: what is lost is found by polling, or counted by each process for itself.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from urllib.parse import urlsplit

import msgspec

from core.changes import ANY, ChangeBus, Topic
from core.db import chunked
from core.settings import ServerSettings, secret_key

log = logging.getLogger(__name__)

CHANGES = "changes"
# Of a message. More changes than the second are told as "any".
IDENTS_PER_MESSAGE = 200
MAX_IDENTS = 5_000
# How long a server waits for the first connection, so that its first heartbeat has it.
OPEN_SECONDS = 2.0


class BrokerState(StrEnum):
    """Whether messages arrive; `NONE` if no broker is configured."""

    NONE = "none"
    CONNECTED = "connected"
    AWAY = "away"


class Broker:
    """Sends messages to the other processes, and hands on theirs. Thread-safe.

    This one is for processes without others.
    """

    @property
    def state(self) -> BrokerState:
        """Whether messages arrive."""
        return BrokerState.NONE

    @property
    def problem(self) -> str:
        """Why they don't; empty if they do, or if there is no broker."""
        return ""

    def send(self, channel: str, message: bytes) -> None:
        """Send a message to all other processes; returns at once, and drops it while away."""

    def listen(self, channel: str, listener: Callable[[bytes], None]) -> None:
        """Hand messages of other processes to a listener, which must not block or raise."""

    def watch(self, listener: Callable[[BrokerState], None]) -> None:
        """Tell a listener of the state, now and when it changes; it must not block or raise."""


@contextmanager
def open_broker(
    settings: ServerSettings, *, wait_seconds: float = OPEN_SECONDS
) -> Iterator[Broker]:
    """Open the configured broker for the length of the block.

    Args:
        settings: of the server.
        wait_seconds: for the first connection; without one, the block begins all the same.
    """
    if not settings.redis_url:
        yield Broker()
        return
    from core.redis_broker import RedisBroker  # noqa: PLC0415 - servers without Redis don't load it

    # Portals may share a Redis server, whose channels have nothing to do with its databases.
    key = hashlib.blake2b(secret_key(settings).encode(), person=b"vedette broker").digest()
    with RedisBroker(settings.redis_url, key=key).running(wait_seconds=wait_seconds) as broker:
        yield broker


def redacted_redis_url(url: str) -> str:
    """Return the URL without user, password and options."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2] + (parts.path if parts.scheme == "unix" else "")
    return f"{parts.scheme}://{place}"


def join_changes(broker: Broker, bus: ChangeBus) -> None:
    """Pass the changes of this process on to others, and tell it of theirs."""

    def receive(message: bytes) -> None:
        try:
            topic, idents = _DECODER.decode(message)
        except msgspec.DecodeError as error:
            # Perhaps of a newer version, which has further topics.
            log.debug("a change is not understood: %s", error)
        else:
            bus.deliver(topic, idents)

    def note(state: BrokerState) -> None:
        bus.set_complete(state is BrokerState.CONNECTED)
        if state is BrokerState.CONNECTED:
            # What was changed meanwhile was told to nobody else.
            for topic in Topic:
                send_changes(broker, topic, [ANY])

    if broker.state is not BrokerState.NONE:
        bus.pass_on = partial(send_changes, broker)
        broker.listen(CHANGES, receive)
        broker.watch(note)


def send_changes(broker: Broker, topic: Topic, idents: Collection[str]) -> None:
    """Tell the other processes of changes."""
    told = [ANY] if len(idents) > MAX_IDENTS else idents
    for chunk in chunked(told, IDENTS_PER_MESSAGE):
        broker.send(CHANGES, _ENCODER.encode((topic, chunk)))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[Topic, list[str]])
