"""Quantile sketches: counts of values in buckets whose widths grow with the value.

A bucket holds the values between two powers of `GAMMA`, so that its middle is within 1 % of each of
them, whatever their size. A bucket's *key* is a whole number in the order of the values: negative
for negative values, 0 for zero. Two sketches are merged by adding their counts by key.

Source: DDSketch (Masson, Rim, Lee, VLDB 2019).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

ACCURACY_RATIO = 0.01
GAMMA = (1 + ACCURACY_RATIO) / (1 - ACCURACY_RATIO)
LOG_GAMMA = math.log(GAMMA)
LOG_MIDDLE = math.log(2 / (GAMMA + 1))
"""From the upper end of a bucket to the value that stands for it."""

LOG_LARGEST = 709.78
"""Of about the largest number that there is."""

SMALLEST = 1e-12
"""A value nearer to zero than this counts as zero."""

KEY_OFFSET = 1 - math.ceil(math.log(SMALLEST) / LOG_GAMMA)
"""Added to the logarithm, so that the key of every positive value is positive."""


def key_of(value: float) -> int:
    """Return the key of the bucket that a finite value belongs to."""
    size = abs(value)
    if size < SMALLEST:
        return 0
    key = math.ceil(math.log(size) / LOG_GAMMA) + KEY_OFFSET
    return key if value > 0 else -key


def value_of(key: int) -> float:
    """Return the value that stands for a bucket: within 1 % of every value in it."""
    if key == 0:
        return 0.0
    logarithm = (abs(key) - KEY_OFFSET) * LOG_GAMMA + LOG_MIDDLE
    return math.copysign(math.exp(min(logarithm, LOG_LARGEST)), key)


def sketch_of(values: Iterable[float]) -> dict[int, int]:
    """Return how many of the values are in each bucket, by key."""
    counts: dict[int, int] = {}
    for value in values:
        key = key_of(value)
        counts[key] = counts.get(key, 0) + 1
    return counts


def merged(sketches: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sketch of all values of some sketches."""
    counts: dict[int, int] = {}
    for sketch in sketches:
        for key, count in sketch.items():
            counts[key] = counts.get(key, 0) + count
    return counts


def quantile(sketch: Mapping[int, int], q: float) -> float | None:
    """Return a quantile, 0 <= q <= 1, interpolated between the two nearest ranks; None of nothing.

    For values of one sign it is within 1 % of the exact one.
    """
    keys = sorted(sketch)
    return quantile_of_buckets(keys, [sketch[key] for key in keys], q)


def quantile_of_buckets(keys: Sequence[int], counts: Iterable[int], q: float) -> float | None:
    """Return the same of a sketch's keys in order, and the count of each."""
    passed = list(accumulate(counts))
    rank = q * (passed[-1] - 1) if passed else -1
    if rank < 0:
        return None
    low, high = (
        value_of(keys[bisect_right(passed, whole)]) for whole in (math.floor(rank), math.ceil(rank))
    )
    return low + (high - low) * (rank - math.floor(rank))
