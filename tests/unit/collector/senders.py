"""Senders for tests, and lines for them to send."""

from pathlib import Path
from random import Random

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.buffering.undeliverable import UndeliverableLines
from collector.sending.access_points import AccessPoints
from collector.sending.sender import Sender
from collector.sending.write_targets import portal_target
from core.clock import to_ns
from tests.fixtures.recording_portal import AGENT_TOKEN
from tests.unit.collector.hand_clock import HandClock


def make_sender(
    buffer: DiskBuffer,
    addresses: list[str] | AccessPoints,
    clock: HandClock,
    *,
    aside: Path,
    token: str = AGENT_TOKEN,
) -> Sender:
    points = addresses
    if not isinstance(points, AccessPoints):
        points = AccessPoints(points, monotonic=clock.seconds)
    return Sender(
        buffer,
        points,
        portal_target(token, access_points=points, timeout_seconds=60),
        clock=clock,
        undeliverable=UndeliverableLines(aside),
        random=Random(1),  # noqa: S311 - jitter that can be repeated
    )


def fill(buffer: DiskBuffer, clock: HandClock, *lines: str) -> None:
    buffer.append(Frame("\n".join(lines).encode(), len(lines), to_ns(clock.now)))
