"""Limit of the active series of each tenant.

A *series* here is a measurement with its tags on one appliance. It is *active* for one to two
hours after its last sample, as this process counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import repeat

from timeseries.identity import Identity
from timeseries.points import Batch, Block
from timeseries.store import IDENTITY_TAGS

ACTIVE_FOR = timedelta(hours=1)

_Series = dict[str, dict[int, int]]
"""Tenant to its series' hashes, each with the index of its tag set."""


@dataclass(slots=True)
class ActiveKeys:
    """Hashes of what was seen since `since`, and in the hour before."""

    since: datetime
    recent: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    only_earlier: int = 0

    def __len__(self) -> int:
        return len(self.recent) + self.only_earlier

    def count(self, now: datetime) -> int:
        """Return the number of active keys at an instant."""
        if now - self.since < ACTIVE_FOR:
            return len(self)
        return len(self.recent) if now - self.since < 2 * ACTIVE_FOR else 0

    def age(self, now: datetime) -> None:
        """Drop the keys last seen more than an hour ago."""
        if now - self.since >= ACTIVE_FOR:
            is_long_ago = now - self.since >= 2 * ACTIVE_FOR
            self.earlier = set() if is_long_ago else self.recent
            self.only_earlier = len(self.earlier)
            self.recent = set()
            self.since = now

    def admit(self, key: int, *, limit: int) -> bool:
        """Add a key that is not among the recent ones; return False above the limit."""
        if key not in self.earlier and len(self) >= limit:
            return False
        self.add(key)
        return True

    def add(self, key: int) -> None:
        """Add a key that is not among the recent ones."""
        self.only_earlier -= key in self.earlier
        self.recent.add(key)


class SeriesLimit:
    """Counts the active series of each tenant.

    A tenant's own limit, which `quota` returns, overrides `max_series`; 0 means unlimited.
    """

    def __init__(
        self, max_series: int, *, quota: Callable[[str], int | None] | None = None
    ) -> None:
        self._max_series = max_series
        self._quota = quota
        self._active: dict[str, ActiveKeys] = {}

    def rejected(self, batch: Batch, *, identity: Identity | None, now: datetime) -> dict[int, str]:
        """Count a batch's series; return the positions of points above the limit, with the reason.

        `identity` is the sender's; None if the points are stamped with theirs.
        """
        if not self._max_series and self._quota is None:
            return {}
        rejected: dict[int, str] = {}
        aged: dict[str, ActiveKeys] = {}
        for block in batch.blocks:
            series = _stamped_series(block) if identity is None else _series(block, identity)
            rejected |= self._over_limit(block, series, aged, now)
        return rejected

    def counts(self, now: datetime) -> dict[str, int]:
        """Return the number of active series of each tenant that has any."""
        counted = {key: active.count(now) for key, active in self._active.items()}
        return {key: count for key, count in counted.items() if count}

    def _over_limit(
        self, block: Block, series_of_tenant: _Series, aged: dict[str, ActiveKeys], now: datetime
    ) -> dict[int, str]:
        rejected: dict[int, str] = {}
        for tenant_id, series in series_of_tenant.items():
            limit = self._limit(tenant_id)
            if limit is None:
                continue
            active = aged.get(tenant_id)
            if active is None:
                active = aged[tenant_id] = self._active.setdefault(tenant_id, ActiveKeys(now))
                active.age(now)
            if active.recent.issuperset(series):
                continue
            for series_key, index in series.items():
                if series_key not in active.recent and not active.admit(series_key, limit=limit):
                    rejected[index] = (
                        f"a new series above the tenant's limit of {len(active)}; send fewer "
                        "distinct tag values, or ask the portal's operator for a higher limit"
                    )
        if not rejected:
            return {}
        return {
            block.positions[row]: rejected[index]
            for row, index in enumerate(block.tag_set_of)
            if index in rejected
        }

    def _limit(self, tenant_id: str) -> int | None:
        quota = None if self._quota is None else self._quota(tenant_id)
        return (self._max_series or None) if quota is None else quota


def _series(block: Block, identity: Identity) -> _Series:
    shape = hash((identity, block.measurement, block.tags))
    series = map(hash, zip(repeat(shape), block.tag_sets, strict=False))
    return {identity[0]: dict(zip(series, range(len(block.tag_sets)), strict=True))}


def _stamped_series(block: Block) -> _Series:
    width, own = len(IDENTITY_TAGS), block.tags[len(IDENTITY_TAGS) :]
    shapes: dict[Identity, int] = {}
    series: _Series = {}
    for index, values in enumerate(block.tag_sets):
        identity = values[:width]
        shape = shapes.get(identity)
        if shape is None:
            shape = shapes[identity] = hash((identity, block.measurement, own))
        series.setdefault(identity[0], {})[hash((shape, values[width:]))] = index
    return series
