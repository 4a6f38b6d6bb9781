"""Token buckets: how often somebody may do something in the long run, with bursts.

A bucket holds what `BURST_SECONDS` bring. Each process counts for itself.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

BURST_SECONDS = 10.0
# Beyond this many, the bucket that was asked for longest ago is forgotten.
MAX_BUCKETS = 20_000

Monotonic = Callable[[], float]


class Buckets:
    """Buckets that fill at one rate, by whom they are. Safe for threads.

    Args:
        per_second: how much a bucket gains each second; 0 is no limit.
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(self, per_second: float, *, monotonic: Monotonic = time.monotonic) -> None:
        self._per_second = per_second
        self._capacity = max(per_second * BURST_SECONDS, 1.0)
        self._monotonic = monotonic
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Take one from a bucket; return 0, or how many seconds until there is one again."""
        return self._look(who, takes=1)

    def wait(self, who: str) -> float:
        """Return how many seconds until there is one in a bucket; take none."""
        return self._look(who, takes=0)

    def _look(self, who: str, *, takes: int) -> float:
        if not self._per_second:
            return 0.0
        now = self._monotonic()
        with self._lock:
            if not takes and who not in self._buckets:
                return 0.0
            level, then = self._buckets.pop(who, (self._capacity, now))
            level = min(level + (now - then) * self._per_second, self._capacity)
            is_left = level >= 1
            level -= takes if is_left else 0
            self._buckets[who] = (level, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return 0.0 if is_left else (1 - level) / self._per_second
