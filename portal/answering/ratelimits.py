"""How much one may ask: token buckets by user and by address, each process its own.

An address is asked about before anybody's credentials are looked at, a user after. Their buckets
(`core.buckets`) hold enough that a page with its dashboards opens at once; who empties one is
answered 429 with `Retry-After`. Static files are free.
"""

import math
import time
from collections.abc import Callable

from flask import Flask, request

from core.buckets import Buckets, Monotonic
from core.errors import OverloadedError
from portal.answering.security import DASH_FILES
from portal.context import portal, visitor

FREE_ENDPOINTS = frozenset({"static", "health.health"})


class TooManyRequestsError(OverloadedError):
    """Somebody asks more often than the operator allows."""

    default_code = "too_many_requests"


def install_address_limit(app: Flask, *, monotonic: Monotonic = time.monotonic) -> None:
    """Limit addresses; call it before the lock is put on."""
    _install(app, "address", lambda: request.remote_addr, monotonic=monotonic)


def install_user_limit(app: Flask, *, monotonic: Monotonic = time.monotonic) -> None:
    """Limit users, in all their browsers and tokens together; call it after the lock."""
    _install(app, "user", _user_id, monotonic=monotonic)


def _install(app: Flask, kind: str, who: Callable[[], str | None], *, monotonic: Monotonic) -> None:
    with app.app_context():
        per_second = getattr(portal().settings, f"requests_per_second_per_{kind}")
    limit = Buckets(per_second, monotonic=monotonic)

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
