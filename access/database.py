"""The database as asynchronous code reaches it: short transactions in a few threads."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction

T = TypeVar("T")

# Fewer than the pool has connections, so that agents never starve the people's door.
MAX_THREADS = 8


class Database:
    """Runs work on a session in a thread; what waits for a thread waits without one."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions
        self._limiter = CapacityLimiter(MAX_THREADS)

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction and return its result."""
        return await to_thread.run_sync(self._in_transaction, work, limiter=self._limiter)

    def _in_transaction(self, work: Callable[[Session], T]) -> T:
        with transaction(self._sessions) as session:
            return work(session)
