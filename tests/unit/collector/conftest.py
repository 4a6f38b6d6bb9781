"""A recording portal, a buffer and a clock that only the test moves."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from tests.fixtures.recording_portal import RecordingPortal


class HandClock:
    """A time that moves only when told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        """Read as a clock of durations."""
        return self.now.timestamp()

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def hand_clock() -> HandClock:
    return HandClock()


@pytest.fixture
def portal() -> Iterator[RecordingPortal]:
    with RecordingPortal() as portal:
        yield portal


@pytest.fixture
def buffer(tmp_path: Path, hand_clock: HandClock) -> DiskBuffer:
    return DiskBuffer(
        tmp_path / "buffer", max_bytes=1_000_000, max_age_seconds=3600, clock=hand_clock
    )
