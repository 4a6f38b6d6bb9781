"""Long polls: agents wait here until what they should run changes.

One task reads the generations of all appliances that are waited for, in one query each round, and
wakes those whose number moved. A waiter is a future, so ten thousand of them need no thread; the
task ends with the last waiter.
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
# Up to this many appliances are named in the query; more are read with all the others.
_MAX_NAMED = 500

ReadGenerations = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    generation: int
    woken: asyncio.Future[None]


class GenerationWatch:
    """Waits for appliances' generations to move. For the tasks of one event loop."""

    def __init__(
        self, read: ReadGenerations, *, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._read = read
        self._interval_seconds = interval_seconds
        self._waiters: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(map(len, self._waiters.values()))

    async def wait(
        self,
        appliance_id: str,
        generation: int,
        *,
        timeout_seconds: float,
        gone: Awaitable[object],
    ) -> bool:
        """Wait until the appliance's generation is another; return whether it is.

        Args:
            appliance_id: whose generation.
            generation: the one that the agent has.
            timeout_seconds: how long at most.
            gone: ends the wait when it is done, such as when the client hangs up.
        """
        waiter = _Waiter(generation, asyncio.get_running_loop().create_future())
        self._waiters[appliance_id].add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        hung_up = asyncio.ensure_future(gone)
        ends: set[asyncio.Future[Any]] = {waiter.woken, hung_up}
        try:
            await asyncio.wait(
                ends,
                timeout=timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return waiter.woken.done()
        finally:
            hung_up.cancel()
            waiter.woken.cancel()
            self._forget(appliance_id, waiter)

    async def _poll(self) -> None:
        while self._waiters:
            try:
                self._wake(await self._read(list(self._waiters)))
            except SQLAlchemyError as error:
                # The waiters' own requests meet the fault when they end; here the next round does.
                logger.warning("generations can't be read: %s", error)
            await asyncio.sleep(self._interval_seconds)

    def _wake(self, generations: Mapping[str, int]) -> None:
        for appliance_id, waiters in self._waiters.items():
            # A deleted appliance has no generation: its agent is woken and told so.
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
    """Return the query behind a watch."""

    async def read(appliance_ids: Collection[str]) -> Mapping[str, int]:
        return await database.run(lambda session: _generations(session, appliance_ids))

    return read


def _generations(session: Session, appliance_ids: Collection[str]) -> Mapping[str, int]:
    statement = select(Appliance.id, Appliance.desired_generation)
    if len(appliance_ids) <= _MAX_NAMED:
        statement = statement.where(Appliance.id.in_(appliance_ids))
    return {row.id: row.desired_generation for row in session.execute(statement)}
