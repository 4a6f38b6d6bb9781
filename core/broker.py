"""The broker: messages between the processes of a portal. Optional, and nothing depends on one
message: what is lost is found by polling, or counted by each process for itself.
"""

from collections.abc import Callable
from enum import StrEnum


class BrokerState(StrEnum):
    """Whether messages arrive; `NONE` if no broker is configured."""

    NONE = "none"
    CONNECTED = "connected"
    AWAY = "away"


class Broker:
    """Sends messages to the other processes, and hands on theirs. Thread-safe."""

    @property
    def state(self) -> BrokerState:
        """Whether messages arrive."""
        return BrokerState.NONE

    def send(self, channel: str, message: bytes) -> None:
        """Send a message to all other processes; returns at once, and drops it while away."""

    def listen(self, channel: str, listener: Callable[[bytes], None]) -> None:
        """Hand messages of other processes to a listener, which must not block or raise."""
