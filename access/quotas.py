"""What the operator allows each tenant to send: its own number of series, and its storage.

The figures are read anew every few seconds, in the background, so that no push waits for them.
Storage is measured now and then: a tenant goes over its quota by what it sends until then.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from access.database import Database
from core.clock import Clock
from core.errors import OverloadedError
from core.units import format_value
from tenants.customers.quotas import all_limits
from tenants.customers.series import note_series
from tenants.customers.usage import latest_usage

logger = logging.getLogger(__name__)

READ_EVERY = timedelta(seconds=10)
COUNT_EVERY = timedelta(minutes=1)
SERVER_LENGTH = 64
# Long enough for the operator to act, short enough for an agent's buffer.
RETRY_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits by tenant; who is missing has none. `full` says why a tenant's storage is."""

    series: Mapping[str, int] = field(default_factory=dict)
    full: Mapping[str, str] = field(default_factory=dict)


class QuotaKeeper:
    """Keeps the quotas up to date. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._quotas = Quotas()
        self._asked_at: datetime | None = None
        self._reading: asyncio.Task[None] | None = None
        self._count: Callable[[datetime], Mapping[str, int]] | None = None
        self._counted_at: datetime | None = None
        self._server = f"{socket.gethostname()}:{os.getpid()}"[-SERVER_LENGTH:]

    def keep_counts_of(self, count: Callable[[datetime], Mapping[str, int]]) -> None:
        """Have it kept in the database how many series each tenant has, as this server counts."""
        self._count = count

    def max_series(self, tenant_id: str) -> int | None:
        """Return how many series a tenant may have by its own quota."""
        return self._quotas.series.get(tenant_id)

    async def check(self, tenant_id: str) -> None:
        """Refuse samples of a tenant whose storage is full.

        Raises:
            OverloadedError: it is; its agents keep their samples and try again.
        """
        now = self._clock()
        if self._asked_at is None or not timedelta(0) <= now - self._asked_at < READ_EVERY:
            is_first = self._asked_at is None
            self._asked_at = now
            self._reading = asyncio.create_task(self._read())
            if is_first:
                await asyncio.shield(self._reading)
        reason = self._quotas.full.get(tenant_id)
        if reason is not None:
            raise OverloadedError(reason, retry_after_seconds=RETRY_SECONDS)

    async def _read(self) -> None:
        try:
            self._quotas = await self._database.run(read_quotas)
        except SQLAlchemyError as error:
            logger.warning("the quotas can't be read, those of before stay: %s", error)
        else:
            await self._keep_counts()

    async def _keep_counts(self) -> None:
        now = self._clock()
        if self._count is None or (self._counted_at and now - self._counted_at < COUNT_EVERY):
            return
        counts = self._count(now)
        if not counts and self._counted_at is None:
            return
        self._counted_at = now
        try:
            await self._database.run(
                partial(note_series, server=self._server, counts=counts, now=now)
            )
        except SQLAlchemyError as error:
            logger.warning("the numbers of series can't be kept, later ones will be: %s", error)


def read_quotas(session: Session) -> Quotas:
    """Read what the gateway has to know of all quotas."""
    limits = all_limits(session)
    bounded = {key: one.max_storage_bytes for key, one in limits.items()}
    usage = latest_usage(session, [key for key, most in bounded.items() if most is not None])
    return Quotas(
        series={key: one.max_series for key, one in limits.items() if one.max_series is not None},
        full={
            key: _full(used.storage_bytes, most)
            for key, used in usage.items()
            if (most := bounded[key]) is not None and used.storage_bytes >= most
        },
    )


def _full(used_bytes: int, most_bytes: int) -> str:
    return (
        f"The tenant's samples take {format_value('size_bytes', used_bytes)} of at most "
        f"{format_value('size_bytes', most_bytes)}, and no more are taken. Ask the portal's "
        "operator for more storage; what is sent again later is not lost."
    )
