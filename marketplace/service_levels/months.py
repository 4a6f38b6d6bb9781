"""Calendar months in UTC, in which service levels are measured."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple


class Month(NamedTuple):
    """A month, such as `2026-11`."""

    since: datetime
    until: datetime

    @classmethod
    def of(cls, at: datetime) -> "Month":
        """Return the month of a time."""
        since = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return cls(since, (since + timedelta(days=32)).replace(day=1))

    @property
    def before(self) -> "Month":
        """The month before."""
        return Month.of(self.since - timedelta(days=1))

    def __str__(self) -> str:
        return f"{self.since:%Y-%m}"
