"""Counts the requests that this process passes on to services that scale.

Every few seconds the counts go to the database, as long as there are any; see
`jobqueue.services.autoscaling.traffic`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from access.database import Database
from core.clock import Clock
from core.errors import VedetteError
from core.ids import new_id
from jobqueue.services.autoscaling.traffic import Count, add_traffic

log = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0


@dataclass
class _Use:
    """What was counted since the last time, and the requests that are open, since when."""

    tenant_id: str
    since: float
    requests: int = 0
    busy_seconds: float = 0.0
    open_requests: int = 0

    def advance(self, now: float) -> None:
        self.busy_seconds += self.open_requests * (now - self.since)
        self.since = now


class TrafficCounter:
    """The counts of this process. For the tasks of one event loop."""

    def __init__(
        self, database: Database, *, clock: Clock, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._clock = clock
        self._timer = timer
        self._process_id = new_id()
        self._uses: dict[str, _Use] = {}
        self._flushing: asyncio.Task[None] | None = None

    @contextmanager
    def counting(self, service_id: str, tenant_id: str) -> Iterator[None]:
        """Count the block as a request to a service."""
        use = self._uses.setdefault(service_id, _Use(tenant_id, self._timer()))
        use.advance(self._timer())
        use.requests += 1
        use.open_requests += 1
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_while_used())
        try:
            yield
        finally:
            use.advance(self._timer())
            use.open_requests -= 1

    async def _flush_while_used(self) -> None:
        while self._uses:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Add the counts to the database; what it does not take is added the next time."""
        now, counts = self._timer(), []
        for service_id, use in list(self._uses.items()):
            use.advance(now)
            counts.append((service_id, use.tenant_id, Count(use.requests, use.busy_seconds)))
            use.requests, use.busy_seconds = 0, 0.0
        at = self._clock()
        try:
            await self._database.run(
                lambda session: add_traffic(session, self._process_id, counts, now=at)
            )
        except VedetteError as error:
            log.warning("the requests to %d services are not counted yet: %s", len(counts), error)
            for service_id, _, count in counts:
                use = self._uses[service_id]
                use.requests += count.requests
                use.busy_seconds += count.busy_seconds
            return
        for service_id, use in list(self._uses.items()):
            if not (use.open_requests or use.requests or use.busy_seconds):
                del self._uses[service_id]
