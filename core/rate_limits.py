"""Limits per key: of rates with bursts, in fixed windows, and of what runs concurrently.

This process counts; `core.shared_limits` adds what other processes have counted.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, RLock

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

BURST_SECONDS = 10
# Of other processes, by limit: more are not counted here.
MAX_SHARED_KEYS = 100_000


class WindowStorage(MemoryStorage):
    """The library's counters, without its thread, which walks over all keys 100 times a second.

    A hit deletes expired counters, at most once in a window: docs/decisions/0008-http-limits.md.

    With `notes_use`, `take_use` returns what was added since the last call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = RLock()
        self._swept_at = 0.0
        self.notes_use = False
        self._use: dict[str, int] = {}

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Add to a counter, which starts at 0 and lasts for `expiry` seconds; return its value."""
        now = time.time()
        with self._lock:
            self._sweep(now, expiry)
            used = self.get(key)
            self._add(key, amount, until=now + expiry)
            if self.notes_use:
                # What was used in the last window is over.
                self._use[key] = amount + (self._use.get(key, 0) if used else 0)
        return used + amount

    def take_use(self) -> list[tuple[str, int, float]]:
        """Return keys, what was added to each in its window, and the seconds left of that."""
        now = time.time()
        with self._lock:
            use, self._use = self._use, {}
            return [
                (key, amount, until - now)
                for key, amount in use.items()
                if (until := self.expirations.get(key, now)) > now
            ]

    def add_use(self, key: str, amount: int, seconds_left: float) -> None:
        """Add what another process has counted in a window; this one's ends with it."""
        now = time.time()
        with self._lock:
            self._sweep(now, BURST_SECONDS)
            if self.get(key) or len(self.storage) < MAX_SHARED_KEYS:
                self._add(key, amount, until=now + seconds_left)
                self.expirations[key] = min(self.expirations[key], now + seconds_left)

    def _add(self, key: str, amount: int, *, until: float) -> None:
        self.storage[key] = self.get(key) + amount
        self.expirations.setdefault(key, until)

    def _sweep(self, now: float, window_seconds: float) -> None:
        if not self._swept_at <= now < self._swept_at + window_seconds:
            self._swept_at = now
            for expired_key in [
                expired_key for expired_key, until in self.expirations.items() if until <= now
            ]:
                self.clear(expired_key)

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
            self.windows = WindowStorage()
            self._limiter = FixedWindowRateLimiter(self.windows)

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
        # Of other processes, by key: their number, and until when it counts (monotonic).
        self._elsewhere: dict[str, dict[str, tuple[int, float]]] = {}

    @contextmanager
    def running(self, key: str, *, wait_seconds: float = 0.0) -> Iterator[bool]:
        """Count the block as running; False, and not counted, if the limit is reached.

        Args:
            key: whose block it is.
            wait_seconds: how long to wait for another block to end.
        """
        with self._changed:
            is_admitted = self._changed.wait_for(
                lambda: self._running[key] + self._elsewhere_of(key) < self.max_running,
                wait_seconds,
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

    def counts(self) -> Mapping[str, int]:
        """Return how many blocks of each key run in this process."""
        with self._changed:
            return {key: count for key, count in self._running.items() if count}

    def note_elsewhere(self, process: str, counts: Mapping[str, int], *, seconds: float) -> None:
        """Note how many blocks of keys run in another process, for so many seconds."""
        until = time.monotonic() + seconds
        with self._changed:
            for key, count in counts.items():
                if count and (key in self._elsewhere or len(self._elsewhere) < MAX_SHARED_KEYS):
                    self._elsewhere.setdefault(key, {})[process] = count, until
                else:
                    self._elsewhere.get(key, {}).pop(process, None)
            self._changed.notify_all()

    def forget_elsewhere(self, process: str = "") -> None:
        """Forget what a process has told, and what no process has told again in time."""
        now = time.monotonic()
        with self._changed:
            self._elsewhere = {
                key: current
                for key, counts in self._elsewhere.items()
                if (
                    current := {
                        name: (count, until)
                        for name, (count, until) in counts.items()
                        if name != process and until > now
                    }
                )
            }
            self._changed.notify_all()

    def _elsewhere_of(self, key: str) -> int:
        now = time.monotonic()
        counts = self._elsewhere.get(key, {}).values()
        return sum(count for count, until in counts if until > now)
