"""Jobs that wait for their data without GPUs, while the appliance that they wait for fetches it.

Where a job's data is *far* (see `jobqueue.placement.data_locality`), the job doesn't start: it is
bound to an appliance that has room, which fetches the data, and later jobs use its GPUs meanwhile.
Once little is missing, the job is placed like any other. It waits like this for at most twice the
time that all of its data takes, and ten minutes, but no longer than 30 days, whatever rate an agent
reports; from then on it starts wherever there is room, and its GPUs wait for the data. So it starts
in the end, whatever others do.
"""

from datetime import datetime, timedelta

import numpy as np

from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.data_locality import DataLocality
from jobqueue.placement.filters import DATA_CODE, Filter
from jobqueue.placement.host_filters import count_free
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.views import JobView

PATIENCE_FACTOR = 2
PATIENCE = timedelta(minutes=10)
MAX_WAIT = timedelta(days=30)


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
