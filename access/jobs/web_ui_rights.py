"""The rights of users who have web pages of jobs open, read from the database every few seconds.

A page of a job sends many requests, so what a reading found counts for `RIGHTS_SECONDS`. What stays
open for longer is checked as often, and ends when the user has lost the right to it.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from access.database import Database
from core.clock import Clock
from jobqueue.services.web_ui import AsleepError, Proof, Target, port_of_pass

T = TypeVar("T")

RIGHTS_SECONDS = 5.0


class WebUIRights:
    """Reads the rights of passes. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._targets: dict[Proof, asyncio.Task[Target]] = {}

    async def target(self, proof: Proof) -> Target:
        """Return where the port of a pass is, as `port_of_pass` does; requests share a reading."""
        reading = self._targets.get(proof)
        if reading is None:
            reading = self._targets[proof] = asyncio.create_task(self._read(proof))
        return await asyncio.shield(reading)

    def forget(self, proof: Proof) -> None:
        """Let the next request read again: the job may have ended or moved."""
        self._targets.pop(proof, None)

    async def while_allowed(self, proof: Proof, work: Awaitable[T]) -> T:
        """Return the result of some work, which is cancelled when its user may not go on.

        Raises:
            VedetteError: the user may not go on, as `port_of_pass` does.
        """
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([working], timeout=RIGHTS_SECONDS))[0]:
                with suppress(AsleepError):  # the instance at work may finish
                    await self.target(proof)
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _read(self, proof: Proof) -> Target:
        ours, seconds = asyncio.current_task(), 0.0
        try:
            now = self._clock()
            target = await self._database.run(lambda session: port_of_pass(session, proof, now=now))
            seconds = RIGHTS_SECONDS
            return target
        finally:
            asyncio.get_running_loop().call_later(seconds, self._expire, proof, ours)

    def _expire(self, proof: Proof, reading: "asyncio.Task[Target] | None") -> None:
        if self._targets.get(proof) is reading:
            del self._targets[proof]
