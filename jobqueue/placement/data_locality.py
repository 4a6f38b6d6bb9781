"""Where the datasets of jobs are: how much each appliance has, and which jobs wait for theirs.

Of the appliances that can run a job now, those with more of its data go first, in steps of a
quarter: within a step, the policy of the tenant decides. What takes less than a gigabyte to fetch
counts as there, so small datasets don't override the policy.

Where fetching what is missing would take longer than the tenant allows, the data is *far*. The job
doesn't start there: it is bound to an appliance that has room, which fetches the data, and later
jobs use its GPUs meanwhile. Once little is missing, the job is placed like any other. It waits like
this for at most twice the time that all of its data takes, and ten minutes, but no longer than 30
days, whatever rate an agent reports; from then on it starts wherever there is room, and its GPUs
wait for the data. So it starts in the end, whatever others do.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from core.quantities import format_duration, format_share
from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.filters import DATA_CODE, Filter
from jobqueue.placement.host_filters import count_free
from jobqueue.placement.ledger import Ints, Ledger, Mask
from jobqueue.placement.views import CacheView, JobView

STEPS = 4
NEGLIGIBLE_BYTES = 1024**3
# Of an appliance that has fetched too little to know: about a line of 1 Gbit/s.
ASSUMED_BYTES_PER_SECOND = 100 * 1024**2

Versions = Sequence[tuple[str, int]]
"""The versions of datasets that a job reads, each once: id and bytes."""
Copies = Mapping[str, Mapping[str, int]]
"""The cached bytes of versions by appliance."""
PATIENCE_FACTOR = 2
PATIENCE = timedelta(minutes=10)
MAX_WAIT = timedelta(days=30)


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


class DataWait:
    """Where the data of jobs is far, and the room that jobs will need that wait for theirs."""

    def __init__(
        self, ledger: Ledger, data: DataLocality, *, longest_fetch: timedelta | None, now: datetime
    ) -> None:
        self._ledger = ledger
        self._data = data
        self._longest_fetch = longest_fetch
        self._now = now
        self._gpus = np.zeros(ledger.size, np.int64)
        self._cpus = np.zeros(ledger.size, np.float64)
        self._memory_bytes = np.zeros(ledger.size, np.int64)

    def far(self, job: JobView, *, now: datetime) -> Mask | None:
        """Return where a job must wait for its data; None if nowhere.

        In a forecast, what it is bound to fetches meanwhile.
        """
        if not job.datasets or self._longest_fetch is None or not self._data.has_caches:
            return None
        seconds = self._data.seconds(job.datasets)
        if now > self._now:
            seconds = seconds.copy()
            fetching = [self._ledger.index.get(ident) for ident in self.places_of(job)]
            passed = (now - self._now).total_seconds()
            seconds[[place for place in fetching if place is not None]] -= passed
        far: Mask = seconds > self._longest_fetch.total_seconds()
        if job.data_wait_since is not None:
            waited = (now - job.data_wait_since - PATIENCE).total_seconds()
            allowed = PATIENCE_FACTOR * self._data.whole_seconds(job.datasets)
            far &= waited <= np.minimum(allowed, MAX_WAIT.total_seconds())
        return far if far.any() else None

    def near_at(self, job: JobView, place: int) -> datetime:
        """Return when a job need no longer wait for its data on an appliance that fetches it."""
        assert self._longest_fetch is not None  # noqa: S101 - it is far somewhere
        seconds = float(self._data.seconds(job.datasets)[place])
        fetch = timedelta(seconds=min(seconds, MAX_WAIT.total_seconds()))
        return self._now + max(fetch - self._longest_fetch, timedelta())

    def filter_for(self, job: JobView, far: Mask) -> Filter:
        """Return the filter that rejects where the data of a job is far."""
        return Filter(
            DATA_CODE,
            lambda *_: far,
            lambda _ledger, _shape, place: self._data.waiting_text(job.datasets, place),
            rank=lambda *_: self._data.seconds(job.datasets),
        )

    def with_room(self, job: JobView) -> Mask:
        """Return where a job has room beside those that wait for their data there."""
        ledger, shape = self._ledger, job.shape
        has_room: Mask = count_free(ledger, shape) - self._gpus >= shape.gpus
        has_room &= ledger.cpus_free - self._cpus >= shape.cpus - CPU_TOLERANCE
        has_room &= ledger.memory_free - self._memory_bytes >= shape.memory_bytes
        return has_room

    def promise(self, job: JobView, place: int) -> None:
        """Let no other job wait for its data where this one needs the room."""
        self._gpus[place] += job.gpus
        self._cpus[place] += job.cpus
        self._memory_bytes[place] += job.memory_bytes

    @staticmethod
    def places_of(job: JobView) -> set[str]:
        """Return the appliances that a job, or the members of its gang, are bound to."""
        return {*job.member_places, *([job.bound_to] if job.bound_to else [])}
