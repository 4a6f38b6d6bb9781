"""Sums by minute over the last minutes: what a lasting condition is told from a short one by."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Minute:
    number: int
    total: float = 0.0
    count: int = 0


class MinuteWindow:
    """Adds values up by minute and forgets those older than `minutes`.

    Instants are seconds since the epoch; one that lies before the newest minute counts with it.
    """

    def __init__(self, minutes: int) -> None:
        self._length = minutes
        self._minutes: deque[_Minute] = deque(maxlen=minutes)

    def add(self, seconds: float, value: float) -> None:
        """Add a value to the minute of `seconds`."""
        number = int(seconds // 60)
        if not self._minutes or self._minutes[-1].number < number:
            self._minutes.append(_Minute(number))
        newest = self._minutes[-1]
        newest.total += value
        newest.count += 1

    def total(self, now_seconds: float) -> float:
        """Return the sum over the window."""
        return sum(minute.total for minute in self._recent(now_seconds))

    def means(self, now_seconds: float) -> list[float]:
        """Return the mean of each minute that has values, oldest first."""
        return [minute.total / minute.count for minute in self._recent(now_seconds)]

    def _recent(self, now_seconds: float) -> list[_Minute]:
        oldest = int(now_seconds // 60) - self._length
        return [minute for minute in self._minutes if minute.number > oldest]
