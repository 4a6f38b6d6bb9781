"""The lists of access points that agents get in answers to their heartbeats."""

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from access.database import Database
from core.errors import DatabaseUnavailableError
from protocol.access_points import NO_ACCESS_POINTS, AccessPointAddress, AccessPointList
from tenants.fleet.access_points import read_addresses

# A change reaches agents with the heartbeats that follow this.
MAX_AGE_SECONDS = 5.0
_REVISION_LENGTH = 32


class AccessPointLists:
    """The lists of all tenants, read again when they are old. For the tasks of one event loop."""

    def __init__(self, database: Database, *, public_url: str) -> None:
        self._database = database
        self._last = AccessPointAddress(url=public_url.rstrip("/"), weight=0)
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._shared = list_of([], self._last)
        self._only_last = list_of([self._last], self._last)
        self._of_tenants: dict[str, AccessPointList] = {}

    async def news_for(self, tenant_id: str, revision: str) -> AccessPointList | None:
        """Return the list for an agent of a tenant; None if it has it, or supports none.

        While the database is away, it is the last one that was read. An agent that had a list
        keeps the public URL when the last access point is removed: its own configuration may name
        just that, such as the relay at which it was enrolled.
        """
        if not revision:
            return None
        await self._refresh()
        current = self._of_tenants.get(tenant_id, self._shared)
        if not current.points and revision != NO_ACCESS_POINTS:
            current = self._only_last
        return None if current.revision == revision else current

    async def _refresh(self) -> None:
        async with self._reading:
            now = time.monotonic()
            if self._read_at is not None and now < self._read_at + MAX_AGE_SECONDS:
                return
            try:
                rows = await self._database.run(read_addresses)
            except DatabaseUnavailableError:
                if self._read_at is None:
                    raise
                rows = None
            self._read_at = now
            if rows is None:
                return
            by_tenant: defaultdict[str | None, list[AccessPointAddress]] = defaultdict(list)
            for tenant_id, address in rows:
                by_tenant[tenant_id].append(address)
            shared = by_tenant.pop(None, [])
            self._shared = list_of(shared, self._last)
            self._of_tenants = {
                ident: list_of([*shared, *own], self._last)
                for ident, own in by_tenant.items()
                if ident is not None
            }


def list_of(points: Sequence[AccessPointAddress], last: AccessPointAddress) -> AccessPointList:
    """Return the list of configured addresses; `last` is added where no other is its URL."""
    if not points:
        return AccessPointList(revision=NO_ACCESS_POINTS, points=[])
    addresses = sorted(points, key=lambda point: point.url)
    if all(point.url != last.url for point in addresses):
        addresses.append(last)
    digest = hashlib.sha256(msgspec.json.encode(addresses)).hexdigest()
    return AccessPointList(revision=digest[:_REVISION_LENGTH], points=addresses)
