"""A clock that only the test moves."""

from datetime import UTC, datetime, timedelta


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
