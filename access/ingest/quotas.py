"""Tenants' quotas for ingest: series, names and storage, cached from the database.

They are refreshed every few seconds in the background, so that no write waits for them. Storage is
measured periodically: a tenant can exceed its quota by what it sends in between.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from access.database import Database
from core.clock import Clock
from core.errors import DatabaseUnavailableError, OverloadedError
from core.quantities import format_size
from tenants.lifecycle.usage import SampleCounts, latest_usage, store_sample_counts
from tenants.quotas import Limits, all_limits

logger = logging.getLogger(__name__)

READ_EVERY = timedelta(seconds=10)
COUNT_EVERY = timedelta(minutes=1)
SERVER_LENGTH = 64
# Long enough for the operator to react, short enough for an agent's buffer.
RETRY_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits by tenant, if it has any; `full` has the error of tenants with full storage."""

    limits: Mapping[str, Limits] = field(default_factory=dict)
    full: Mapping[str, str] = field(default_factory=dict)


class QuotaCache:
    """Refreshes the quotas. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._quotas = Quotas()
        self._refreshed_at: datetime | None = None
        self._reading: asyncio.Task[None] | None = None
        self._count: Callable[[datetime], Mapping[str, SampleCounts]] | None = None
        self._counted_at: datetime | None = None
        self._server = f"{socket.gethostname()}:{os.getpid()}"[-SERVER_LENGTH:]

    def store_counts_of(self, count: Callable[[datetime], Mapping[str, SampleCounts]]) -> None:
        """Store the counts of tenants that `count` returns in the database regularly."""
        self._count = count

    def limit(self, tenant_id: str, name: str) -> int | None:
        """Return a tenant's own quota of `series`, `measurements` or `fields`, if any."""
        limits = self._quotas.limits.get(tenant_id)
        quota: int | None = None if limits is None else getattr(limits, f"max_{name}")
        return quota

    async def check(self, tenant_id: str) -> None:
        """Check that a tenant's storage is not full.

        Raises:
            OverloadedError: it is full; its agents buffer their samples and retry.
        """
        now = self._clock()
        if self._is_due(now):
            is_first = self._refreshed_at is None
            self._refreshed_at = now
            self._reading = asyncio.create_task(self._read())
            if is_first:
                await asyncio.shield(self._reading)
        reason = self._quotas.full.get(tenant_id)
        if reason is not None:
            raise OverloadedError(reason, retry_after_seconds=RETRY_SECONDS)

    def allows_at_once(self, tenant_id: str) -> bool:
        """Return whether a tenant's storage is not full; False, too, if `check` must find out."""
        return tenant_id not in self._quotas.full and not self._is_due(self._clock())

    def _is_due(self, now: datetime) -> bool:
        last = self._refreshed_at
        return last is None or not timedelta(0) <= now - last < READ_EVERY

    async def _read(self) -> None:
        try:
            self._quotas = await self._database.run(read_quotas)
        except DatabaseUnavailableError as error:
            logger.debug("can't read the quotas, using the previous ones: %s", error)
        else:
            await self._store_counts()

    async def _store_counts(self) -> None:
        now = self._clock()
        if self._count is None or (self._counted_at and now - self._counted_at < COUNT_EVERY):
            return
        counts = self._count(now)
        if not counts and self._counted_at is None:
            return
        self._counted_at = now
        try:
            await self._database.run(
                partial(store_sample_counts, server=self._server, counts=counts, now=now)
            )
        except DatabaseUnavailableError as error:
            logger.debug("can't store the counts of series and names, retrying: %s", error)


def read_quotas(session: Session) -> Quotas:
    """Read the quotas that the gateway enforces."""
    limits = all_limits(session)
    bounded = {key: limit.max_storage_bytes for key, limit in limits.items()}
    usage = latest_usage(
        session, [key for key, max_bytes in bounded.items() if max_bytes is not None]
    )
    return Quotas(
        limits=limits,
        full={
            key: _full(used.storage_bytes, max_bytes)
            for key, used in usage.items()
            if (max_bytes := bounded[key]) is not None and used.storage_bytes >= max_bytes
        },
    )


def _full(used_bytes: int, most_bytes: int) -> str:
    return (
        f"The tenant's samples take {format_size(used_bytes)} of "
        f"{format_size(most_bytes)}. New samples are rejected until there is room. "
        "Ask the portal's operator for more storage."
    )
