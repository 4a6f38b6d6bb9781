"""How much one tenant may send: points a second, and series at a time.

A *series* here is a measurement with its tags on one appliance. It is *active* for one to two
hours after its last sample. Both limits count what this process takes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from core.errors import OverloadedError
from timeseries.batch import Batch, Block

ACTIVE_FOR = timedelta(hours=1)
# So many seconds' worth may come at once, as agents do that deliver what they kept.
BURST_SECONDS = 10.0
MAX_RETRY_AFTER_SECONDS = 300


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
    """

    def __init__(self, max_series: int) -> None:
        self._max_series = max_series
        self._active: dict[str, _Active] = {}

    def refused(
        self, batch: Batch, *, tenant_id: str, appliance_id: str, now: datetime
    ) -> dict[int, str]:
        """Count a batch's series; return the positions of those too many, with the reason."""
        if not self._max_series:
            return {}
        active = self._active.setdefault(tenant_id, _Active(now))
        active.age(now)
        refused: dict[int, str] = {}
        for block in batch.blocks:
            for position in self._too_many(block, appliance_id, active):
                refused[position] = (
                    f"a new series, and the tenant has {len(active)} already, which is the most it "
                    "may have at a time; send fewer different tag values, or ask the portal's "
                    "operator for more"
                )
        return refused

    def _too_many(self, block: Block, appliance_id: str, active: _Active) -> Iterator[int]:
        shape = hash((appliance_id, block.measurement, block.tags))
        new = [
            (index, series)
            for index, values in enumerate(block.tag_sets)
            if (series := hash((shape, values))) not in active.recent
        ]
        if not new:
            return
        refused = {
            index for index, series in new if not active.admit(series, most=self._max_series)
        }
        for row, index in enumerate(block.tag_set_of):
            if index in refused:
                yield block.positions[row]
