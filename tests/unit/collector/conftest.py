"""A recording portal, a buffer and a clock that only the test moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.sending.sender import Sender
from tests.fixtures.recording_portal import RecordingPortal
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.senders import make_sender


@pytest.fixture
def hand_clock() -> HandClock:
    return HandClock()


@pytest.fixture
def portal() -> Iterator[RecordingPortal]:
    with RecordingPortal() as portal:
        yield portal


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    """The file of refused lines."""
    return tmp_path / "undeliverable.log"


@pytest.fixture
def sender(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> Iterator[Sender]:
    sender = make_sender(buffer, [portal.url], hand_clock, aside=aside)
    yield sender
    sender.close()


@pytest.fixture
def buffer(tmp_path: Path, hand_clock: HandClock) -> DiskBuffer:
    return DiskBuffer(
        tmp_path / "buffer", max_bytes=1_000_000, max_age_seconds=3600, clock=hand_clock
    )
