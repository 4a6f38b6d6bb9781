"""Limits of the distinct measurements and fields of each tenant.

A measurement is a table of the store and a field a column, which take memory and work however few
their samples are. Both count as long as series do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from access.ingest.series_limit import ActiveKeys
from timeseries.identity import Identity
from timeseries.points import Batch, Block

# Of a tenant: a sender can send the fields of a measurement in any combination.
_MAX_BLOCKS = 1_000


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of name, its default limit (0 is unlimited), and what to do about too many."""

    name: str
    max_count: int
    advice: str


@dataclass(slots=True)
class _Active:
    """The active measurements and fields of a tenant.

    `blocks` are hashes of a measurement with its fields that are all among the recent ones.
    """

    measurements: ActiveKeys
    fields: ActiveKeys
    blocks: set[int] = field(default_factory=set)

    def age(self, now: datetime) -> None:
        """Drop what was last seen more than an hour ago."""
        since = self.measurements.since
        for keys in (self.measurements, self.fields):
            keys.age(now)
        if self.measurements.since != since:
            self.blocks = set()


class NameLimit:
    """Counts the active measurements and fields of each tenant.

    A tenant's own limit, which `quota` returns for a tenant and `measurements` or `fields`,
    overrides the default; 0 by default means unlimited.
    """

    def __init__(
        self,
        max_measurements: int,
        max_fields: int,
        *,
        quota: Callable[[str, str], int | None] | None = None,
    ) -> None:
        self._kinds = (
            _Kind("measurements", max_measurements, "put what varies in the name into a tag"),
            _Kind("fields", max_fields, "put the part of the name that varies into a tag"),
        )
        self._quota = quota
        self._active: dict[str, _Active] = {}

    def rejected(self, batch: Batch, *, identity: Identity | None, now: datetime) -> dict[int, str]:
        """Count a batch's names; return the positions of points above a limit, with the reason.

        `identity` is the sender's; None if the points are stamped with theirs.
        """
        rejected: dict[int, str] = {}
        aged: set[str] = set()
        for block in batch.blocks:
            names = hash((block.measurement, block.fields))
            for tenant_id in _tenants(block, identity):
                active = self._active.get(tenant_id)
                if active is None:
                    active = self._active[tenant_id] = _Active(ActiveKeys(now), ActiveKeys(now))
                if tenant_id not in aged:
                    aged.add(tenant_id)
                    active.age(now)
                if names in active.blocks:
                    continue
                reason = self._admit(tenant_id, active, block)
                if reason:
                    rejected |= dict.fromkeys(_positions(block, identity, tenant_id), reason)
        return rejected

    def counts(self, now: datetime) -> dict[str, tuple[int, int]]:
        """Return the numbers of active measurements and fields of each tenant."""
        counted = {
            key: (active.measurements.count(now), active.fields.count(now))
            for key, active in self._active.items()
        }
        return {key: counts for key, counts in counted.items() if any(counts)}

    def _admit(self, tenant_id: str, active: _Active, block: Block) -> str | None:
        """Count the names of a block, or return why not; all or none."""
        fields = {hash((block.measurement, name)) for name in block.fields}
        counted = [
            (active.measurements, {hash(block.measurement)}),
            (active.fields, fields),
        ]
        limits = [self._limit(tenant_id, kind) for kind in self._kinds]
        for kind, (keys, used), limit in zip(self._kinds, counted, limits, strict=True):
            new = used - keys.recent - keys.earlier
            if limit is not None and new and len(keys) + len(new) > limit:
                return (
                    f"a new name above the tenant's limit of {limit} {kind.name}; {kind.advice}, "
                    "or ask the portal's operator for a higher limit"
                )
        for (keys, used), limit in zip(counted, limits, strict=True):
            # Without a limit, what is counted would have none either.
            for name in used - keys.recent if limit is not None else ():
                keys.add(name)
        if None not in limits and len(active.blocks) < _MAX_BLOCKS:
            active.blocks.add(hash((block.measurement, block.fields)))
        return None

    def _limit(self, tenant_id: str, kind: _Kind) -> int | None:
        quota = None if self._quota is None else self._quota(tenant_id, kind.name)
        return (kind.max_count or None) if quota is None else quota


def _tenants(block: Block, identity: Identity | None) -> Iterator[str]:
    if identity is not None:
        yield identity[0]
    else:
        yield from {values[0] for values in block.tag_sets}


def _positions(block: Block, identity: Identity | None, tenant_id: str) -> Iterator[int]:
    for row, position in enumerate(block.positions):
        if identity is not None or block.tag_sets[block.tag_set_of[row]][0] == tenant_id:
            yield position
