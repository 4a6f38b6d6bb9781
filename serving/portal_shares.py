"""Shares of the portal's threads: the requests of a user, a tenant or an address take turns.

Who sends a request is known once Flask has authenticated it, which takes a thread. A credential is
therefore remembered: its first request counts by address, like all without one, later ones by user
and tenant, so that users behind one address do not wait for each other. A credential that ends
meanwhile only counts as before.

Python computes in one thread at a time, so that every thread that computes makes all others wait. A
user whose requests have computed for long (a script that stops thousands of jobs) has a single
thread for a while, and pauses after each request for three times as long as it has computed, but
not so long that a page after a costly report seems to hang. While the users of a tenant, or those
without a credential behind an address, have computed for long together, their requests give way to
all others (`core.turns`): a tenant may have many users who work.
"""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from weakref import WeakValueDictionary

from starlette.types import Scope

from portal.auth.guard import SIGNED_IN

USER_SHARE, TENANT_SHARE, ADDRESS_SHARE = 1 / 4, 1 / 2, 1 / 4
# A user is busy whose requests have computed for as long. What is counted halves with time.
BUSY_CPU_SECONDS, HALF_LIFE_SECONDS = 1.0, 5.0
# A pause lasts so many times as long as the request before has computed.
PAUSE_SHARE, MAX_PAUSE_SECONDS = 3.0, 2.0
REMEMBERED_SECONDS = 300.0
MAX_REMEMBERED = 10_000
# In the ASGI scope of a request: whether its sender has computed for long.
IS_BUSY = "vedette.is_busy"
_CREDENTIALS = frozenset({b"cookie", b"authorization"})


@dataclass(slots=True)
class _Use:
    """How long the requests of a sender have computed, and when a user's next may begin."""

    cpu_seconds: float = 0.0
    at: float = 0.0
    free_at: float = 0.0

    def recent(self, now: float) -> float:
        return self.cpu_seconds * math.exp2((self.at - now) / HALF_LIFE_SECONDS)

    def add(self, cpu_seconds: float, now: float) -> None:
        self.cpu_seconds, self.at = self.recent(now) + cpu_seconds, now
        self.free_at = now + min(PAUSE_SHARE * cpu_seconds, MAX_PAUSE_SECONDS)


class PortalShares:
    """Hands out turns. For the tasks of one event loop.

    Args:
        threads: of the portal, for all requests.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._signed_in: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()
        self._uses: OrderedDict[str, _Use] = OrderedDict()

    async def enter(self, scope: Scope, network: str, turns: ExitStack) -> bool:
        """Wait for the turns that a request needs before it gets a thread; return whether it did.

        Args:
            scope: of the request.
            network: of the client's address.
            turns: gets what releases them.
        """
        user_id, tenant_id, until = self._signed_in.get(_credential(scope), ("", "", 0.0))
        if time.monotonic() >= until:
            scope[IS_BUSY] = self._is_busy(f"address {network}")
            return await self._acquire(f"address {network}", ADDRESS_SHARE, turns)
        has_waited = await self._pause(user_id, turns)
        scope[IS_BUSY] = has_waited or self._is_busy(f"tenant {tenant_id}")
        # The user's first: whoever has many requests waits with few of them for the tenant's.
        has_waited |= await self._acquire(f"user {user_id}", USER_SHARE, turns)
        if tenant_id:
            has_waited |= await self._acquire(f"tenant {tenant_id}", TENANT_SHARE, turns)
        return has_waited

    def charge(self, scope: Scope, network: str, cpu_seconds: float) -> None:
        """Count how long a request has computed, towards the shares of its senders."""
        if not cpu_seconds:
            return
        user_id, tenant_id = scope.get(SIGNED_IN, ("", ""))
        names = [f"user {user_id}"] if user_id else [f"address {network}"]
        for name in [*names, f"tenant {tenant_id}"] if tenant_id else names:
            self._uses.setdefault(name, _Use()).add(cpu_seconds, time.monotonic())
            self._uses.move_to_end(name)
            if len(self._uses) > MAX_REMEMBERED:
                self._uses.popitem(last=False)

    def remember(self, scope: Scope) -> None:
        """Remember who has sent an answered request."""
        if SIGNED_IN in scope:
            credential = _credential(scope)
            until = time.monotonic() + REMEMBERED_SECONDS
            self._signed_in[credential] = (*scope[SIGNED_IN], until)
            self._signed_in.move_to_end(credential)
            if len(self._signed_in) > MAX_REMEMBERED:
                self._signed_in.popitem(last=False)

    async def _pause(self, user_id: str, turns: ExitStack) -> bool:
        """Let a user who has computed for long wait for its other requests, and a while more."""
        name = f"user {user_id}"
        if not self._is_busy(name):
            return False
        use = self._uses[name]
        await self._acquire(f"busy {name}", 0.0, turns)
        await asyncio.sleep(use.free_at - time.monotonic())
        return True

    def _is_busy(self, name: str) -> bool:
        use = self._uses.get(name)
        return use is not None and use.recent(time.monotonic()) >= BUSY_CPU_SECONDS

    async def _acquire(self, name: str, share: float, turns: ExitStack) -> bool:
        count = max(1, math.ceil(self._threads * share))
        turn = self._turns.setdefault(name, asyncio.Semaphore(count))
        has_waited = turn.locked()
        await turn.acquire()
        turns.callback(turn.release)
        return has_waited


def _credential(scope: Scope) -> bytes:
    """Return a hash of the headers that authenticate a request."""
    digest = hashlib.sha256()
    for name, value in scope["headers"]:
        if name in _CREDENTIALS:
            digest.update(b"%b: %b\n" % (name, value))
    return digest.digest()
