"""Decayed usage: a second of a resource counts half as much after each half-life.

What a resource used from one instant to another is an integral with a closed form, so usage needs
no ticks: it is exact whenever it is computed, and sums of it can be brought to another instant by
one factor. The instants may lie in any order: a clock that was set back changes nothing.
"""

import math
from datetime import datetime, timedelta

# A clock that was years ahead leaves times in the future: usage grows towards them, but stays a
# number that can be compared and multiplied.
_MAX_DOUBLINGS = 300.0


def decay_factor(elapsed: timedelta, half_life: timedelta) -> float:
    """Return what is left of usage after some time: 0.5 after one half-life."""
    return math.exp2(min(-(elapsed / half_life), _MAX_DOUBLINGS))


def decayed_seconds(
    since: datetime, until: datetime, *, at: datetime, half_life: timedelta
) -> float:
    """Return what the seconds of a period count at an instant; 0 if it ends before it begins."""
    if until <= since:
        return 0.0
    passed = (until - since) / half_life
    at_its_end = -math.expm1(-passed * math.log(2)) * half_life.total_seconds() / math.log(2)
    return at_its_end * decay_factor(at - until, half_life)
