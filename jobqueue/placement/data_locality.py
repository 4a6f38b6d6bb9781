"""How much of a job's datasets is in the caches of appliances.

Of the appliances that can run a job now, those with more of its data go first, in steps of a
quarter: within a step, the policy of the tenant decides. What takes less than a gigabyte to fetch
counts as there, so small datasets don't override the policy.

Where fetching what is missing would take longer than the tenant allows, the data is *far*: a job
waits for it there without GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from core.quantities import format_duration, format_share
from jobqueue.placement.ledger import Ints, Ledger, Mask
from jobqueue.placement.views import CacheView

STEPS = 4
NEGLIGIBLE_BYTES = 1024**3
# Of an appliance that has fetched too little to know: about a line of 1 Gbit/s.
ASSUMED_BYTES_PER_SECOND = 100 * 1024**2

Versions = Sequence[tuple[str, int]]
"""The versions of datasets that a job reads, each once: id and bytes."""
Copies = Mapping[str, Mapping[str, int]]
"""The cached bytes of versions by appliance."""


class DataLocality:
    """The cached bytes of versions on the appliances of a ledger."""

    def __init__(self, ledger: Ledger, copies: Copies) -> None:
        self._ledger = ledger
        self._cached: dict[str, Sequence[tuple[int, int]]] = {}
        self._levels: dict[Versions, Ints] = {}
        self._seconds: dict[Versions, NDArray[np.float64]] = {}
        self._caches: Mapping[int, CacheView] | None = None
        self._rates = np.full(ledger.size, np.inf)
        self.add(copies)

    @property
    def has_caches(self) -> bool:
        """Return whether the caches were added."""
        return self._caches is not None

    def set_caches(self, caches: Mapping[str, CacheView]) -> None:
        """Add the caches that fetch data ahead of jobs. Elsewhere nothing can be waited for."""
        index, clusters = self._ledger.index, self._ledger.clusters
        self._caches = {
            index[ident]: cache
            for ident, cache in caches.items()
            if ident in index and index[ident] not in clusters
        }
        for place, cache in self._caches.items():
            self._rates[place] = cache.bytes_per_second or ASSUMED_BYTES_PER_SECOND

    def add(self, copies: Copies) -> None:
        """Add the copies of more versions."""
        index = self._ledger.index
        for version_id, by_appliance in copies.items():
            self._cached[version_id] = [
                (index[ident], size) for ident, size in by_appliance.items() if ident in index
            ]

    def missing(self, version_ids: Iterable[str]) -> set[str]:
        """Return the versions whose copies were not added."""
        return set(version_ids) - self._cached.keys()

    def cached_bytes(self, versions: Versions) -> Ints:
        """Return how many bytes each appliance has of some versions."""
        cached: Ints = np.zeros(self._ledger.size, np.int64)
        for version_id, total_bytes in versions:
            for place, size in self._cached.get(version_id, ()):
                cached[place] += min(size, total_bytes)
        return cached

    def levels(self, versions: Versions) -> Ints:
        """Return the step of each appliance, from 0 to `STEPS`, which has all that matters."""
        key = tuple(versions)
        if key not in self._levels:
            total, cached = total_bytes(versions), self.cached_bytes(versions)
            levels = cached * STEPS // max(total, 1)
            levels[total - cached < NEGLIGIBLE_BYTES] = STEPS
            self._levels[key] = levels
        return self._levels[key]

    def seconds(self, versions: Versions) -> NDArray[np.float64]:
        """Return how long each appliance takes to fetch what it lacks; 0 where that has failed."""
        key = tuple(versions)
        if key not in self._seconds:
            seconds = (total_bytes(versions) - self.cached_bytes(versions)) / self._rates
            for place, cache in (self._caches or {}).items():
                if not cache.failed.isdisjoint(ident for ident, _ in versions):
                    seconds[place] = 0.0
            self._seconds[key] = seconds
        return self._seconds[key]

    def whole_seconds(self, versions: Versions) -> NDArray[np.float64]:
        """Return how long each appliance takes to fetch everything."""
        return total_bytes(versions) / self._rates

    def waiting_text(self, versions: Versions, place: int) -> str:
        """Return what an appliance has, such as `1 of 2 TiB cached, about 2h 54m to fetch`."""
        seconds = float(self.seconds(versions)[place])
        return f"{self.text(versions, place)}, about {format_duration(seconds)} to fetch"

    def split(self, masks: Sequence[Mask], versions: Versions) -> list[Mask]:
        """Return each mask in parts, those with more of the data first."""
        if not versions:
            return list(masks)
        levels = self.levels(versions)
        steps = np.unique(levels)[::-1].tolist()
        return [mask & (levels == step) for mask in masks for step in steps]

    def text(self, versions: Versions, place: int) -> str:
        """Return what an appliance has of them, such as `2.1 of 2.3 TiB cached`."""
        cached = int(self.cached_bytes(versions)[place])
        return f"{format_share(cached, total_bytes(versions))} cached"

    def sentence(self, versions: Versions, place: int) -> str:
        """Return the same as a sentence of a decision; "" without data."""
        return f" Of its data, {self.text(versions, place)} there." if versions else ""

    def summary(self, versions: Versions, feasible: Mask, *, limit: int = 3) -> str:
        """Return which feasible appliances have the most of the data; "" without data."""
        if not versions:
            return ""
        cached = np.where(feasible, self.cached_bytes(versions), 0)
        best = np.argsort(-cached, kind="stable")[:limit]
        texts = [
            f"{self._ledger.views[place].name}: {self.text(versions, place)}"
            for place in best.tolist()
            if cached[place]
        ]
        return "; ".join(texts) or f"{format_share(0, total_bytes(versions))} cached"


def total_bytes(versions: Versions) -> int:
    """Return the size of all versions."""
    return sum(size for _, size in versions)
