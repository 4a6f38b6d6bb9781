"""Waiting for changes: agents for their desired state, followers for their job.

One task reads the versions of all awaited objects in one query each round and wakes the waiters
whose version changed. A waiter is a future, so ten thousand of them need no threads; the task ends
with the last one.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import Request

from access.database import Database
from core.errors import DatabaseUnavailableError
from tenants.models import Appliance

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.3
# Up to this many appliances are listed in the query; above it, all are read.
_MAX_NAMED = 500

ReadVersions = Callable[[Collection[str]], Awaitable[Mapping[str, Hashable]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Waits for an object; `woken` and `changed` may be those of others, too."""

    version: Hashable
    woken: asyncio.Future[None]
    changed: list[str]


class ChangeWatch:
    """Waits for changes of objects' versions. For the tasks of one event loop."""

    def __init__(self, read: ReadVersions, *, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._read = read
        self._interval_seconds = interval_seconds
        self._waiters: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return sum(map(len, self._waiters.values()))

    async def wait(
        self,
        ident: str,
        version: Hashable,
        *,
        timeout_seconds: float,
        disconnected: Awaitable[object] | None = None,
    ) -> bool:
        """Wait until the version of an object is another one; return whether it is.

        `disconnected` ends the wait when it is done.
        """
        versions = {ident: version}
        return bool(
            await self.wait_any(
                versions, timeout_seconds=timeout_seconds, disconnected=disconnected
            )
        )

    async def wait_any(
        self,
        versions: Mapping[str, Hashable],
        *,
        timeout_seconds: float,
        disconnected: Awaitable[object] | None = None,
    ) -> list[str]:
        """Wait until any of several objects has another version; return those that have.

        `disconnected` ends the wait when it is done.
        """
        woken = asyncio.get_running_loop().create_future()
        changed: list[str] = []
        waiters = [(ident, _Waiter(version, woken, changed)) for ident, version in versions.items()]
        for ident, waiter in waiters:
            self._waiters[ident].add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        ends: set[asyncio.Future[Any]] = {woken}
        if disconnected is not None:
            ends.add(asyncio.ensure_future(disconnected))
        try:
            await asyncio.wait(ends, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            return list(dict.fromkeys(changed))
        finally:
            for end in ends:
                end.cancel()
            for ident, waiter in waiters:
                self._forget(ident, waiter)

    async def _poll(self) -> None:
        while self._waiters:
            try:
                self._wake(await self._read(list(self._waiters)))
            except DatabaseUnavailableError as error:
                # Retried in the next round; the waiters themselves meet the error when they end.
                logger.debug("can't read the versions: %s", error)
            await asyncio.sleep(self._interval_seconds)

    def _wake(self, versions: Mapping[str, Hashable]) -> None:
        for ident, waiters in self._waiters.items():
            # A deleted object has no version: its waiters go on and don't find it.
            current = versions.get(ident)
            for waiter in waiters:
                if waiter.version == current:
                    continue
                waiter.changed.append(ident)
                if not waiter.woken.done():
                    waiter.woken.set_result(None)

    def _forget(self, ident: str, waiter: _Waiter) -> None:
        waiters = self._waiters[ident]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[ident]


def generation_reader(database: Database) -> ReadVersions:
    """Return what reads the generations of appliances' desired states."""
    return lambda appliance_ids: database.run(lambda session: _generations(session, appliance_ids))


def _generations(session: Session, appliance_ids: Collection[str]) -> Mapping[str, int]:
    statement = select(Appliance.id, Appliance.desired_generation)
    if len(appliance_ids) <= _MAX_NAMED:
        statement = statement.where(Appliance.id.in_(appliance_ids))
    return dict(session.execute(statement).all())


async def disconnected(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
