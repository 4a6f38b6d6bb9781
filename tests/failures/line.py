"""The line between the agents and nginx: it can be cut, slow or lossy.

The kernel of a container has no netem, so this is a proxy: it delays, throttles and breaks.
"""

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.delivery.world import Network

CHUNK_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Quality:
    """What a line does to a piece of data in one direction.

    Attributes:
        delay_seconds: added to every piece.
        bytes_per_second: of one connection; 0 is unlimited.
        break_ratio: the share of pieces at which the connection breaks.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float = 0.0
    break_ratio: float = 0.0


GOOD = Quality()


class Line(Network):
    """A network whose quality changes while connections are open."""

    def __init__(self, target: int) -> None:
        self._quality = GOOD
        self._random = random.Random(7)  # noqa: S311 - each run breaks alike
        super().__init__(target)

    @contextmanager
    def of_quality(self, quality: Quality) -> Iterator[None]:
        """Give the line a quality for the length of the block."""
        self._quality = quality
        try:
            yield
        finally:
            self._quality = GOOD

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                quality = self._quality
                seconds = quality.delay_seconds
                if quality.bytes_per_second:
                    seconds += len(chunk) / quality.bytes_per_second
                time.sleep(seconds)
                if self._random.random() < quality.break_ratio:
                    return
                sink.sendall(chunk)
