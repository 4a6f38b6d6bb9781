"""Rate limits of requests by address and by user, over all processes.

Addresses are checked before authentication, users after it. The burst (`core.rate_limits`) is
large enough for a page with its dashboards. Above the limit the answer is 429 with `Retry-After`.
Static files are not limited.
"""

import math
from collections.abc import Callable

from flask import Flask, request

from core.errors import OverloadedError
from core.shared_limits import SharedLimits
from portal.context import portal
from portal.middleware.security import DASH_FILES

FREE_ENDPOINTS = frozenset({"static", "home.health"})


class TooManyRequestsError(OverloadedError):
    """A user or an address exceeds its rate limit."""

    default_code = "too_many_requests"


def install_rate_limit(
    app: Flask, kind: str, key: Callable[[], str | None], limits: SharedLimits, *, of: str = ""
) -> None:
    """Limit the requests of each address or user.

    Args:
        app: the app.
        kind: `address` or `user`; its setting gives the limit.
        key: returns whose request it is; None is not limited.
        limits: those of all processes.
        of: the kind of requests that have a limit of their own, such as `public`.
    """
    prefix = f"{of}_" if of else ""
    with app.app_context():
        per_second = getattr(portal().settings, f"{prefix}requests_per_second_per_{kind}")
    limit = limits.rate(f"{of} requests by {kind}".strip(), per_second)

    def check() -> None:
        is_free = request.endpoint in FREE_ENDPOINTS or request.path.startswith(DASH_FILES)
        limited_key = None if is_free else key()
        wait_seconds = 0.0 if limited_key is None else limit.hit(limited_key)
        if wait_seconds:
            raise TooManyRequestsError(
                f"This {kind} sends more than {per_second:g} requests per second. Wait a moment, "
                "then send fewer.",
                retry_after_seconds=math.ceil(wait_seconds),
            )

    app.before_request(check)
