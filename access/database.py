"""The database as asynchronous code reaches it: short transactions in a few threads."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from sqlalchemy.orm import Session

from core.clock import Clock, utc_now
from core.db import SessionFactory, transaction
from tenants.audit import Actor, acting, set_actor

T = TypeVar("T")

# Fewer than the pool has connections, so that agents never starve the people's door.
MAX_THREADS = 8
# Who the audit log names where a request does not say which agent it is from.
AGENTS = Actor(name="an agent", via="agents' door")


class Database:
    """Runs work on a session in a thread; what waits for a thread waits without one."""

    def __init__(self, sessions: SessionFactory, *, clock: Clock = utc_now) -> None:
        self._sessions = acting(sessions, AGENTS, clock=clock)
        self._clock = clock
        self._limiter = CapacityLimiter(MAX_THREADS)

    async def run(self, work: Callable[[Session], T], *, actor: Actor | None = None) -> T:
        """Run `work` in a transaction and return its result; `actor` is who does it."""
        return await to_thread.run_sync(self._in_transaction, work, actor, limiter=self._limiter)

    def _in_transaction(self, work: Callable[[Session], T], actor: Actor | None) -> T:
        with transaction(self._sessions) as session:
            if actor is not None:
                set_actor(session, actor, clock=self._clock)
            return work(session)
