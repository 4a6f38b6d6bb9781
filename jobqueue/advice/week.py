"""Hours of the week in words, such as `Mon-Fri 09:00-17:00`."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from jobqueue.advice.figures import DAYS, HOURS_PER_DAY

DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Hours with at least this part of the largest mean are named.
_HIGH_RATIO = 0.6
MAX_PARTS = 3
Ranges = tuple[tuple[int, int], ...]


def high_hours(week: np.ndarray) -> str:
    """Return the hours of a week with the highest means; nothing where all are 0, or alike.

    Args:
        week: means by day and hour, as of `FleetFigures.week`.
    """
    values = np.nan_to_num(week)
    highest = float(values.max())
    if highest <= 0:
        return ""
    is_high = values >= _HIGH_RATIO * highest
    if is_high.all():
        return "at all hours"
    days = [tuple(_ranges(is_high[day].tolist())) for day in range(DAYS)]
    parts = [
        (span, sum(values[day, begin:end].sum() for day in span for begin, end in ranges), ranges)
        for ranges, span in _alike(days)
        if ranges
    ]
    largest = sorted(parts, key=lambda part: -part[1])[:MAX_PARTS]
    texts = [_text(span, ranges) for span, _, ranges in sorted(largest, key=lambda part: part[0])]
    return "; ".join(texts) + (" and others" if len(parts) > MAX_PARTS else "")


def _alike(days: Sequence[Ranges]) -> Iterator[tuple[Ranges, list[int]]]:
    """Yield successive days with the same hours."""
    for ranges, group in groupby(range(DAYS), key=lambda day: days[day]):
        yield ranges, list(group)


def _ranges(is_high: Sequence[bool]) -> Iterator[tuple[int, int]]:
    hour = 0
    for value, group in groupby(is_high):
        length = len(list(group))
        if value:
            yield hour, hour + length
        hour += length


def _text(days: Sequence[int], ranges: Ranges) -> str:
    first, last = DAY_NAMES[days[0]], DAY_NAMES[days[-1]]
    named = first if first == last else f"{first}-{last}"
    if ranges == ((0, HOURS_PER_DAY),):
        return f"{named} all day"
    return f"{named} {', '.join(f'{begin:02}:00-{end:02}:00' for begin, end in ranges)}"
