"""Waiting for changes: agents for their desired state, followers for their job.

One task reads the versions of awaited objects, many in one query, and wakes the waiters whose
version changed. A waiter is a future, so ten thousand of them need no threads; the task ends with
the last one.

It reads what the bus of changes tells, at once, and what waiters begin to wait for, unless no
change was told since somebody waited for that version. The rest is polled, in case a change is told
to nobody: several times a second, or, while the changes of all processes arrive, over
`SWEEP_SECONDS`, some objects at a time.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import Request

from access.database import Database
from core.changes import ANY, ChangeBus, Topic
from core.errors import DatabaseUnavailableError
from tenants.fleet.states import has_no_connector
from tenants.models import Appliance

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.3
# In this time, all objects are polled while changes are told.
SWEEP_SECONDS = 10.0
# Between two reads of changes that are told: a thousand of them need no thousand queries.
PAUSE_SECONDS = 0.015
# Reads of changes take this part of the time at most.
_READ_SHARE = 0.25
# Up to this many appliances are listed in the query; above it, all are read.
_MAX_NAMED = 500
# Versions that nobody waits for at present are remembered for so many objects.
_MAX_CURRENT = 50_000

ReadVersions = Callable[[Collection[str]], Awaitable[Mapping[str, Hashable]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Waits for an object; `woken` and `changed` may be those of others, too."""

    version: Hashable
    woken: asyncio.Future[None]
    changed: list[str]


class ChangeWatch:
    """Waits for changes of objects' versions. For the tasks of one event loop.

    Args:
        read: returns the versions of objects by ID.
        bus: tells of changes.
        topic: of these objects.
        interval_seconds: of polling, while the bus does not tell the changes of all processes.
    """

    def __init__(
        self,
        read: ReadVersions,
        bus: ChangeBus,
        topic: Topic,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._read = read
        self._bus = bus
        self._interval_seconds = interval_seconds
        self._waiters: defaultdict[str, set[_Waiter]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rescheduled = asyncio.Event()
        # What to read, and when.
        self._named = set[str]()
        self._reading = set[str]()
        self._named_at = math.inf
        # Versions when their last waiter left; no change of these objects was told since.
        self._current: dict[str, Hashable] = {}
        bus.listen(topic, self._hear)

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
        self._loop = asyncio.get_running_loop()
        woken = self._loop.create_future()
        changed: list[str] = []
        waiters = [(ident, _Waiter(version, woken, changed)) for ident, version in versions.items()]
        for ident, waiter in waiters:
            self._waiters[ident].add(waiter)
        if self._task is None or self._task.done():
            self._named, self._named_at, self._rescheduled = set(), math.inf, asyncio.Event()
            self._task = asyncio.create_task(self._watch())
        unread = [
            ident for ident, version in versions.items() if self._current.get(ident) != version
        ]
        if self._bus.is_complete and unread:
            # A change since the caller has read the versions was told before it waited.
            self._name(unread, self._interval_seconds / 2)
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

    def _hear(self, idents: Collection[str]) -> None:
        """Note changes of objects that somebody waits for; called by any thread."""
        self._outdate(idents)
        awaited = [ident for ident in idents if ident in self._waiters or ident == ANY]
        if awaited and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._name, awaited, 0.0)

    def _outdate(self, idents: Collection[str]) -> None:
        if ANY in idents:
            self._current.clear()
        for ident in idents:
            self._current.pop(ident, None)

    def _name(self, idents: Collection[str], within_seconds: float) -> None:
        """Let objects be read soon."""
        self._outdate(idents)
        self._named.update(idents)
        at = asyncio.get_running_loop().time() + within_seconds
        if at < self._named_at:
            self._named_at = at
            self._rescheduled.set()

    async def _watch(self) -> None:
        now = asyncio.get_running_loop().time
        poll_at = now() + self._poll_seconds() if self._bus.is_complete else now()
        sweep: list[str] = []
        while self._waiters:
            idle_seconds = min(self._named_at, poll_at) - now()
            if idle_seconds > 0:
                self._rescheduled.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._rescheduled.wait(), idle_seconds)
                continue
            began = now()
            idents, self._named, self._named_at = self._named, set(), math.inf
            is_poll = began >= poll_at
            if ANY in idents or (is_poll and not self._bus.is_complete):
                idents, sweep = set(self._waiters), []
                poll_at = began + self._poll_seconds()
            elif is_poll:
                sweep = sweep or list(self._waiters)
                idents.update(sweep[:_MAX_NAMED])
                sweep = sweep[_MAX_NAMED:]
                poll_at = began + self._poll_seconds()
            self._reading = {ident for ident in idents if ident in self._waiters}
            await self._check(self._reading)
            self._reading = set()
            # Polls are rare enough.
            pause = 0.0 if is_poll else (now() - began) / _READ_SHARE
            await asyncio.sleep(min(max(PAUSE_SECONDS, pause), self._interval_seconds))

    def _poll_seconds(self) -> float:
        """Return the time until the next objects are polled."""
        if not self._bus.is_complete:
            return self._interval_seconds
        return SWEEP_SECONDS / max(1, math.ceil(len(self._waiters) / _MAX_NAMED))

    async def _check(self, idents: Collection[str]) -> None:
        """Read versions, and wake the waiters for whom they are others."""
        if not idents:
            return
        try:
            versions = await self._read(idents)
        except DatabaseUnavailableError as error:
            # The waiters themselves meet the error when they end.
            logger.debug("can't read the versions: %s", error)
            self._name(idents, self._interval_seconds)
            return
        for ident in idents:
            # A deleted object has no version: its waiters go on and don't find it.
            current = versions.get(ident)
            for waiter in self._waiters.get(ident, ()):
                if waiter.version == current:
                    continue
                waiter.changed.append(ident)
                if not waiter.woken.done():
                    waiter.woken.set_result(None)

    def _forget(self, ident: str, waiter: _Waiter) -> None:
        is_read = not any(ident in part or ANY in part for part in (self._named, self._reading))
        if is_read and self._bus.is_complete and not waiter.changed:
            # Before the waiter is gone: what is told from here on outdates it in any case.
            if len(self._current) >= _MAX_CURRENT:
                self._current.clear()
            self._current[ident] = waiter.version
        waiters = self._waiters[ident]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[ident]
        if not self._waiters:
            self._rescheduled.set()  # the task ends


def generation_reader(database: Database) -> ReadVersions:
    """Return what reads the generations of appliances' desired states."""
    return lambda appliance_ids: database.run(lambda session: _generations(session, appliance_ids))


def _generations(session: Session, appliance_ids: Collection[str]) -> Mapping[str, int]:
    statement = select(Appliance.id, Appliance.desired_generation).where(has_no_connector())
    if len(appliance_ids) <= _MAX_NAMED:
        statement = statement.where(Appliance.id.in_(appliance_ids))
    return dict(session.execute(statement).all())


async def disconnected(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
