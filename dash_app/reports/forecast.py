"""A linear trend, and when it reaches a limit, with a 95 % confidence interval.

Source: least squares; the interval is that of the trend line, solved for time (Fieller).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean

MIN_POINTS = 5
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A trend of values by day; days count from the same origin as those of the values.

    Attributes:
        per_day: the growth.
        at_limit: the day on which the trend reaches the limit; None if it doesn't grow.
        earliest: the earliest day of the interval; None if even its steepest line doesn't grow.
        latest: the latest one; None if the interval has no end, because growth isn't certain.
    """

    per_day: float
    at_limit: float | None
    earliest: float | None
    latest: float | None


def forecast(days: Sequence[float], values: Sequence[float], *, limit: float) -> Forecast | None:
    """Return when the trend of values reaches a limit; None without enough values."""
    count = len(days)
    if count < MIN_POINTS:
        return None
    mean_day, mean_value = fmean(days), fmean(values)
    spread = sum((day - mean_day) ** 2 for day in days)
    if not spread:
        return None
    slope = (
        sum(
            (day - mean_day) * (value - mean_value) for day, value in zip(days, values, strict=True)
        )
        / spread
    )
    errors = (
        value - mean_value - slope * (day - mean_day)
        for day, value in zip(days, values, strict=True)
    )
    variance = sum(error**2 for error in errors) / (count - 2)
    missing = limit - mean_value
    if missing <= 0:
        return Forecast(slope, mean_day, mean_day, mean_day)
    # The line is above the limit where the squared distance is below: a parabola in time.
    bound = _student_t(count - 2) ** 2 * variance
    curve = slope**2 - bound / spread
    root = slope**2 * missing**2 - curve * (missing**2 - bound / count)
    earliest = latest = None
    if curve and root >= 0:
        ends = sorted((slope * missing + sign * sqrt(root)) / curve for sign in (-1, 1))
        later = [end for end in ends if end > 0]
        earliest = mean_day + later[0] if later else None
        latest = mean_day + later[1] if curve > 0 and len(later) > 1 else None
    at_limit = mean_day + missing / slope if slope > 0 else None
    return Forecast(slope, at_limit, earliest, latest)


def _student_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, by its expansion around the normal one."""
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
