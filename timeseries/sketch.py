"""Quantile sketches: counts of values in buckets whose width grows with the value.

A bucket has the values between two powers of `GAMMA`, so its representative value is within 1 % of
each of them. The *key* of a bucket is an integer that sorts as the values do: negative for negative
values, 0 for zero. Sketches are merged by adding the counts of each key. The roll-ups calculate
keys in SQL.

Source: DDSketch (Masson, Rim, Lee, VLDB 2019).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

ACCURACY_RATIO = 0.01
GAMMA = (1 + ACCURACY_RATIO) / (1 - ACCURACY_RATIO)
LOG_GAMMA = math.log(GAMMA)
LOG_MIDDLE = math.log(2 / (GAMMA + 1))
"""From the upper edge of a bucket to its representative value."""

LOG_LARGEST = 709.78
"""The logarithm of about the largest float."""

SMALLEST = 1e-12
"""A value closer to zero than this counts as zero."""

KEY_OFFSET = 1 - math.ceil(math.log(SMALLEST) / LOG_GAMMA)
"""Added to the logarithm, so that the key of every positive value is positive."""


def bucket_value(key: int) -> float:
    """Return the representative value of a bucket: within 1 % of every value in it."""
    if key == 0:
        return 0.0
    logarithm = (abs(key) - KEY_OFFSET) * LOG_GAMMA + LOG_MIDDLE
    return math.copysign(math.exp(min(logarithm, LOG_LARGEST)), key)


def bucket_quantile(keys: Sequence[int], counts: Iterable[int], q: float) -> float | None:
    """Return a quantile, 0 <= q <= 1, of a sketch: its sorted keys and the count of each.

    It is interpolated between the two nearest ranks, and for values of one sign within 1 % of the
    exact one; None for an empty sketch.
    """
    passed = list(accumulate(counts))
    rank = q * (passed[-1] - 1) if passed else -1
    if rank < 0:
        return None
    low, high = (
        bucket_value(keys[bisect_right(passed, index)])
        for index in (math.floor(rank), math.ceil(rank))
    )
    return low + (high - low) * (rank - math.floor(rank))
