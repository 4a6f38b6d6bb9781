"""Shares of the portal's threads: the requests of a user, a tenant or an address take turns.

Who sends a request is known once Flask has authenticated it, which takes a thread. A credential is
therefore remembered: its first request counts by address, like all without one, later ones by user
and tenant, so that users behind one address do not wait for each other. A credential that ends
meanwhile only counts as before.
"""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from weakref import WeakValueDictionary

from starlette.types import Scope

from portal.auth.guard import SIGNED_IN

USER_SHARE, TENANT_SHARE, ADDRESS_SHARE = 1 / 4, 1 / 2, 1 / 4
REMEMBERED_SECONDS = 300.0
MAX_REMEMBERED = 10_000
_CREDENTIALS = frozenset({b"cookie", b"authorization"})


class PortalShares:
    """Hands out turns. For the tasks of one event loop.

    Args:
        threads: of the portal, for all requests.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._signed_in: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()

    def turns_of(self, scope: Scope, network: str) -> list[asyncio.Semaphore]:
        """Return what a request must acquire, in this order, before it gets a thread."""
        user_id, tenant_id, until = self._signed_in.get(_credential(scope), ("", "", 0.0))
        if time.monotonic() >= until:
            return [self._turn(f"address {network}", ADDRESS_SHARE)]
        # The user's first: whoever has many requests waits with few of them for the tenant's.
        turns = [self._turn(f"user {user_id}", USER_SHARE)]
        if tenant_id:
            turns.append(self._turn(f"tenant {tenant_id}", TENANT_SHARE))
        return turns

    def remember(self, scope: Scope) -> None:
        """Remember who has sent an answered request."""
        if SIGNED_IN in scope:
            credential = _credential(scope)
            until = time.monotonic() + REMEMBERED_SECONDS
            self._signed_in[credential] = (*scope[SIGNED_IN], until)
            self._signed_in.move_to_end(credential)
            if len(self._signed_in) > MAX_REMEMBERED:
                self._signed_in.popitem(last=False)

    def _turn(self, name: str, share: float) -> asyncio.Semaphore:
        return self._turns.setdefault(name, asyncio.Semaphore(math.ceil(self._threads * share)))


def _credential(scope: Scope) -> bytes:
    """Return a hash of the headers that authenticate a request."""
    digest = hashlib.sha256()
    for name, value in scope["headers"]:
        if name in _CREDENTIALS:
            digest.update(b"%b: %b\n" % (name, value))
    return digest.digest()
