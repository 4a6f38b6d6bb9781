"""Limits of the distinct measurements and fields of each tenant.

A measurement is a table of the store and a field a column, which take memory and work however few
their samples are. Both count as long as series do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from access.ingest.series_limit import ActiveKeys
from timeseries.identity import Identity
from timeseries.points import Batch, Block


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of name, its default limit (0 is unlimited), and what to do about too many."""

    name: str
    max_count: int
    advice: str


_Active = tuple[ActiveKeys, ActiveKeys]
"""The active measurements and fields of a tenant."""


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
            fields = {hash((block.measurement, name)) for name in block.fields}
            for tenant_id in _tenants(block, identity):
                active = self._active.setdefault(tenant_id, (ActiveKeys(now), ActiveKeys(now)))
                if tenant_id not in aged:
                    aged.add(tenant_id)
                    for keys in active:
                        keys.age(now)
                reason = self._admit(tenant_id, active, ({hash(block.measurement)}, fields))
                if reason:
                    rejected |= dict.fromkeys(_positions(block, identity, tenant_id), reason)
        return rejected

    def counts(self, now: datetime) -> dict[str, tuple[int, int]]:
        """Return the numbers of active measurements and fields of each tenant."""
        counted = {
            key: (measurements.count(now), fields.count(now))
            for key, (measurements, fields) in self._active.items()
        }
        return {key: counts for key, counts in counted.items() if any(counts)}

    def _admit(
        self, tenant_id: str, active: _Active, names: tuple[set[int], set[int]]
    ) -> str | None:
        """Count the names of a block, or return why not; all or none."""
        if all(used <= keys.recent for keys, used in zip(active, names, strict=True)):
            return None
        limits = [self._limit(tenant_id, kind) for kind in self._kinds]
        for kind, keys, used, limit in zip(self._kinds, active, names, limits, strict=True):
            new = used - keys.recent - keys.earlier
            if limit is not None and new and len(keys) + len(new) > limit:
                return (
                    f"a new name above the tenant's limit of {limit} {kind.name}; {kind.advice}, "
                    "or ask the portal's operator for a higher limit"
                )
        for keys, used, limit in zip(active, names, limits, strict=True):
            # Without a limit, what is counted would have none either.
            for name in used - keys.recent if limit is not None else ():
                keys.add(name)
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
