"""When reservations apply: their periods, where two of them overlap, and the nearest free time."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core.schedule_times import next_time, times_between
from jobqueue.reservations.models import Booking, Reservation

Period = tuple[datetime, datetime]
# Placement looks so many periods ahead.
AHEAD = 10
# Overlaps are looked for so far ahead, and further for what begins later.
CHECKED_FOR = timedelta(days=90)
# Free times that are tried, the nearest first.
MAX_TRIED = 500
_MAX_PERIODS = 5000
# Nothing begins later: its end, and times to look for beyond it, must be dates, too.
_NEVER = datetime.max.replace(tzinfo=UTC) - timedelta(days=2 * 366)


def periods_of(
    reservation: Reservation | Booking, *, now: datetime, max_count: int = AHEAD
) -> tuple[Period, ...]:
    """Return the next periods of a reservation, the one that goes on included."""
    key = (reservation.schedule, reservation.time_zone, reservation.duration_seconds)
    return _next_periods(*key, now.replace(second=0, microsecond=0), max_count)


@lru_cache(1000)
def _next_periods(
    schedule: str, time_zone: str, duration_seconds: int, now: datetime, max_count: int
) -> tuple[Period, ...]:
    return _periods((schedule, time_zone, duration_seconds), now, max_count, _NEVER)


def periods_until(
    reservation: Reservation | Booking,
    until: datetime,
    *,
    now: datetime,
    max_count: int = _MAX_PERIODS,
) -> list[Period]:
    """Return the periods of a reservation that begin before an instant, but at least the next."""
    key = (reservation.schedule, reservation.time_zone, reservation.duration_seconds)
    return list(_periods(key, now, max_count, until))


def _periods(
    key: tuple[str, str, int], now: datetime, max_count: int, until: datetime
) -> tuple[Period, ...]:
    schedule, time_zone, duration_seconds = key
    duration = timedelta(seconds=duration_seconds)
    first = next_time(schedule, time_zone, after=now - duration)
    if first is None or first > _NEVER:
        return ()
    begins = times_between(
        schedule, time_zone, first=first, until=max(first, until), max_count=max_count
    )
    return tuple((begin, begin + duration) for begin in begins)


def overlaps_itself(periods: Sequence[Period]) -> bool:
    """Return whether a period begins before the one before it has ended."""
    return any(earlier[1] > later[0] for earlier, later in pairwise(periods))


class TakenTimes:
    """The periods of other reservations, each with the name of its own."""

    def __init__(self, periods: Iterable[tuple[Period, str]]) -> None:
        self._periods = sorted(periods)
        self._begins, self._ends = _seconds([period for period, _ in self._periods])
        # The latest end of those that have begun; some may overlap each other.
        self._latest_ends = np.maximum.accumulate(self._ends)

    def overlap(self, periods: Sequence[Period]) -> tuple[Period, str] | None:
        """Return the first of the periods here that overlaps any of some others."""
        begins, ends = _seconds(periods)
        hits = np.flatnonzero(self._are_taken(begins, ends))
        if not hits.size:
            return None
        first = int(hits[0])
        is_hit = (self._begins < ends[first]) & (self._ends > begins[first])
        return self._periods[int(np.flatnonzero(is_hit)[0])]

    def nearest_free(
        self, periods: Sequence[Period], *, now: datetime, until: datetime
    ) -> Period | None:
        """Return the first period as near as possible to where it was, so that none overlaps.

        All periods move by the same time. None: there is no such time before an instant.
        """
        begins, ends = _seconds(periods)
        later = _nearest_shifts(np.sort(self._ends), begins)
        earlier = _nearest_shifts(self._begins, ends)
        shifts = np.unique(np.concatenate([later, earlier]))
        is_in_time = begins[0] + shifts >= now.timestamp()
        shifts = shifts[is_in_time & (ends[-1] + shifts <= until.timestamp())]
        for shift in shifts[np.argsort(np.abs(shifts), kind="stable")][:MAX_TRIED].tolist():
            if not self._are_taken(begins + shift, ends + shift).any():
                moved = timedelta(seconds=shift)
                return periods[0][0] + moved, periods[0][1] + moved
        return None

    def _are_taken(
        self, begins: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        before = np.searchsorted(self._begins, ends, side="left")
        latest = np.concatenate([[-np.inf], self._latest_ends])
        taken: npt.NDArray[np.bool_] = latest[before] > begins
        return taken


def _nearest_shifts(
    targets: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return by how much each time moves to sorted targets, of which the nearest are enough.

    All pairs would not fit in memory where both repeat often.
    """
    places = np.searchsorted(targets, times)[:, None] + np.arange(-MAX_TRIED, MAX_TRIED)
    is_there = (places >= 0) & (places < targets.size)
    shifts = targets[np.clip(places, 0, targets.size - 1)] - times[:, None]
    return np.unique(shifts[is_there])


def _seconds(
    periods: Sequence[Period],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    times = [(begin.timestamp(), end.timestamp()) for begin, end in periods]
    columns = np.array(times, np.float64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]
