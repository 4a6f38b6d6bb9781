"""Time is injected: domain code gets a `Clock` or an instant and never reads the wall clock.

An *instant* is an aware UTC datetime and its name ends in `_at`; samples carry nanoseconds since
the epoch and their names end in `_ns`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

NS_PER_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def to_ns(instant_at: datetime) -> int:
    """Return nanoseconds since the epoch, exact to the microsecond."""
    return ((instant_at - _EPOCH) // _MICROSECOND) * 1000


def from_ns(time_ns: int) -> datetime:
    """Return the aware UTC instant of `time_ns`, truncated to microseconds."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000)
