"""How much one tenant may send: points a second, and series at a time.

A *series* here is a measurement with its tags on one appliance. It is *active* for one to two
hours after its last sample. Both limits count what this process takes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import repeat

from core.errors import OverloadedError
from timeseries.batch import Batch, Block
from timeseries.stamping import Identity
from timeseries.store import IDENTITY_TAGS

ACTIVE_FOR = timedelta(hours=1)
# So many seconds' worth may come at once, as agents do that deliver what they kept.
BURST_SECONDS = 10.0
MAX_RETRY_AFTER_SECONDS = 300

_Series = dict[str, dict[int, int]]
"""Tenant to its series' hashes, each with the index of its tag set."""


@dataclass(slots=True)
class _Bucket:
    """Points that a tenant may still send; below 0 where the last body was larger than that."""

    points: float
    filled_at: datetime


class RateLimit:
    """A token bucket for each tenant.

    Args:
        points_per_second: the rate in the long run; 0 is without a limit.
    """

    def __init__(self, points_per_second: float) -> None:
        self._rate = points_per_second
        self._buckets: dict[str, _Bucket] = {}

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._rate)

    def check(self, tenant_id: str, *, now: datetime) -> None:
        """Let a tenant send, whatever the size, that is not in debt.

        Raises:
            OverloadedError: its last bodies held more than the rate allows.
        """
        if not self._rate:
            return
        bucket = self._filled(tenant_id, now=now)
        if bucket.points < 0:
            seconds = min(math.ceil(-bucket.points / self._rate), MAX_RETRY_AFTER_SECONDS)
            raise OverloadedError(
                f"The tenant sends more than {self._rate:g} points a second. Send the same again "
                f"in {seconds} s, or ask the portal's operator for a higher rate.",
                retry_after_seconds=seconds,
            )

    def spend(self, tenant_id: str, points: int, *, now: datetime) -> None:
        """Count points that were taken."""
        if self._rate:
            self._filled(tenant_id, now=now).points -= points

    def _filled(self, tenant_id: str, *, now: datetime) -> _Bucket:
        most = self._rate * BURST_SECONDS
        bucket = self._buckets.setdefault(tenant_id, _Bucket(most, now))
        # A clock that was set back fills nothing, and counts from its new time on.
        seconds = max(0.0, (now - bucket.filled_at).total_seconds())
        bucket.points = min(most, bucket.points + seconds * self._rate)
        bucket.filled_at = now
        return bucket


@dataclass(slots=True)
class _Active:
    """Hashes of the series seen since `since`, and in the hour before that."""

    since: datetime
    recent: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    only_earlier: int = 0

    def __len__(self) -> int:
        return len(self.recent) + self.only_earlier

    def count(self, now: datetime) -> int:
        """Return how many there are at an instant, whether or not more were seen since."""
        if now - self.since < ACTIVE_FOR:
            return len(self)
        return len(self.recent) if now - self.since < 2 * ACTIVE_FOR else 0

    def age(self, now: datetime) -> None:
        """Forget what was last seen an hour and more ago."""
        if now - self.since >= ACTIVE_FOR:
            is_long_ago = now - self.since >= 2 * ACTIVE_FOR
            self.earlier = set() if is_long_ago else self.recent
            self.only_earlier = len(self.earlier)
            self.recent = set()
            self.since = now

    def admit(self, series: int, *, most: int) -> bool:
        """Note a series that is not among the recent ones; False where it would be one too many."""
        if series in self.earlier:
            self.only_earlier -= 1
        elif len(self) >= most:
            return False
        self.recent.add(series)
        return True


class SeriesLimit:
    """Counts the active series of each tenant.

    Args:
        max_series: the most that a tenant may have; 0 is without a limit.
        own: the quota of a tenant that has its own, which counts instead.
    """

    def __init__(self, max_series: int, *, own: Callable[[str], int | None] | None = None) -> None:
        self._max_series = max_series
        self._own = own
        self._active: dict[str, _Active] = {}

    def refused(self, batch: Batch, *, identity: Identity | None, now: datetime) -> dict[int, str]:
        """Count a batch's series.

        Args:
            batch: what was sent.
            identity: who sent all of it; None where it is stamped.
            now: when it came.

        Returns:
            The positions of points of series that are too many, each with the reason.
        """
        if not self._max_series and self._own is None:
            return {}
        refused: dict[int, str] = {}
        aged: dict[str, _Active] = {}
        for block in batch.blocks:
            series = _stamped_series(block) if identity is None else _series(block, identity)
            refused |= self._too_many(block, series, aged, now)
        return refused

    def counts(self, now: datetime) -> dict[str, int]:
        """Return how many series are active of each tenant that has any."""
        counted = {key: active.count(now) for key, active in self._active.items()}
        return {key: count for key, count in counted.items() if count}

    def _too_many(
        self, block: Block, series_of_tenant: _Series, aged: dict[str, _Active], now: datetime
    ) -> dict[int, str]:
        refused: dict[int, str] = {}
        for tenant_id, series in series_of_tenant.items():
            most = self._most(tenant_id)
            if most is None:
                continue
            active = aged.get(tenant_id)
            if active is None:
                active = aged[tenant_id] = self._active.setdefault(tenant_id, _Active(now))
                active.age(now)
            if active.recent.issuperset(series):
                continue
            for one, index in series.items():
                if one not in active.recent and not active.admit(one, most=most):
                    refused[index] = _too_many_series(len(active))
        if not refused:
            return {}
        return {
            block.positions[row]: refused[index]
            for row, index in enumerate(block.tag_set_of)
            if index in refused
        }

    def _most(self, tenant_id: str) -> int | None:
        own = None if self._own is None else self._own(tenant_id)
        return (self._max_series or None) if own is None else own


def _series(block: Block, identity: Identity) -> _Series:
    shape = hash((identity, block.measurement, block.tags))
    series = map(hash, zip(repeat(shape), block.tag_sets, strict=False))
    return {identity[0]: dict(zip(series, range(len(block.tag_sets)), strict=True))}


def _stamped_series(block: Block) -> _Series:
    width, own = len(IDENTITY_TAGS), block.tags[len(IDENTITY_TAGS) :]
    shapes: dict[Identity, int] = {}
    found: _Series = {}
    for index, values in enumerate(block.tag_sets):
        identity = values[:width]
        shape = shapes.get(identity)
        if shape is None:
            shape = shapes[identity] = hash((identity, block.measurement, own))
        found.setdefault(identity[0], {})[hash((shape, values[width:]))] = index
    return found


def _too_many_series(active: int) -> str:
    return (
        f"a new series, and the tenant has {active} already, which is the most it may have at a "
        "time; send fewer different tag values, or ask the portal's operator for more"
    )
