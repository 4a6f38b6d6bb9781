"""Services that scale, as requests see them: which instance is for a request, and the wake-up."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from random import choice

from access.database import Database
from access.jobs.web_ui_rights import WebUIRights
from core.clock import Clock
from core.errors import UnavailableError
from core.rate_limits import ConcurrencyLimit
from jobqueue.services.web_ui import AsleepError, Place, Proof, Target, places_of, wake

# A page of a service has many requests.
INSTANCES_SECONDS = 2.0
MAX_SERVICES = 1_000
# How often a request that waits looks whether the service serves.
POLL_SECONDS = 0.5
# When a page that waits reloads, and programs may try again.
STARTING_SECONDS = 2
# Requests that wait, of each user and of this process.
MAX_WAITING_PER_USER = 32
MAX_WAITING = 256


class StartingError(UnavailableError):
    """A service wakes up; the request was not passed on."""

    default_code = "service_starting"


class Instances:
    """Chooses the instance with the fewest requests of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._used: Counter[str] = Counter()

    async def chosen(self, job_id: str) -> str:
        """Return the instance for a request to the address of a service; "" for other jobs."""
        now = time.monotonic()
        read_at, instances = self._read.get(job_id, (-math.inf, ()))
        if now - read_at > INSTANCES_SECONDS:
            instances = await self._database.run(lambda session: places_of(session, job_id))
            if len(self._read) >= MAX_SERVICES:
                self._read.clear()
            self._read[job_id] = now, instances
        return self._least_used(instances) if instances else ""

    def place(self, target: Target, instance_id: str) -> Place:
        """Return where a request goes: to the chosen instance, if it still serves."""
        by_id = {place.job_id: place for place in target.places}
        return by_id.get(instance_id) or by_id[self._least_used(list(by_id))]

    @contextmanager
    def using(self, instance_id: str) -> Iterator[None]:
        """Count the block as a request to an instance."""
        self._used[instance_id] += 1
        try:
            yield
        finally:
            self._used[instance_id] -= 1
            if not self._used[instance_id]:
                del self._used[instance_id]

    def _least_used(self, instance_ids: Sequence[str]) -> str:
        fewest = min(self._used[ident] for ident in instance_ids)
        return choice([ident for ident in instance_ids if self._used[ident] == fewest])  # noqa: S311


class Sleepers:
    """Wakes services for requests, which wait for that if they may."""

    def __init__(self, database: Database, rights: WebUIRights, *, clock: Clock) -> None:
        self._database = database
        self._rights = rights
        self._clock = clock
        self._waking: dict[str, asyncio.Task[bool]] = {}
        self._of_user = ConcurrencyLimit(MAX_WAITING_PER_USER)
        self._of_process = ConcurrencyLimit(MAX_WAITING)

    async def target(self, proof: Proof, *, may_wait: bool) -> Target:
        """Return where the port of a pass is, as `WebUIRights.target` does; wake its service.

        Raises:
            StartingError: the service does not serve yet; try again in a moment.
            VedetteError: the user may not open it, or a budget is spent.
        """
        try:
            return await self._rights.target(proof)
        except AsleepError as error:
            asleep = error
        with self._of_user.running(asleep.user_id) as is_first, self._of_process.running("") as has:
            may_wait = may_wait and is_first and has
            until = time.monotonic() + (asleep.hold_seconds if may_wait else 0)
            while True:
                if await self._is_awake(proof.job_id, asleep.user_id):
                    with suppress(AsleepError):
                        return await self._rights.target(proof)
                if time.monotonic() >= until:
                    raise StartingError(f"{asleep.message} Wait a moment.")
                await asyncio.sleep(POLL_SECONDS)

    async def _is_awake(self, job_id: str, user_id: str) -> bool:
        """Wake a service for a user who may open it; return whether it serves.

        All requests that wait for it share an answer of a moment ago, whoever sent them.
        """
        waking = self._waking.get(job_id)
        if waking is None:
            waking = asyncio.create_task(self._wake(job_id, user_id))
            self._waking[job_id] = waking
        return await asyncio.shield(waking)

    async def _wake(self, job_id: str, user_id: str) -> bool:
        now = self._clock()
        try:
            return await self._database.run(lambda session: wake(session, job_id, user_id, now=now))
        finally:
            asyncio.get_running_loop().call_later(POLL_SECONDS, self._waking.pop, job_id, None)
