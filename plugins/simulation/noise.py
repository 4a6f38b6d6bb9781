"""Noise that is a pure function of a name and the time, so that a simulation can be repeated."""

import math
from zlib import crc32

_LARGEST = 0xFFFFFFFF


def fraction(name: str) -> float:
    """Return a number in [0, 1] that looks random and depends on `name` alone."""
    return crc32(name.encode()) / _LARGEST


def wander(name: str, seconds: float, *, period_seconds: float) -> float:
    """Return a value in [-1, 1] that drifts smoothly, with a new target every period."""
    position = seconds / period_seconds
    step = math.floor(position)
    before = fraction(f"{name}:{step}")
    after = fraction(f"{name}:{step + 1}")
    blend = (1 - math.cos(math.pi * (position - step))) / 2
    return 2 * (before + (after - before) * blend) - 1


def approach(value: float, target: float, *, elapsed_seconds: float, lag_seconds: float) -> float:
    """Return `value` after it moved towards `target` for a while, as heat and memory do.

    The closed form of a first-order lag: exact for any step, so coarse history and live readings
    agree.
    """
    return target + (value - target) * math.exp(-elapsed_seconds / lag_seconds)
