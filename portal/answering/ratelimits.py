"""How much one may ask: token buckets by user and by address, each process its own.

An address is asked about before anybody's credentials are looked at, a user after. Their buckets
hold what `BURST_SECONDS` bring, so that a page with its dashboards opens at once; who empties one
is answered 429 with `Retry-After`. Static files are free.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from flask import Flask, request

from core.errors import OverloadedError
from portal.answering.security import DASH_FILES
from portal.context import portal, visitor

BURST_SECONDS = 10.0
# Beyond this many, the bucket that was asked for longest ago is forgotten.
MAX_BUCKETS = 20_000
FREE_ENDPOINTS = frozenset({"static", "health.health"})

Monotonic = Callable[[], float]


class TooManyRequestsError(OverloadedError):
    """Somebody asks more often than the operator allows."""

    default_code = "too_many_requests"


class RateLimit:
    """Buckets that fill at one rate, by whom they are.

    Args:
        per_second: how many requests a bucket gains each second; 0 is no limit.
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
        if not self._per_second:
            return 0.0
        now = self._monotonic()
        with self._lock:
            level, then = self._buckets.pop(who, (self._capacity, now))
            level = min(level + (now - then) * self._per_second, self._capacity)
            is_left = level >= 1
            level -= is_left
            self._buckets[who] = (level, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return 0.0 if is_left else (1 - level) / self._per_second


def install_address_limit(app: Flask, *, monotonic: Monotonic = time.monotonic) -> None:
    """Limit addresses; call it before the lock is put on."""
    _install(app, "address", lambda: request.remote_addr, monotonic=monotonic)


def install_user_limit(app: Flask, *, monotonic: Monotonic = time.monotonic) -> None:
    """Limit users, in all their browsers and tokens together; call it after the lock."""
    _install(app, "user", _user_id, monotonic=monotonic)


def _install(app: Flask, kind: str, who: Callable[[], str | None], *, monotonic: Monotonic) -> None:
    with app.app_context():
        per_second = getattr(portal().settings, f"requests_per_second_per_{kind}")
    limit = RateLimit(per_second, monotonic=monotonic)

    def check() -> None:
        name = None if _is_free() else who()
        seconds = 0.0 if name is None else limit.take(name)
        if seconds:
            raise TooManyRequestsError(
                f"This {kind} asks more than {per_second:g} times a second. Wait a moment, and "
                "then ask less often.",
                retry_after_seconds=math.ceil(seconds),
            )

    app.before_request(check)


def _user_id() -> str | None:
    here = visitor()
    return None if here is None else here.user.id


def _is_free() -> bool:
    return request.endpoint in FREE_ENDPOINTS or request.path.startswith(DASH_FILES)
