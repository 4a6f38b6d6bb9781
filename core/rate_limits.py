"""Limits per key, counted by this process: of rates with bursts, in fixed windows, and of what runs
concurrently.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, RLock

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

BURST_SECONDS = 10


class WindowStorage(MemoryStorage):
    """The library's counters, without its thread, which walks over all keys 100 times a second.

    A hit deletes expired counters, at most once in a window: docs/decisions/0008-http-limits.md.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = RLock()
        self._swept_at = 0.0

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Add to a counter, which starts at 0 and lasts for `expiry` seconds; return its value."""
        now = time.time()
        with self._lock:
            if not self._swept_at <= now < self._swept_at + expiry:
                self._swept_at = now
                for expired_key in [
                    expired_key for expired_key, until in self.expirations.items() if until <= now
                ]:
                    self.clear(expired_key)
            count = self.get(key) + amount
            self.storage[key] = count
            self.expirations.setdefault(key, now + expiry)
        return count

    def get(self, key: str) -> int:
        """Return a counter, 0 if it expired."""
        with self._lock:
            return super().get(key)


class RateLimit:
    """Limits keys to the same rate. Thread-safe.

    Args:
        per_second: the sustained rate, with bursts of `BURST_SECONDS`; 0 disables the limit.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        if per_second:
            amount = max(1, int(per_second * BURST_SECONDS))
            self._item = RateLimitItemPerSecond(amount, math.ceil(amount / per_second))
            self._limiter = FixedWindowRateLimiter(WindowStorage())

    def hit(self, key: str, *, cost: int = 1) -> float:
        """Count `cost`; return 0, or the seconds to wait if this exceeds the limit."""
        if not self.per_second or self._limiter.hit(self._item, key, cost=cost):
            return 0.0
        return self._seconds_left(key)

    def wait_seconds(self, key: str) -> float:
        """Return the seconds until the key may send again; 0 if it may now."""
        if not self.per_second or self._limiter.test(self._item, key):
            return 0.0
        return self._seconds_left(key)

    def _seconds_left(self, key: str) -> float:
        return max(0.0, self._limiter.get_window_stats(self._item, key).reset_time - time.time())


class ConcurrencyLimit:
    """Limits how many blocks of each key run concurrently. Thread-safe."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self._changed = Condition()
        self._running: Counter[str] = Counter()

    @contextmanager
    def running(self, key: str, *, wait_seconds: float = 0.0) -> Iterator[bool]:
        """Count the block as running; False, and not counted, if the limit is reached.

        Args:
            key: whose block it is.
            wait_seconds: how long to wait for another block to end.
        """
        with self._changed:
            is_admitted = self._changed.wait_for(
                lambda: self._running[key] < self.max_running, wait_seconds
            )
            self._running[key] += is_admitted
        try:
            yield is_admitted
        finally:
            with self._changed:
                self._running[key] -= is_admitted
                if not self._running[key]:
                    del self._running[key]
                self._changed.notify_all()
