"""Long polls: agents wait until their desired state changes.

One task reads the generations of all polling appliances in one query each round and wakes the polls
whose generation changed. A poll is a future, so ten thousand of them need no threads; the task ends
with the last one.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from access.database import Database
from tenants.models import Appliance

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.3
# Up to this many appliances are listed in the query; above it, all are read.
_MAX_NAMED = 500

ReadGenerations = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    generation: int
    woken: asyncio.Future[None]


class GenerationWatch:
    """Waits for changes of appliances' generations. For the tasks of one event loop."""

    def __init__(
        self, read: ReadGenerations, *, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._read = read
        self._interval_seconds = interval_seconds
        self._waiters: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of open polls."""
        return sum(map(len, self._waiters.values()))

    async def wait(
        self,
        appliance_id: str,
        generation: int,
        *,
        timeout_seconds: float,
        disconnected: Awaitable[object],
    ) -> bool:
        """Wait until the appliance's generation is another one; return whether it is.

        `disconnected` ends the wait when it is done.
        """
        waiter = _Waiter(generation, asyncio.get_running_loop().create_future())
        self._waiters[appliance_id].add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        disconnect = asyncio.ensure_future(disconnected)
        ends: set[asyncio.Future[Any]] = {waiter.woken, disconnect}
        try:
            await asyncio.wait(ends, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            return waiter.woken.done()
        finally:
            disconnect.cancel()
            waiter.woken.cancel()
            self._forget(appliance_id, waiter)

    async def _poll(self) -> None:
        while self._waiters:
            try:
                self._wake(await self._read(list(self._waiters)))
            except SQLAlchemyError as error:
                # Retried in the next round; the polls themselves report the error when they end.
                logger.warning("can't read the generations: %s", error)
            await asyncio.sleep(self._interval_seconds)

    def _wake(self, generations: Mapping[str, int]) -> None:
        for appliance_id, waiters in self._waiters.items():
            # A deleted appliance has no generation: its poll ends with an error.
            current = generations.get(appliance_id)
            for waiter in waiters:
                if waiter.generation != current and not waiter.woken.done():
                    waiter.woken.set_result(None)

    def _forget(self, appliance_id: str, waiter: _Waiter) -> None:
        waiters = self._waiters[appliance_id]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[appliance_id]


def generation_reader(database: Database) -> ReadGenerations:
    """Return the query of a watch."""
    return lambda appliance_ids: database.run(lambda one: _generations(one, appliance_ids))


def _generations(session: Session, appliance_ids: Collection[str]) -> Mapping[str, int]:
    statement = select(Appliance.id, Appliance.desired_generation)
    if len(appliance_ids) <= _MAX_NAMED:
        statement = statement.where(Appliance.id.in_(appliance_ids))
    return {row.id: row.desired_generation for row in session.execute(statement)}
