"""Forecasts of many groups at many times: the line of `expression.forecast` as it rolls.

The sums of a regression over a window are differences of running sums.
"""

import numpy as np
from numpy.typing import NDArray

from alerting.evaluation.expression import FORECAST_MIN_VALUES, FORECAST_STEPS
from alerting.evaluation.firing_steps import Floats
from alerting.evaluation.step_values import rolling_sums


def rolling_forecast(values: Floats, *, window: int, ahead: float) -> Floats:
    """Return what was forecast at the end of each step; NaN where there were too few values.

    Args:
        values: by group and step; NaN where there is none.
        window: the steps of which the trend is continued.
        ahead: how many steps the forecast is ahead; it may be a fraction.
    """
    if not values.size:
        return values
    is_known = np.isfinite(values)
    at = np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)
    # Around the mean, the squares of large values lose no digits.
    counts = is_known.sum(axis=1, keepdims=True)
    level = np.where(is_known, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(counts, 1)
    times, deviations = np.where(is_known, at, 0.0), np.where(is_known, values - level, 0.0)
    number = rolling_sums(is_known.astype(np.float64), window)
    t, v = rolling_sums(times, window), rolling_sums(deviations, window)
    tt, tv = rolling_sums(times * times, window), rolling_sums(times * deviations, window)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (number * tv - t * v) / (number * tt - t * t)
        forecasts = level + v / number + slope * (at + 1 + ahead - t / number)
    is_enough = number >= FORECAST_STEPS // 2
    is_enough |= (number >= FORECAST_MIN_VALUES) & (_extent(is_known, window) * 2 >= window)
    return np.where(is_enough, forecasts, np.nan)


def _extent(is_known: NDArray[np.bool_], window: int) -> NDArray[np.int64]:
    """Return how many columns are between the first and the last known one of each window."""
    columns = np.broadcast_to(np.arange(is_known.shape[1]), is_known.shape)
    last = np.maximum.accumulate(np.where(is_known, columns, -1), axis=1)
    after = np.where(is_known, columns, is_known.shape[1])[:, ::-1]
    next_known = np.minimum.accumulate(after, axis=1)[:, ::-1]
    first = np.take_along_axis(next_known, np.maximum(columns - window + 1, 0), axis=1)
    extent: NDArray[np.int64] = last - first
    return extent
